"""How a run is shown while it goes: a bar on a terminal, now and then a line elsewhere."""

import time
from contextlib import AbstractContextManager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from zoedge.cli import silence
from zoedge.experiments.run import Moment

# Seconds between two lines, when the output is no terminal.
_EVERY = 10.0


def say(text: str) -> None:
    """Print a line. A reader that has had enough (head, less) does not end the training."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        silence()


class RunProgress(AbstractContextManager):
    """Shows steps, steps per second, loss, edge ratio of the last reading, and time left.

    Args:
        steps: of the whole run.
        quiet: show nothing.
    """

    def __init__(self, steps: int, quiet: bool = False) -> None:
        self._steps, self._quiet = steps, quiet
        self._console = Console()
        self._bar, self._step = None, 0
        self._started, self._first, self._shown = time.monotonic(), -1, 0.0
        if self._console.is_terminal and not quiet:
            self._bar = Progress(
                BarColumn(24), MofNCompleteColumn(), TextColumn("{task.fields[text]}"), TimeRemainingColumn(),
                console=self._console,
            )  # fmt: skip
            self._task = self._bar.add_task("", total=steps, text="")

    def __enter__(self) -> "RunProgress":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._bar:
            self._bar.update(self._task, completed=self._step)
            self._bar.stop()

    def __call__(self, moment: Moment) -> None:
        """Show a moment of a run."""
        self._step = moment.step
        if self._quiet:
            return
        now = time.monotonic()
        if self._first < 0:
            self._first, self._started = moment.step, now
        if self._bar:
            if now - self._shown > 0.1:
                self._bar.update(self._task, completed=moment.step, text=self._text(moment, now))
                self._shown = now
        elif now - self._shown > _EVERY and not moment.measuring:
            self._shown = now
            say(f"step {moment.step}/{self._steps}  {self._text(moment, now)}{self._left(moment, now)}")

    def _text(self, moment: Moment, now: float) -> str:
        speed = (moment.step - self._first) / max(now - self._started, 1e-9)
        band = "" if moment.band is None else f"  edge ratio {moment.band.edge_ratio:.2f}"
        doing = "  measuring" if moment.measuring else ""
        return f"{speed:.3g} steps/s  loss {moment.loss:.4g}{band}{doing}"

    def _left(self, moment: Moment, now: float) -> str:
        done = moment.step - self._first
        if done <= 0:
            return ""
        seconds = (self._steps - moment.step) * (now - self._started) / done
        return f"  {seconds // 60:.0f}:{seconds % 60:02.0f} left"
