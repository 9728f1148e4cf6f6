"""A sweep: runs over a grid of settings, several at once, each in a process of its own."""

import dataclasses
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from zoedge.experiments.folder import RunFolder
from zoedge.experiments.settings import Settings, from_mapping, to_mapping

Grid = Sequence[tuple[str, Sequence[Any]]]


def plan(settings: Settings, grid: Grid, out: Path) -> dict[Path, Settings]:
    """A folder and settings for every point of a grid.

    Args:
        settings: what all runs share.
        grid: names of settings (``lr``, ``data.per_class``, ...) with the values that each takes.
        out: the folder of the sweep.
    """
    runs = {}
    for values in itertools.product(*(values for _, values in grid)):
        point = [(name, value) for (name, _), value in zip(grid, values, strict=True)]
        mapping = to_mapping(settings)
        for name, value in point:
            place = mapping
            *parents, last = name.split(".")
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = value
        name = "-".join(f"{name}{value}" for name, value in point) or "run"
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
    """
    threads = max((os.cpu_count() or 1) // jobs, 1)
    folders = [_open(path, settings, threads) for path, settings in runs.items()]
    waiting = [folder for folder in folders if folder.status.state not in ("finished", "diverged")]
    running: list[subprocess.Popen] = []
    try:
        while waiting or running:
            running = [process for process in running if process.poll() is None]
            while waiting and len(running) < jobs:
                command = [sys.executable, "-m", "zoedge", "resume", str(waiting.pop(0).path), "--quiet"]
                running.append(subprocess.Popen(command))
            watch(folders)
            time.sleep(poll)
    finally:
        # Ctrl-C reaches the children, too; whatever ends this process must not leave them behind.
        for process in running:
            process.terminate()
        for process in running:
            process.wait()
    watch(folders)
    return folders


def _open(path: Path, settings: Settings, threads: int) -> RunFolder:
    if not settings.threads:
        settings = dataclasses.replace(settings, threads=threads)
    if not (path / "settings.json").exists():
        return RunFolder.create(path, settings)
    folder = RunFolder(path)
    if dataclasses.replace(folder.settings, threads=settings.threads) != settings:
        raise ValueError(f"{path} holds a run with other settings: name another folder with --out")
    return folder
