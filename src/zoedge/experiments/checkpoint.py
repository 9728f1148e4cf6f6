"""Checkpoints: the parts of a run at a step, in safetensors, with their checksum in the file's name."""

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import safetensors
import safetensors.torch
from torch import Tensor

from zoedge.experiments.folder import write_atomically

# The one before is there if the last is damaged.
_KEPT = 2


class Stateful(Protocol):
    """A model, an optimizer, a scheduler."""

    def state_dict(self) -> Any:
        """Nested dictionaries, lists and tuples of tensors and plain values."""

    def load_state_dict(self, state_dict: Any, /) -> Any:
        """Go on from there."""


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


def save(folder: Path, checkpoint: Checkpoint, **parts: Stateful) -> None:
    """Write a checkpoint of the parts of a run, each by its name, then delete the oldest."""
    tensors: dict[str, Tensor] = {}
    about = {
        "step": checkpoint.step,
        "metrics_size": checkpoint.metrics_size,
        "extra": checkpoint.extra,
        "parts": {name: _take_out(name, part.state_dict(), tensors) for name, part in parts.items()},
    }
    content = safetensors.torch.save(tensors, {"zoedge": json.dumps(about)})
    digest = hashlib.sha256(content).hexdigest()[:16]
    write_atomically(folder / f"{checkpoint.step:010d}-{digest}.safetensors", content)
    for path in _files(folder)[:-_KEPT]:
        path.unlink(missing_ok=True)


def load(folder: Path, metrics_size: float = math.inf, **parts: Stateful) -> tuple[Checkpoint | None, list[str]]:
    """Put the parts of a run to the newest checkpoint that is whole, in the order given.

    Args:
        folder: of the checkpoints.
        metrics_size: bytes of the metrics that there are; a checkpoint that counts on more is of no use.
        parts: by their names.

    Returns:
        The checkpoint, or ``None`` if there is none, and the names of those that are damaged, or of no use.
    """
    unusable = []
    for path, content in _newest_first(folder):
        if content is not None:
            with safetensors.safe_open(path, framework="pt") as file:
                about = json.loads(file.metadata()["zoedge"])
            if about["metrics_size"] <= metrics_size:
                tensors = safetensors.torch.load(content)
                try:
                    for name, part in parts.items():
                        part.load_state_dict(_put_in(about["parts"][name], tensors))
                except (KeyError, RuntimeError) as error:
                    reason = str(error).splitlines()[0]
                    raise ValueError(f"{path} does not fit the settings of its run: {reason}") from None
                return Checkpoint(about["step"], about["metrics_size"], about["extra"]), unusable
        unusable.append(path.name)
    return None, unusable


def _take_out(name: str, state: Any, tensors: dict[str, Tensor]) -> Any:
    """A state as JSON can hold it: containers as pairs of kind and content, tensors by their name."""
    if isinstance(state, Tensor):
        tensors[name] = state.detach().contiguous().clone()
        return ["tensor", name]
    if isinstance(state, dict):
        return ["dict", [[key, _take_out(f"{name}.{key}", value, tensors)] for key, value in state.items()]]
    if isinstance(state, list | tuple):
        values = [_take_out(f"{name}.{i}", value, tensors) for i, value in enumerate(state)]
        return [type(state).__name__, values]
    return state


def _put_in(state: Any, tensors: dict[str, Tensor]) -> Any:
    match state:
        case ["tensor", name]:
            return tensors[name]
        case ["dict", pairs]:
            return {key: _put_in(value, tensors) for key, value in pairs}
        case ["list", values]:
            return [_put_in(value, tensors) for value in values]
        case ["tuple", values]:
            return tuple(_put_in(value, tensors) for value in values)
        case _:
            return state


def _newest_first(folder: Path) -> Iterator[tuple[Path, bytes | None]]:
    """Checkpoints with their content, or ``None`` if it is not what its checksum says."""
    for path in reversed(_files(folder)):
        content = path.read_bytes()
        whole = hashlib.sha256(content).hexdigest()[:16] == path.stem.split("-")[1]
        yield path, content if whole else None


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("[0-9]*-*.safetensors"))
