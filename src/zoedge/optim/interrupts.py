"""Holding back Ctrl-C while parameters are being changed."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """Ctrl-C during a step: at once inside the closure, at the end of a change of the parameters otherwise.

    ::

        with Interrupts() as interrupts:
            with interrupts.held():
                ...  # whole, or not at all
    """

    def __init__(self) -> None:
        self._held = False
        self._pending: tuple[Any, ...] | None = None

    def __enter__(self) -> "Interrupts":
        self._previous = signal.getsignal(signal.SIGINT)
        main = threading.current_thread() is threading.main_thread()
        # Otherwise Ctrl-C is ignored, or handled outside of Python or in another thread: nothing to hold back.
        self._installed = main and callable(self._previous)
        if self._installed:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold back until the end of the block."""
        self._held = True
        try:
            yield
        finally:
            self._held = False
            pending, self._pending = self._pending, None
            if pending is not None:
                self._handle(*pending)

    def _handle(self, *arguments: Any) -> None:
        if self._held:
            self._pending = arguments
        elif callable(self._previous):
            self._previous(*arguments)
