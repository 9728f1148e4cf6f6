"""The problems on which step sizes are compared: networks of the presets, on data that fit in minutes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from zoedge.experiments import Data, Settings, Size, preset
from zoedge.experiments.objective import Objective, load_task
from zoedge.optim.loss import Closure
from zoedge.tasks import IGNORED, Task


@dataclass(frozen=True)
class Problem:
    """What is trained from loss values.

    Attributes:
        params: the parameters.
        batch: the loss on the data of a step, as a closure.
        evaluate: training loss and test accuracy.
    """

    params: Sequence[Tensor]
    batch: Callable[[int], Closure]
    evaluate: Callable[[], tuple[float, float]]


_DIGITS = Settings(model="mlp", data=Data(per_class=20), size=Size(width=32, depth=2))
SETTINGS = {
    "digits, squared": _DIGITS,
    "digits, cross-entropy": replace(_DIGITS, loss="cross-entropy"),
    "cifar10, vit": replace(
        preset("laptop", "vit", "zo-gd"), task="cifar10", data=Data(per_class=12, image_size=16)
    ),
    "cifar10, cnn": preset("laptop", "cnn", "zo-gd"),
    "sorting, lstm": preset("laptop", "lstm", "zo-gd"),
    "digits, batches of 32": replace(
        _DIGITS, loss="cross-entropy", data=Data(per_class=100), size=Size(width=64, depth=2), batch_size=32
    ),
}  # fmt: skip
# Forward passes of a run.
PASSES = {"sorting, lstm": 20_000, "digits, batches of 32": 16_000}
_PASSES = 10_000
# Test examples of each class, or sequences.
_TEST = 50


def passes(name: str) -> int:
    """Forward passes of a run on a problem."""
    return PASSES.get(name, _PASSES)


def problem(name: str, seed: int) -> Problem:
    """A problem with its initialization and batches."""
    settings = replace(SETTINGS[name], seed=seed, threads=1, device="cpu")
    objective = Objective(settings)
    test = _test_data(settings, objective.task)

    def batch(step: int) -> Closure:
        chunks = objective.batch(step)
        return lambda: objective.total(chunks)

    @torch.no_grad()
    def evaluate() -> tuple[float, float]:
        counts = test.targets != IGNORED
        right = objective.model(test.inputs).argmax(-1) == test.targets
        return float(objective()), float(right[counts].float().mean())

    return Problem(list(objective.model.parameters()), batch, evaluate)


def _test_data(settings: Settings, training: Task) -> Task:
    """Examples that are not trained on."""
    if settings.task == "sorting":
        return load_task(replace(settings, data=replace(settings.data, examples=_TEST * 10, seed=1)))
    trained = len(training) // training.classes
    both = load_task(replace(settings, data=replace(settings.data, per_class=trained + _TEST)))
    # The training set is the first examples of each class.
    later = torch.zeros(len(both), dtype=torch.bool)
    for number in range(both.classes):
        later[(both.targets == number).nonzero().flatten()[trained:]] = True
    return Task(both.name, both.inputs[later], both.targets[later], both.classes)
