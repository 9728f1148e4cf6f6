"""``zoedge sweep``: a grid of runs, several at once."""

import json
import os
import sys
import time
from dataclasses import dataclass
from typing import Annotated, Any

import tyro
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from zoedge.cli.run_command import RunArguments, parse
from zoedge.experiments.folder import RunFolder

DESCRIPTION = """A grid of runs over any settings, several at once, with the threads divided between them.

Try:
  zoedge sweep --grid lr=1e-3,2e-3,4e-3 --out runs/lrs
  zoedge sweep --preset laptop --model resnet20 --grid lr=2e-3,4e-3 --out runs/resnet
  zoedge sweep --grid lr=1e-4,2e-4 momentum=0.5,0.9 --method zo-gdm --out runs/grid

The same command again goes on where it was interrupted. At the end a report of all runs is in OUT/report.
"""
# Seconds between two lines, when the output is no terminal.
_EVERY = 15.0


@dataclass(frozen=True)
class SweepArguments(RunArguments):
    """What to run.

    Args:
        settings: that the runs share.
        config: TOML file with settings.
        preset: settings that suit the model and the method.
        out: folder of the sweep.
        quiet: show nothing while it runs.
        grid: settings, each with the values that it takes.
        jobs: runs at once; 0: one per core.
    """

    grid: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME=A,B,..")] = ()
    jobs: int = 0


def main(arguments: list[str]) -> None:
    """Parse and run."""
    parsed = parse(arguments, SweepArguments, "zoedge sweep", DESCRIPTION)
    if parsed.out is None or not parsed.grid:
        raise ValueError("a sweep needs a grid and a folder: zoedge sweep --grid lr=1e-3,2e-3 --out runs/lrs")
    grid = [_axis(text) for text in parsed.grid]

    from zoedge.cli.tables import show, verdict_table
    from zoedge.experiments.sweep import plan, sweep
    from zoedge.report.page import labels, write_report

    runs = plan(parsed.settings, grid, parsed.out)
    with SweepProgress(parsed.quiet) as progress:
        folders = sweep(runs, min(parsed.jobs or os.cpu_count() or 1, len(runs)), progress)
    files = write_report(folders, parsed.out / "report")
    show(verdict_table(folders, labels(folders)))
    for file in files:
        print(file)
    sys.exit(3 if all(folder.status.state == "diverged" for folder in folders) else 0)


def _axis(text: str) -> tuple[str, list[Any]]:
    """``lr=1e-3,2e-3`` as a name and values."""
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise ValueError(f"a grid is given as NAME=A,B,.., got {text!r}")
    return name.replace("-", "_"), [_number(value) for value in values.split(",")]


def _number(text: str) -> Any:
    """A number, true or false where it is one, else the text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


class SweepProgress:
    """Shows the runs of a sweep: bars on a terminal, now and then a line elsewhere."""

    def __init__(self, quiet: bool) -> None:
        console = Console()
        self._quiet, self._shown = quiet, 0.0
        self._live = Live(console=console, refresh_per_second=4) if console.is_terminal and not quiet else None

    def __enter__(self) -> "SweepProgress":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._live:
            self._live.stop()

    def __call__(self, runs: list[RunFolder]) -> None:
        """Show how the runs stand."""
        if self._live:
            self._live.update(Group(*(_bar(run) for run in runs)))
        elif not self._quiet and time.monotonic() - self._shown > _EVERY:
            self._shown = time.monotonic()
            print("  ".join(f"{run.name} {run.status.step}/{run.settings.steps}" for run in runs), flush=True)


def _bar(run: RunFolder) -> Table:
    status, readings = run.status, run.readings()
    ratio = f"edge ratio {readings['exact'][-1] / readings['threshold'][-1]:.2f}" if readings["step"] else ""
    row = Table.grid(padding=(0, 2))
    row.add_row(
        f"{run.name:24}",
        ProgressBar(total=run.settings.steps, completed=status.step, width=30),
        f"{status.step}/{run.settings.steps}",
        status.state,
        ratio,
    )
    return row
