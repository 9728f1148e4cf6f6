"""``zoedge reproduce``: the figures of the paper, each with a verdict on what it claims."""

import os
from pathlib import Path
from typing import Annotated

import tyro

from zoedge.cli.sweep_progress import SweepProgress
from zoedge.experiments.catalogue import Entry, catalogue
from zoedge.experiments.folder import RunFolder
from zoedge.experiments.presets import PresetName
from zoedge.experiments.reproduce import run_path, shortened, train
from zoedge.theory import checks


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
    root, at_once = out / preset / "runs", checks.count("jobs", jobs, at_least=0) or os.cpu_count() or 1
    for name in chosen:
        entry = entries[name]
        runs = sum(len(panel.runs) for panel in entry.panels)
        if not quiet:
            print(f"{entry.name}: {entry.shows} ({runs} runs)", flush=True)
        with SweepProgress(quiet) as progress:
            train(entry if steps is None else shortened(entry, checks.count("steps", steps)), root, at_once, progress)
        if steps is None:
            _judge(entry, root, out / preset / name)
        else:
            _show_projection(entry, steps, root)


def _judge(entry: Entry, root: Path, folder: Path) -> None:
    """Draw, and say what holds."""
    from zoedge.report.reproduction import write_reproduction

    files, content = write_reproduction(entry, root, folder)
    if entry.kind == "table":
        print(files[0].read_text())
    for claim in content["claims"]:
        print(f"{'holds' if claim['holds'] else 'FAILS'}  {claim['panel']}: {claim['text']}\n       {claim['numbers']}")
    for file in files:
        print(file)


def _show_catalogue(entries: dict[str, Entry]) -> None:
    width = max(map(len, entries))
    for entry in entries.values():
        runs = sum(len(panel.runs) for panel in entry.panels)
        print(f"{entry.name:{width}}  {entry.paper}: {entry.shows} ({runs} runs)")


def _show_projection(entry: Entry, steps: int, root: Path) -> None:
    """How long the whole figure would take here, with as many runs at once, from what a few steps took."""
    total = 0.0
    for panel, tried in zip(entry.panels, shortened(entry, steps).panels, strict=True):
        for settings, short, label in zip(panel.runs, tried.runs, panel.labels, strict=True):
            run = RunFolder(run_path(short, root))
            status = run.status
            step = (status.seconds - status.measuring) / max(status.step, 1)
            reading = status.measuring / max(len(run.readings()["step"]), 1)
            seconds = step * settings.steps + reading * settings.steps / settings.measure_every
            total += seconds
            print(f"{panel.title}, {label}: {step:.3g} s a step, {seconds / 3600:.3g} h in all")
    print(f"{entry.name}: {total / 3600:.3g} h of runs")


def main(arguments: list[str]) -> None:
    """Parse and run."""
    tyro.cli(reproduce, prog="zoedge reproduce", args=arguments)
