"""The paper's convolutional network, without normalization."""

from collections.abc import Sequence

from torch import Tensor, nn


class CNN(nn.Module):
    """Two convolutions, each with GELU and average pooling, then two linear layers; one bias, in the last.

    With the paper's settings (32 x 32 colour images, 4 classes, width 32) it has 544,100 parameters.

    Args:
        image_shape: (channels, height, width).
        classes: number of outputs.
        width: channels of the first convolution; the second has twice as many.
        hidden: width of the linear layer.
    """

    def __init__(self, image_shape: Sequence[int], classes: int, width: int = 32, hidden: int = 128) -> None:
        super().__init__()
        channels, height, breadth = image_shape
        if min(height, breadth) < 4:
            raise ValueError(f"the images are {height} x {breadth}, too small for two poolings: 4 x 4 at least")
        self.features = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding="same", bias=False),
            nn.GELU(),
            nn.AvgPool2d(2),
            nn.Conv2d(width, 2 * width, 3, padding="same", bias=False),
            nn.GELU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Linear(2 * width * (height // 4) * (breadth // 4), hidden, bias=False),
            nn.GELU(),
            nn.Linear(hidden, classes),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Outputs, shape (n, classes)."""
        return self.head(self.features(images))
