"""Tables of runs."""

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from zoedge.experiments.folder import RunFolder
from zoedge.report.page import HEADER, rows

_WIDE = 140


def verdict_table(runs: list[RunFolder], names: list[str]) -> Table:
    """A row for every run."""
    table = Table(box=box.SIMPLE_HEAD)
    for i, name in enumerate(HEADER):
        table.add_column(name, justify="left" if i in (0, len(HEADER) - 1) else "right")
    for row in rows(runs, names):
        table.add_row(*map(escape, row))
    return table


def show(table: Table) -> None:
    """Print a table, wide enough for all of it when the output is no terminal."""
    console = Console()
    (console if console.is_terminal else Console(width=_WIDE)).print(table)
