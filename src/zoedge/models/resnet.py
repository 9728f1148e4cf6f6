"""ResNet-20 with GELU and GroupNorm."""

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import gelu


class ResNet20(nn.Module):
    """A convolution, three stages of residual blocks with 1, 2 and 4 times the width, the mean, a linear layer.

    Args:
        image_shape: (channels, height, width).
        classes: number of outputs.
        width: channels of the first stage.
        depth: blocks in each stage; 3 make 20 layers.
        groups: of GroupNorm.
    """

    def __init__(
        self, image_shape: Sequence[int], classes: int, width: int = 16, depth: int = 3, groups: int = 4
    ) -> None:
        super().__init__()
        if width % groups:
            raise ValueError(f"groups must divide the width {width}, got {groups}")
        self.stem = nn.Conv2d(image_shape[0], width, 3, padding=1, bias=False)
        self.norm = nn.GroupNorm(groups, width)
        widths = [width] * depth + [2 * width] * depth + [4 * width] * depth
        befores = [width, *widths[:-1]]
        self.blocks = nn.Sequential(*(Block(a, b, groups) for a, b in zip(befores, widths, strict=True)))
        self.head = nn.Linear(4 * width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Outputs, shape (n, classes)."""
        return self.head(self.blocks(gelu(self.norm(self.stem(images)))).mean((2, 3)))


class Block(nn.Module):
    """Two convolutions and a shortcut, which is a strided convolution where the width doubles."""

    def __init__(self, before: int, after: int, groups: int) -> None:
        super().__init__()
        self.stride = 1 if before == after else 2
        self.first = nn.Conv2d(before, after, 3, self.stride, padding=1, bias=False)
        self.first_norm = nn.GroupNorm(groups, after)
        self.second = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.second_norm = nn.GroupNorm(groups, after)
        self.shortcut = nn.Identity() if before == after else nn.Conv2d(before, after, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, after, height / stride, width / stride)."""
        hidden = gelu(self.first_norm(self.first(x)))
        # A 1 x 1 convolution with a stride corrupts memory for few channels that are laid out last (oneDNN issue 6035).
        return gelu(self.second_norm(self.second(hidden)) + self.shortcut(x[..., :: self.stride, :: self.stride]))
