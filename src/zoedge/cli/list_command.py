"""``zoedge list``: the runs in a folder."""

from pathlib import Path
from typing import Annotated

import tyro


def list_runs(root: Annotated[Path, tyro.conf.Positional] = Path("runs"), /) -> None:
    """List runs with their status and verdict.

    Args:
        root: Folder to look in, however deep.
    """
    from zoedge.cli.tables import show, verdict_table
    from zoedge.experiments.folder import find_runs

    runs = find_runs(root)
    if not runs:
        raise FileNotFoundError(f"there are no runs in {root}")
    show(verdict_table(runs, [str(run.path.relative_to(root)) for run in runs]))


def main(arguments: list[str]) -> None:
    """Parse and run."""
    tyro.cli(list_runs, prog="zoedge list", args=arguments)
