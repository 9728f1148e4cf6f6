"""A multilayer perceptron."""

import itertools
import math
from collections.abc import Sequence

from torch import Tensor, nn


class MLP(nn.Module):
    """Flattened images through GELU layers of one width.

    Args:
        image_shape: (channels, height, width).
        classes: number of outputs.
        width: of the hidden layers.
        depth: number of hidden layers.
    """

    def __init__(self, image_shape: Sequence[int], classes: int, width: int = 128, depth: int = 2) -> None:
        super().__init__()
        widths = [math.prod(image_shape), *[width] * depth]
        layers = [m for a, b in itertools.pairwise(widths) for m in (nn.Linear(a, b), nn.GELU())]
        self.layers = nn.Sequential(nn.Flatten(), *layers, nn.Linear(widths[-1], classes))

    def forward(self, images: Tensor) -> Tensor:
        """Outputs, shape (n, classes)."""
        return self.layers(images)
