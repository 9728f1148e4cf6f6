"""The losses, in the paper's convention: squared error is halved and summed over classes; both are means over examples.

Targets are class numbers; positions with a negative one do not count.
"""

from collections.abc import Callable

import torch
from torch import Tensor

IGNORED = -1


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """0.5 * sum over classes of (output - one-hot target)^2, mean over the examples (or positions) that count.

    Args:
        outputs: shape (..., classes).
        targets: shape (...).
    """
    counts = targets >= 0
    onehot = torch.nn.functional.one_hot(targets.clamp(min=0), outputs.shape[-1]).to(outputs.dtype)
    errors = 0.5 * (outputs - onehot).square().sum(-1)
    return (errors * counts).sum() / counts.sum()


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy, mean over the examples (or positions) that count; shapes as for ``squared``."""
    return torch.nn.functional.cross_entropy(outputs.flatten(0, -2), targets.flatten(), ignore_index=IGNORED)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"squared": squared, "cross-entropy": cross_entropy}
