"""Reproduce a figure: its runs, found or made, and the verdict on them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from zoedge import __version__
from zoedge.experiments.catalogue import Entry
from zoedge.experiments.claims import Claim
from zoedge.experiments.folder import RunFolder, write_atomically
from zoedge.experiments.settings import Settings, to_mapping
from zoedge.experiments.verdict import verdict


def shortened(entry: Entry, steps: int) -> Entry:
    """The same figure with runs of a few steps, and a reading before and after them, to try it."""
    panels = tuple(replace(panel, runs=tuple(_short(run, steps) for run in panel.runs)) for panel in entry.panels)
    return replace(entry, panels=panels)


def run_paths(entry: Entry, root: Path) -> list[list[Path]]:
    """The folder of every run, panel by panel."""
    return [[run_path(run, root) for run in panel.runs] for panel in entry.panels]


def run_path(settings: Settings, root: Path) -> Path:
    """A folder named after what is trained and a digest of what differs from the defaults: equal for equal settings."""
    default = to_mapping(Settings())
    given = {name: value for name, value in to_mapping(settings).items() if value != default[name]}
    digest = hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:10]
    return root / f"{settings.model}-{settings.method}-{digest}"


def write_verdict(entry: Entry, paths: list[list[Path]], file: Path, table: Sequence[Claim] = ()) -> dict[str, Any]:
    """Check all claims and store them, with the numbers of every run, as JSON.

    Args:
        entry: the figure.
        paths: of its runs.
        file: to write.
        table: claims that do not come from the runs of one panel.
    """
    found: list[dict[str, Any]] = [{"panel": entry.paper, **asdict(claim)} for claim in table]
    runs: list[dict[str, Any]] = []
    for panel, places in zip(entry.panels, paths, strict=True):
        folders = [RunFolder(place) for place in places]
        found += [{"panel": panel.title, **asdict(check(folders, panel.labels))} for check in panel.checks]
        runs += [_summary(panel.title, label, run) for label, run in zip(panel.labels, folders, strict=True)]
    content = {
        "name": entry.name,
        "paper": entry.paper,
        "shows": entry.shows,
        "version": __version__,
        "claims": found,
        "runs": runs,
    }
    write_atomically(file, json.dumps(content, indent=2).encode())
    return content


def _summary(panel: str, label: str, run: RunFolder) -> dict[str, Any]:
    status = run.status
    return {
        "panel": panel,
        "run": label,
        "state": status.state,
        "steps": status.step,
        "seconds": round(status.seconds, 1),
        "measuring": round(status.measuring, 1),
        **asdict(verdict(run.readings())),
        "settings": to_mapping(run.settings),
    }


def _short(settings: Settings, steps: int) -> Settings:
    raises = tuple((step * steps // settings.steps, lr) for step, lr in settings.lr_schedule)
    return replace(settings, steps=steps, lr_schedule=raises, measure_every=steps, log_every=1)
