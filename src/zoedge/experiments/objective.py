"""The objective of a run: a loss that is evaluated fast, whole or in batches.

Images are laid out channels last, which CPUs convolve fastest. Data go through in chunks, whose losses are added
up in double precision: beyond some size of the activations a larger batch is no faster, and only takes more memory.
"""

import inspect
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from zoedge.experiments.settings import Settings
from zoedge.models import IMAGE_MODELS, TOKEN_MODELS
from zoedge.tasks import LOSSES, TASKS, Task

# The largest activation of a chunk, in bytes.
_CHUNK = 64 << 20
# Activations below this, in bytes, are no faster by several threads, and many times slower if a core is busy.
_ONE_THREAD = 4 << 20


class Objective:
    """The loss of a model on a task; call it for the loss on all data.

    Attributes:
        task: the data.
        model: the network.
        chunk: examples that go through at once.
        threads: of a CPU that it deserves.
    """

    def __init__(self, settings: Settings) -> None:
        device = _device(settings.device)
        self.task = load_task(settings).to(device)
        with torch.random.fork_rng():
            torch.manual_seed(settings.seed)
            self.model = build_model(settings, self.task).to(device)
        inputs = self.task.inputs
        if inputs.ndim == 4 and settings.model != "mlp":
            inputs = inputs.contiguous(memory_format=torch.channels_last)
            self.model = self.model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
        self._inputs, self._targets = inputs, self.task.targets
        self._loss = LOSSES[settings.loss]
        self._seed, self._batch_size = settings.seed, settings.batch_size
        if self._batch_size is not None and self._batch_size > len(self.task):
            raise ValueError(f"batch_size must be at most the {len(self.task)} examples, got {self._batch_size}")
        activation = self._largest_activation()
        self.chunk = len(self.task)
        if self._inputs.device.type == "cpu":
            self.chunk = max(1, min(len(self.task), _CHUNK // activation))
        self.threads = 1 if self.chunk * activation < _ONE_THREAD else os.cpu_count() or 1

    def __call__(self) -> Tensor:
        """The loss on all data; differentiable, if grad mode is on."""
        return self.total(self.chunks())

    def part(self, chunk: tuple[Tensor, Tensor]) -> Tensor:
        """The mean loss of one chunk."""
        return self._loss(self.model(chunk[0]), chunk[1])

    def total(self, chunks: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """The mean loss of several chunks."""
        size = sum(len(inputs) for inputs, _ in chunks)
        losses = [self.part(chunk).double() * (len(chunk[0]) / size) for chunk in chunks]
        return torch.stack(losses).sum()

    def chunks(self) -> list[tuple[Tensor, Tensor]]:
        """All data in chunks of inputs and targets."""
        return list(zip(self._inputs.split(self.chunk), self._targets.split(self.chunk), strict=True))

    def batch(self, step: int) -> list[tuple[Tensor, Tensor]]:
        """The chunks of a step: all data, or a batch drawn as a function of seed and step."""
        if self._batch_size is None:
            return self.chunks()
        generator = seeded_generator(self._seed, step, "batch", torch.device("cpu"))
        chosen = torch.randperm(len(self.task), generator=generator)[: self._batch_size].to(self._inputs.device)
        return list(zip(self._inputs[chosen].split(self.chunk), self._targets[chosen].split(self.chunk), strict=True))

    @torch.no_grad()
    def _largest_activation(self) -> int:
        """Bytes, for one example."""
        with _Largest() as largest:
            self.model(self._inputs[:1])
        return 4 * largest.numel


def seeded_generator(
    seed: int, step: int, purpose: Literal["batch", "probes"], device: torch.device
) -> torch.Generator:
    """A generator as a function of seed and step.

    PyTorch's takes 32 bits of its seed, and the rest of a longer one does not count: the three are mixed into those.
    """
    words = np.random.SeedSequence([seed, step, ("batch", "probes").index(purpose)]).generate_state(1)
    return torch.Generator(device).manual_seed(int(words[0]))


def load_task(settings: Settings) -> Task:
    """The data."""
    make, given = TASKS[settings.task], _given(settings.data)
    known = inspect.signature(make).parameters
    for name in given:
        if name not in known:
            raise ValueError(f"the task {settings.task} has no setting data.{name}: it has {', '.join(known)}")
    return make(**given)


def build_model(settings: Settings, task: Task) -> nn.Module:
    """The network for a task, initialised by the global generator."""
    images = task.inputs.ndim == 4
    models = IMAGE_MODELS if images else TOKEN_MODELS
    if settings.model not in models:
        raise ValueError(f"the model {settings.model} does not fit the task {settings.task}: use {', '.join(models)}")
    kind, given = models[settings.model], _given(settings.size)
    known = [name for name in inspect.signature(kind).parameters if name not in ("image_shape", "tokens", "classes")]
    for name in given:
        if name not in known:
            raise ValueError(f"the model {settings.model} has no setting size.{name}: it has {', '.join(known)}")
    return kind(task.inputs.shape[1:] if images else task.classes, task.classes, **given)


def _given(settings: Any) -> dict[str, Any]:
    return {name: value for name, value in asdict(settings).items() if value is not None}


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        float(torch.zeros((), device=device))
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {name!r} cannot be used: {str(error).splitlines()[0]}") from None
    return device


class _Largest(TorchDispatchMode):
    """The size of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.numel = 1

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            # Parameters in another layout are no activations.
            if isinstance(value, Tensor) and not any(value is arg for arg in args) and value.ndim > 0:
                self.numel = max(self.numel, value.numel() if value.shape[0] == 1 else 1)
        return result
