"""``zoedge reproduce``: the figures of the paper, each with a verdict on what it claims."""

import os
from pathlib import Path
from typing import Annotated, Any

import tyro

from zoedge.cli.sweep_command import SweepProgress
from zoedge.experiments.catalogue import Entry, catalogue
from zoedge.experiments.folder import RunFolder
from zoedge.experiments.presets import PresetName
from zoedge.experiments.reproduce import run_paths, shortened, write_verdict
from zoedge.experiments.sweep import sweep


def reproduce(
    names: Annotated[list[str], tyro.conf.Positional, tyro.conf.arg(metavar="NAME")],
    /,
    *,
    preset: PresetName = "laptop",
    out: Path = Path("reproduction"),
    jobs: int = 0,
    steps: int | None = None,
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
) -> None:
    """Reproduce figures of the paper: make their runs, draw them, and say which of their claims hold.

    Try:
      zoedge reproduce                  what there is
      zoedge reproduce vit              one figure
      zoedge reproduce all              everything; goes on where it was interrupted
      zoedge reproduce cnn --preset paper --steps 50   try the paper's settings, and see how long they would take

    Runs are kept in OUT/PRESET/runs: one that exists with equal settings is not made again. A figure's files are in
    OUT/PRESET/NAME.

    Args:
        names: Of figures, or all.
        preset: Laptop takes minutes a figure on two cores, paper has the paper's sizes, for a GPU.
        out: Folder for runs and figures.
        jobs: Runs at once; 0: one per core.
        steps: Only so many steps of every run, to try it.
        quiet: Show nothing while it runs.
    """
    entries = catalogue(preset)
    if not names:
        _show_catalogue(entries)
        return
    chosen = list(entries) if names == ["all"] else names
    for name in chosen:
        if name not in entries:
            raise ValueError(f"there is no figure {name!r}: use all, or {', '.join(entries)}")
    for name in chosen:
        if steps:
            tried = shortened(entries[name], steps)
            _train(tried, out / preset, jobs, quiet)
            _show_projection(entries[name], tried, out / preset)
        else:
            _train(entries[name], out / preset, jobs, quiet)
            _judge(entries[name], out / preset)


def _train(entry: Entry, out: Path, jobs: int, quiet: bool) -> None:
    paths = run_paths(entry, out / "runs")
    runs = {
        path: settings
        for panel, places in zip(entry.panels, paths, strict=True)
        for path, settings in zip(places, panel.runs, strict=True)
    }
    if not quiet:
        print(f"{entry.name}: {entry.shows} ({len(runs)} runs)", flush=True)
    with SweepProgress(quiet) as progress:
        sweep(runs, min(jobs or os.cpu_count() or 1, len(runs)), progress)


def _judge(entry: Entry, out: Path) -> None:
    """Draw, and say what holds."""
    from zoedge.experiments.table import measured_spectrum, stability_table, table_claims
    from zoedge.report.reproduction import write_figure, write_table

    paths = run_paths(entry, out / "runs")
    if entry.rows:
        files, claims = write_figure(entry, paths, out / entry.name), []
    else:
        rows = stability_table(*(measured_spectrum(RunFolder(path)) for path in paths[0]))
        files, claims = write_table(rows, out / entry.name), table_claims(rows)
        print(files[0].read_text())
    content = write_verdict(entry, paths, out / entry.name / "verdict.json", claims)
    _show_verdict(content)
    for file in (*files, out / entry.name / "verdict.json"):
        print(file)


def _show_catalogue(entries: dict[str, Entry]) -> None:
    width = max(map(len, entries))
    for entry in entries.values():
        runs = sum(len(panel.runs) for panel in entry.panels)
        print(f"{entry.name:{width}}  {entry.paper}: {entry.shows} ({runs} runs)")


def _show_verdict(content: dict[str, Any]) -> None:
    for claim in content["claims"]:
        print(f"{'holds' if claim['holds'] else 'FAILS'}  {claim['panel']}: {claim['text']}\n       {claim['numbers']}")


def _show_projection(whole: Entry, tried: Entry, out: Path) -> None:
    """How long the whole figure would take here, one run after the other, from what a few steps took."""
    total = 0.0
    for panel, places in zip(whole.panels, run_paths(tried, out / "runs"), strict=True):
        for settings, label, place in zip(panel.runs, panel.labels, places, strict=True):
            status = RunFolder(place).status
            step = (status.seconds - status.measuring) / max(status.step, 1)
            readings = max(len(RunFolder(place).readings()["step"]), 1)
            seconds = step * settings.steps + status.measuring / readings * settings.steps / settings.measure_every
            total += seconds
            print(f"{panel.title}, {label}: {step:.3g} s a step, {seconds / 3600:.3g} h in all")
    print(f"{whole.name}: {total / 3600:.3g} h of runs")


def main(arguments: list[str]) -> None:
    """Parse and run."""
    tyro.cli(reproduce, prog="zoedge reproduce", args=arguments)
