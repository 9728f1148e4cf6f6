"""``zoedge report``: the band figure of runs, and a page."""

from pathlib import Path
from typing import Annotated

import tyro


def report(runs: Annotated[list[Path], tyro.conf.Positional], /, *, out: Path = Path("report")) -> None:
    """Draw the band figure of runs, one colour each, as PNG and SVG, and write a page with it.

    Try:
      zoedge report runs/*
      zoedge report runs/a runs/b --out figures

    Args:
        runs: Folders of runs.
        out: Folder for bands.png, bands.svg and report.html.
    """
    from zoedge.cli.tables import show, verdict_table
    from zoedge.experiments.folder import RunFolder
    from zoedge.report.page import labels, write_report

    if not runs:
        raise ValueError("name at least one run")
    # runs/grid/* names the report of a sweep, too.
    folders = [RunFolder(path) for path in runs if not (path / "report.html").is_file()]
    if not folders:
        raise ValueError("these are reports: name the folders of runs")
    for file in write_report(folders, out):
        print(file)
    show(verdict_table(folders, labels(folders)))


def main(arguments: list[str]) -> None:
    """Parse and run."""
    tyro.cli(report, prog="zoedge report", args=arguments)
