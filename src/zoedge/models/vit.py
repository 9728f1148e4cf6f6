"""A vision transformer with fixed positions and mean pooling."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class ViT(nn.Module):
    """Patches, blocks of attention and MLP with LayerNorm before each, LayerNorm, the mean over patches, and a head.

    Args:
        image_shape: (channels, height, width).
        classes: number of outputs.
        width: of the embedding.
        depth: number of blocks.
        heads: of attention.
        hidden: width of the MLPs, by default four times the embedding's.
        patch: pixels of a patch's side.
    """

    def __init__(
        self,
        image_shape: Sequence[int],
        classes: int,
        width: int = 64,
        depth: int = 3,
        heads: int = 8,
        hidden: int | None = None,
        patch: int = 4,
    ) -> None:
        super().__init__()
        channels, height, breadth = image_shape
        if height % patch or breadth % patch:
            raise ValueError(f"patch must divide the image of {height} x {breadth}, got {patch}")
        if width % heads or width % 4:
            raise ValueError(f"width must be a multiple of 4 and of the {heads} heads, got {width}")
        self.embedding = nn.Conv2d(channels, width, patch, stride=patch)
        self.register_buffer("positions", sine_cosine(height // patch, breadth // patch, width), persistent=False)
        self.blocks = nn.Sequential(*(Block(width, heads, hidden or 4 * width) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Outputs, shape (n, classes)."""
        tokens = self.embedding(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class Block(nn.Module):
    """Attention and MLP, each with LayerNorm before it and a shortcut around it."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries_keys_values, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, tokens, width)."""
        n, tokens, width = x.shape
        projected = self.queries_keys_values(self.attention_norm(x)).view(n, tokens, 3, self.heads, -1)
        q, k, v = projected.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, tokens, width)
        x = x + self.mix(attended)
        return x + self.down(gelu(self.up(self.mlp_norm(x))))


def sine_cosine(rows: int, columns: int, width: int) -> Tensor:
    """Fixed positions, shape (rows * columns, width): sines and cosines of the row, then of the column."""
    frequencies = 10_000.0 ** -(torch.arange(width // 4) / (width // 4))
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    angles = [place.reshape(-1, 1) * frequencies for place in (row, column)]
    return torch.cat([function(angle) for angle in angles for function in (torch.sin, torch.cos)], 1)
