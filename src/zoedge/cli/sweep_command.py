"""``zoedge sweep``: a grid of runs, several at once."""

import json
import os
import sys
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from zoedge.cli.run_command import RunArguments, parse
from zoedge.cli.sweep_progress import SweepProgress
from zoedge.theory import checks

DESCRIPTION = """A grid of runs over any settings, several at once, with the threads divided between them.

Try:
  zoedge sweep --grid lr=1e-3,2e-3,4e-3 --out runs/lrs
  zoedge sweep --preset laptop --model resnet20 --grid lr=2e-3,4e-3 --out runs/resnet
  zoedge sweep --grid lr=1e-4,2e-4 momentum=0.5,0.9 --method zo-gdm --out runs/grid

The same command again goes on where it was interrupted. At the end a report of all runs is in OUT/report.
"""


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
    if parsed.preset and (own := [name for name, _ in grid if name in ("model", "method")]):
        raise ValueError(f"a preset is of one model and one method: leave {own[0]} out of the grid, or the preset")
    checks.count("jobs", parsed.jobs, at_least=0)

    from zoedge.cli.tables import show, verdict_table
    from zoedge.experiments.folder import RunFolder
    from zoedge.experiments.sweeps import plan, sweep
    from zoedge.report.page import labels, write_report

    runs = plan(parsed.settings, grid, parsed.out)
    failure = None
    try:
        with SweepProgress(parsed.quiet) as progress:
            sweep(runs, min(parsed.jobs or os.cpu_count() or 1, len(runs)), progress)
    except ChildProcessError as error:  # the others are worth showing
        failure = error
    folders = [RunFolder(path) for path in runs]
    files = write_report(folders, parsed.out / "report")
    show(verdict_table(folders, labels(folders)))
    for file in files:
        print(file)
    if failure:
        raise failure
    sys.exit(3 if all(folder.status.state == "diverged" for folder in folders) else 0)


def _axis(text: str) -> tuple[str, list[Any]]:
    """``lr=1e-3,2e-3`` as a name and values."""
    name, equals, values = text.partition("=")
    if not equals or not values:
        raise ValueError(f"a grid is given as NAME=A,B,.., got {text!r}")
    return name.replace("-", "_"), _values(values)


def _values(text: str) -> list[Any]:
    """Numbers, lists, true or false where they are, else texts between commas."""
    parts = text.split(",")
    if not all(parts):
        raise ValueError(f"a value of the grid is empty: {text!r}")
    try:
        return json.loads(f"[{text}]")
    except json.JSONDecodeError:
        return [_values(part)[0] if "," in text else part for part in parts]
