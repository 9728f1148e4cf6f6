"""Search directions as a function of (seed, step, query), without a buffer of the size of the parameters.

Drawing a normal number takes longer than everything else a step does to a parameter. Up to INDEPENDENT parameters
each gets a number of its own. Beyond, a fresh pool of POOL numbers is drawn for every direction, and each piece of the
parameters is a window of the pool at a random offset with a random sign:

    u[piece] = sign * pool[offset : offset + len(piece)]

Every entry is then exactly distributed as it should be, different entries are uncorrelated, and the fourth moment
E[u u^T A u u^T], which is what stability depends on, differs from that of independent entries by a relative
2 / POOL = 4e-6. Directions of different steps and queries are independent.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

INDEPENDENT = 1 << 20
POOL = 1 << 19
PIECE = 1 << 18
# Numbers drawn from one seed: PyTorch's CPU generator takes 32 bits of a seed only, so a pool takes several.
BLOCK = 1 << 16
# Bytes as rows of eight signs.
_SIGNS = (np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1) * 2.0 - 1.0).astype(np.float32)


def pieces(size: int) -> list[slice]:
    """The slices that a parameter of this size is cut into."""
    return [slice(start, min(start + PIECE, size)) for start in range(0, size, PIECE)]


class Piece(NamedTuple):
    """Part of a direction: u[start : start + len(window)] = scale * window, in a parameter's flattened order."""

    start: int
    window: Tensor
    scale: float


class Direction:
    """A direction u over parameters of the given sizes.

    Args:
        kind: ``"gaussian"``, ``"sphere"`` (of radius sqrt(d), over all parameters together) or ``"rademacher"``.
        sizes: number of entries of every parameter; a frozen one counts, so that freezing leaves the others' noise.
        active: which parameters move.
        key: (seed, step, query).
        device: where the parameters are.
    """

    def __init__(
        self, kind: str, sizes: Sequence[int], active: Sequence[bool], key: tuple[int, ...], device: torch.device
    ) -> None:
        self._random = np.random.Generator(np.random.SFC64(key))
        self._device = device
        total = sum(sizes)
        independent = total <= INDEPENDENT
        length = total if independent else POOL
        # The head is repeated behind the end, so that windows need not wrap around.
        pool = torch.empty(length + (0 if independent else PIECE), device=device)
        (self._signs if kind == "rademacher" else self._normals)(pool[:length])
        pool[length:] = pool[: len(pool) - length]

        slices = [pieces(size) for size in sizes]
        lengths = [at.stop - at.start for row in slices for at in row]
        if independent:
            offsets = np.cumsum([0, *lengths[:-1]])
            signs = np.ones(len(lengths))
        else:
            offsets = self._random.integers(0, length, len(lengths))
            signs = self._random.choice((-1.0, 1.0), len(lengths))
        windows = iter(zip(offsets.tolist(), lengths, signs.tolist(), strict=True))
        self._pieces = [
            [Piece(at.start, pool[offset : offset + n], sign) for at, (offset, n, sign) in zip(row, windows)]  # noqa: B905
            for row in slices
        ]

        if kind == "sphere":
            moving = [piece.window for row, moves in zip(self._pieces, active, strict=True) if moves for piece in row]
            square = sum(float(torch.linalg.vector_norm(w, dtype=torch.float64)) ** 2 for w in moving)
            radius = (sum(size for size, moves in zip(sizes, active, strict=True) if moves) / square) ** 0.5
            self._pieces = [[piece._replace(scale=piece.scale * radius) for piece in row] for row in self._pieces]

    def __getitem__(self, parameter: int) -> list[Piece]:
        return self._pieces[parameter]

    def dense(self, parameter: int) -> Tensor:
        """The direction's part of one parameter as a flat float64 tensor."""
        parts = [piece.window.double() * piece.scale for piece in self[parameter]]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64, device=self._device)

    def _normals(self, out: Tensor) -> None:
        for block, generator in self._blocks(out):
            block.normal_(generator=generator)

    def _signs(self, out: Tensor) -> None:
        rows = torch.from_numpy(_SIGNS).to(self._device)
        for block, generator in self._blocks(out):
            count = -(-len(block) // 8)
            octets = torch.randint(0, 256, (count,), generator=generator, device=self._device)
            block.copy_(rows[octets].view(-1)[: len(block)])

    def _blocks(self, out: Tensor) -> Iterator[tuple[Tensor, torch.Generator]]:
        generator = torch.Generator(self._device)
        blocks = out.split(BLOCK)
        for block, seed in zip(blocks, self._random.integers(0, 1 << 32, len(blocks)).tolist(), strict=True):
            yield block, generator.manual_seed(seed)
