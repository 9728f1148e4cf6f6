"""Handwritten digits of 8 x 8 pixels, which come with scikit-learn: nothing is downloaded."""

import torch

from zoedge.tasks.task import Task, pick, resize, standardize
from zoedge.theory import checks


def digits(classes: int = 10, per_class: int = 10, image_size: int = 8, seed: int | None = None) -> Task:
    """``per_class`` digits of each class, in grey, mean 0 and deviation 1 over all 1,797.

    Args:
        classes: digits 0 .. classes - 1, at most 10.
        per_class: examples of each, at most 174.
        image_size: 8, 4, 2 or 1 pixels.
        seed: of a random choice; by default the first of each class.
    """
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise ImportError("the digits come with scikit-learn: pip install 'zoedge[digits]'") from None
    checks.count("per_class", per_class)
    if checks.count("classes", classes, at_least=2) > 10:
        raise ValueError(f"classes must be at most 10, got {classes}")
    pixels, labels = (torch.from_numpy(array) for array in load_digits(return_X_y=True))
    images = pixels.float().view(-1, 1, 8, 8)
    images = resize(standardize(images, images.mean().view(1), images.std().view(1)), image_size)
    chosen = pick(labels, classes, per_class, seed)
    return Task("digits", images[chosen], labels[chosen].long(), classes)
