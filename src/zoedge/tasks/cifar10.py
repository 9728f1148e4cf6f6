"""CIFAR-10, by default the paper's subset: the first 250 training images of each of classes 0-3."""

from pathlib import Path

import torch

from zoedge.tasks.cifar10_files import training_images
from zoedge.tasks.task import Task, pick, resize, standardize
from zoedge.theory import checks


def cifar10(
    classes: int = 4,
    per_class: int = 250,
    image_size: int = 32,
    seed: int | None = None,
    folder: Path | None = None,
) -> Task:
    """``per_class`` training images of each class, standardized by the whole training set.

    Args:
        classes: 0 .. classes - 1, at most 10.
        per_class: images of each, at most 5,000.
        image_size: 32, 16, 8, ... pixels; smaller than 32 by averaging over squares.
        seed: of a random choice; by default the first of each class.
        folder: with the files of CIFAR-10; by default the cache, else they are downloaded.
    """
    checks.count("per_class", per_class)
    if checks.count("classes", classes, at_least=2) > 10:
        raise ValueError(f"classes must be at most 10, got {classes}")
    pixels, labels = (torch.from_numpy(array) for array in training_images(folder))
    values = pixels.view(-1, 3)
    # Over 51,200,000 pixels float32 sums would round: exact integer counts of the 256 values instead.
    levels = torch.arange(256, dtype=torch.float64) / 255
    shares = torch.stack([torch.bincount(values[:, c], minlength=256) / len(values) for c in range(3)]).double()
    mean = shares @ levels
    deviation = (shares @ levels.square() - mean.square()).sqrt()
    chosen = pick(labels, classes, per_class, seed)
    images = pixels[chosen].permute(0, 3, 1, 2).float() / 255
    images = resize(standardize(images, mean.float(), deviation.float()), image_size)
    return Task("cifar10", images.contiguous(), labels[chosen].long(), classes)
