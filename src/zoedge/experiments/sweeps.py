"""A sweep: runs over a grid of settings, several at once, each in a process of its own."""

import dataclasses
import itertools
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from zoedge.experiments.folder import RunFolder
from zoedge.experiments.settings import Settings, from_mapping, to_mapping
from zoedge.theory import checks

Grid = Sequence[tuple[str, Sequence[Any]]]


def plan(settings: Settings, grid: Grid, out: Path) -> dict[Path, Settings]:
    """A folder and settings for every point of a grid.

    Args:
        settings: what all runs share.
        grid: names of settings (``lr``, ``data.per_class``, ...) with the values that each takes.
        out: the folder of the sweep.
    """
    names = [name for name, _ in grid]
    if len(set(names)) < len(names):
        raise ValueError(f"the grid names a setting twice: {', '.join(names)}")
    runs = {}
    for values in itertools.product(*(values for _, values in grid)):
        point = [(name, value) for (name, _), value in zip(grid, values, strict=True)]
        mapping = to_mapping(settings)
        for name, value in point:
            place = mapping
            *parents, last = name.split(".")
            for parent in parents:
                place = place.setdefault(parent, {})
                if not isinstance(place, dict):
                    raise ValueError(f"the grid: {parent} is one setting, there is no {name}")
            place[last] = value
        name = "-".join(f"{name}{value}" for name, value in point).replace(" ", "").replace("/", "_") or "run"
        runs[out / name] = from_mapping(mapping, "the grid")
    return runs


def sweep(
    runs: dict[Path, Settings], jobs: int, watch: Callable[[list[RunFolder]], object], poll: float = 0.5
) -> list[RunFolder]:
    """Run all that are not finished yet, so many at once, with the threads divided between them.

    Args:
        runs: folders and settings, as ``plan`` makes them.
        jobs: runs at once.
        watch: called now and then with all folders.
        poll: seconds between two calls.

    Raises:
        ChildProcessError: some runs failed; the others have been made.
    """
    threads = max((os.cpu_count() or 1) // checks.count("jobs", jobs), 1)
    folders = [_open(path, settings, threads) for path, settings in runs.items()]
    waiting = [folder for folder in folders if folder.status.state not in ("finished", "diverged")]
    running: dict[Path, subprocess.Popen] = {}
    failed: list[str] = []
    try:
        with _terminable():
            while waiting or running:
                for path, process in list(running.items()):
                    if process.poll() is not None:
                        del running[path]
                        if process.returncode not in (0, 3):
                            failed.append(f"{path} (exit code {process.returncode})")
                while waiting and len(running) < jobs:
                    path = waiting.pop(0).path
                    command = [sys.executable, "-m", "zoedge", "resume", str(path), "--quiet"]
                    running[path] = subprocess.Popen(command)
                watch(folders)
                time.sleep(poll)
    finally:
        # Ctrl-C reaches the children, too; SIGTERM and SIGHUP do not.
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
    watch(folders)
    if failed:
        raise ChildProcessError(f"{len(failed)} of {len(runs)} runs failed, see above: {', '.join(failed)}")
    return folders


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process by an exception, so that it can end its children."""

    def leave(number: int, frame: object) -> None:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _open(path: Path, settings: Settings, threads: int) -> RunFolder:
    if not settings.threads:
        settings = dataclasses.replace(settings, threads=threads)
    if not (path / "settings.json").exists():
        return RunFolder.create(path, settings)
    folder = RunFolder(path)
    if dataclasses.replace(folder.settings, threads=settings.threads) != settings:
        raise ValueError(f"{path} holds a run with other settings: name another folder with --out")
    if folder.status.state == "new":  # what has not begun can begin with another number of threads
        shutil.rmtree(path)
        return RunFolder.create(path, settings)
    return folder
