"""A task: inputs, targets, and the number of classes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from zoedge.theory import checks


@dataclass(frozen=True)
class Task:
    """Data to train on.

    Attributes:
        name: of the task.
        inputs: images of shape (n, channels, height, width), float32, or tokens of shape (n, length), int64.
        targets: class numbers, shape (n,), or for every position (n, length), ``IGNORED`` where it does not count.
        classes: number of classes.
    """

    name: str
    inputs: Tensor
    targets: Tensor
    classes: int

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device) -> "Task":
        """The same task on a device."""
        return Task(self.name, self.inputs.to(device), self.targets.to(device), self.classes)


def pick(labels: Tensor, classes: int, per_class: int, seed: int | None) -> Tensor:
    """Numbers of ``per_class`` examples of each of the first ``classes`` classes, in their order.

    The first ones of each class, or, with a seed, random ones.
    """
    order = torch.arange(len(labels))
    if seed is not None:
        order = torch.randperm(len(labels), generator=seeded(seed))
    found = [order[labels[order] == c][:per_class] for c in range(classes)]
    short = min(len(numbers) for numbers in found)
    if short < per_class:
        raise ValueError(f"there are only {short} examples of some class, but {per_class} were asked for")
    return torch.cat(found).sort().values


def seeded(seed: int) -> torch.Generator:
    """A generator of its own for the data."""
    return torch.Generator().manual_seed(checks.count("seed", seed, at_least=0))


def standardize(images: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Images with mean 0 and standard deviation 1 for every channel, shape (n, channels, height, width)."""
    return (images - mean.view(1, -1, 1, 1)) / deviation.view(1, -1, 1, 1)


def resize(images: Tensor, size: int) -> Tensor:
    """Images averaged over squares to size x size."""
    factor, rest = divmod(images.shape[-1], size)
    if rest or factor < 1:
        raise ValueError(f"image_size must divide {images.shape[-1]}, got {size}")
    return torch.nn.functional.avg_pool2d(images, factor)
