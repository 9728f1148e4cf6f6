"""Checkpoints: model and optimizer at a step, in safetensors, with their checksum in the file's name."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor, nn
from torch.optim import Optimizer

from zoedge.experiments.folder import write_atomically

# The one before is there if the last is damaged.
_KEPT = 2


@dataclass(frozen=True)
class Checkpoint:
    """What a run goes on from.

    Attributes:
        step: steps taken.
        metrics_size: bytes of the metrics at that time.
        extra: other numbers to go on with.
    """

    step: int
    metrics_size: int
    extra: dict[str, float]


def save(folder: Path, checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer) -> None:
    """Write a checkpoint, then delete the oldest."""
    state = optimizer.state_dict()
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    numbers: dict[str, dict[str, Any]] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{name}"] = value
            else:
                numbers.setdefault(str(index), {})[name] = value
    about = {
        "step": checkpoint.step,
        "metrics_size": checkpoint.metrics_size,
        "extra": checkpoint.extra,
        "numbers": numbers,
        "groups": state["param_groups"],
    }
    content = safetensors.torch.save(
        {name: value.detach().contiguous() for name, value in tensors.items()}, {"zoedge": json.dumps(about)}
    )
    digest = hashlib.sha256(content).hexdigest()[:16]
    write_atomically(folder / f"{checkpoint.step:010d}-{digest}.safetensors", content)
    for path in _files(folder)[:-_KEPT]:
        path.unlink(missing_ok=True)


def load(folder: Path, model: nn.Module, optimizer: Optimizer) -> tuple[Checkpoint | None, list[str]]:
    """Put model and optimizer to the newest checkpoint that is whole.

    Returns:
        The checkpoint, or ``None`` if there is none, and the names of those that are damaged.
    """
    damaged = []
    for path, content in _newest_first(folder):
        if content is None:
            damaged.append(path.name)
            continue
        tensors = safetensors.torch.load(content)
        with safetensors.safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["zoedge"])
        model.load_state_dict({name[6:]: value for name, value in tensors.items() if name.startswith("model.")})
        state: dict[int, dict[str, Any]] = {int(index): dict(values) for index, values in about["numbers"].items()}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, index, key = name.split(".", 2)
                state.setdefault(int(index), {})[key] = value
        groups = [
            {**group, **({"betas": tuple(group["betas"])} if "betas" in group else {})} for group in about["groups"]
        ]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
        return Checkpoint(about["step"], about["metrics_size"], about["extra"]), damaged
    return None, damaged


def _newest_first(folder: Path) -> Iterator[tuple[Path, bytes | None]]:
    """Checkpoints with their content, or ``None`` if it is not what its checksum says."""
    for path in reversed(_files(folder)):
        content = path.read_bytes()
        whole = hashlib.sha256(content).hexdigest()[:16] == path.stem.split("-")[1]
        yield path, content if whole else None


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*-*.safetensors"))
