"""How several runs are shown while they go: bars on a terminal, now and then a line elsewhere."""

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from zoedge.experiments.folder import RunFolder

# Seconds between two lines, when the output is no terminal.
_EVERY = 15.0


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
            print(_line(runs), flush=True)


def _line(runs: list[RunFolder]) -> str:
    """How many are done, and those that go on."""
    done = sum(run.status.state in ("finished", "diverged") for run in runs)
    going = [f"{run.name} {run.status.step}/{run.settings.steps}" for run in runs if run.status.state == "running"]
    return "  ".join([f"{done} of {len(runs)} done", *going])


def _bar(run: RunFolder) -> Table:
    status = run.status
    ratio = "" if status.edge_ratio is None else f"edge ratio {status.edge_ratio:.2f}"
    row = Table.grid(padding=(0, 2))
    row.add_row(
        f"{run.name:24}",
        ProgressBar(total=run.settings.steps, completed=status.step, width=30),
        f"{status.step}/{run.settings.steps}",
        status.state,
        ratio,
    )
    return row
