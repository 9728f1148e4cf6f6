"""Reproduce a figure: its runs, found or made, and the verdict on them."""

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from zoedge import __version__
from zoedge.experiments.catalogue import Entry
from zoedge.experiments.claims import Claim
from zoedge.experiments.folder import RunFolder, write_atomically
from zoedge.experiments.settings import Settings, to_mapping
from zoedge.experiments.sweeps import sweep
from zoedge.experiments.verdicts import verdict


def shortened(entry: Entry, steps: int) -> Entry:
    """The same figure with runs of a few steps, and a reading before and after them, to try it."""
    panels = tuple(replace(panel, runs=tuple(_short(run, steps) for run in panel.runs)) for panel in entry.panels)
    return replace(entry, panels=panels)


def run_path(settings: Settings, root: Path) -> Path:
    """A folder named after what is trained and a digest of what differs from the defaults: equal for equal settings."""
    default = to_mapping(Settings())
    given = {name: value for name, value in to_mapping(settings).items() if value != default[name]}
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:10]
    return root / f"{settings.model}-{settings.method}-{digest}"


def train(entry: Entry, root: Path, jobs: int, watch: Callable[[list[RunFolder]], object]) -> None:
    """Make all runs of a figure that do not exist yet, so many at once."""
    runs = {run_path(settings, root): settings for panel in entry.panels for settings in panel.runs}
    sweep(runs, min(jobs, len(runs)), watch)


def runs_of(entry: Entry, root: Path) -> list[list[RunFolder]]:
    """The runs of a figure, panel by panel; all must have come to their end."""
    found = [[RunFolder(run_path(settings, root)) for settings in panel.runs] for panel in entry.panels]
    for run in (run for runs in found for run in runs):
        if run.status.state not in ("finished", "diverged"):
            raise ValueError(f"{run.path} is {run.status.state} at step {run.status.step}: no verdict before its end")
    return found


def write_verdict(entry: Entry, runs: Sequence[Sequence[RunFolder]], file: Path, table: Sequence[Claim] = ()) -> dict:
    """Check all claims and store them, with the numbers of every run, as JSON.

    Args:
        entry: the figure.
        runs: panel by panel.
        file: to write.
        table: claims that do not come from the runs of one panel.
    """
    claims: list[dict[str, Any]] = [{"panel": entry.paper, **asdict(claim)} for claim in table]
    summaries: list[dict[str, Any]] = []
    for panel, folders in zip(entry.panels, runs, strict=True):
        claims += [{"panel": panel.title, **asdict(check(folders, panel.labels))} for check in panel.checks]
        summaries += [_summary(panel.title, label, run) for label, run in zip(panel.labels, folders, strict=True)]
    content = {
        "name": entry.name,
        "paper": entry.paper,
        "shows": entry.shows,
        "tried": entry.tried,
        "version": __version__,
        "claims": claims,
        "runs": summaries,
    }
    write_atomically(file, json.dumps(content, indent=2).encode())
    return content


def _summary(panel: str, label: str, run: RunFolder) -> dict[str, Any]:
    status = run.status
    numbers = asdict(verdict(run.readings()))
    return {
        "panel": panel,
        "run": label,
        "state": status.state,
        "steps": status.step,
        "seconds": round(status.seconds, 1),
        "measuring": round(status.measuring, 1),
        "revisions": status.revisions,
        **{name: None if isinstance(value, float) and math.isnan(value) else value for name, value in numbers.items()},
        "settings": to_mapping(run.settings),
    }


def _short(settings: Settings, steps: int) -> Settings:
    raises: list[tuple[int, float]] = []
    for step, lr in settings.lr_schedule:
        raises.append((max(step * steps // settings.steps, raises[-1][0] + 1 if raises else 0), lr))
    return replace(settings, steps=steps, lr_schedule=tuple(raises), measure_every=steps, log_every=1)
