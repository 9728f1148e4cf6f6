"""A run that takes a second."""

from dataclasses import replace
from pathlib import Path

from zoedge.experiments import Data, Settings, Size

SMALL = Settings(
    model="mlp",
    lr=1e-2,
    steps=60,
    log_every=5,
    measure_every=20,
    budget=8,
    checkpoint_every=10,
    threads=1,
    device="cpu",
    data=Data(per_class=2, classes=3, image_size=4),
    size=Size(width=6, depth=1),
)


def small(**changes) -> Settings:
    return replace(SMALL, **changes)


def outcome(path: Path) -> tuple[str, bytes]:
    """What a run leaves: its metrics and its last checkpoint, both with all their bits."""
    last = max((path / "checkpoints").iterdir())
    return (path / "metrics.csv").read_text(), last.read_bytes()
