"""Holding back Ctrl-C while a step changes parameters."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Interrupts:
    """Ctrl-C during a step takes effect inside the closure, or else when the step has ended.

    ::

        with Interrupts() as interrupts:
            ...  # whole, or not at all
            with interrupts.allowed():
                closure()
    """

    def __init__(self) -> None:
        self._allowed = False
        self._pending: tuple[Any, ...] | None = None
        self._previous = signal.getsignal(signal.SIGINT)

    def __enter__(self) -> "Interrupts":
        main = threading.current_thread() is threading.main_thread()
        # Otherwise Ctrl-C is ignored, or handled outside of Python or in another thread: nothing to hold back.
        self._installed = main and callable(self._previous)
        if self._installed:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)
        self._deliver()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Let Ctrl-C through, at most once: the way back that follows is not to be interrupted."""
        self._allowed = True
        try:
            self._deliver()
            yield
        finally:
            self._allowed = False

    def _handle(self, *arguments: Any) -> None:
        self._pending = arguments
        if self._allowed:
            self._allowed = False
            self._deliver()
            self._allowed = True

    def _deliver(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None and callable(self._previous):
            self._previous(*pending)
