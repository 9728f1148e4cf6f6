"""Holding back Ctrl-C while parameters are being changed."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a Ctrl-C that arrives inside take effect at the end, so that no half-done change is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[tuple] = []
    previous = signal.getsignal(signal.SIGINT)
    if not callable(previous):  # ignored, or handled outside of Python
        yield
        return
    signal.signal(signal.SIGINT, lambda *arguments: pending.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
        if pending:
            previous(*pending[0])
