"""Search directions as a function of (seed, step, query), without a buffer of the size of the parameters.

Drawing a normal number takes longer than everything else a step does to a parameter. Up to INDEPENDENT parameters
each gets a number of its own. Beyond, a fresh pool of POOL numbers and one of as many signs are drawn for every
direction, and each piece of the parameters is the product of a window of either at a random offset:

    u[piece] = pool[a : a + len(piece)] * signs[b : b + len(piece)]

Every entry is then exactly distributed as it should be and different entries are uncorrelated. Two pieces whose
windows of the pool overlap share sizes, not signs, so that of all fourth moments only E[u_i^2 u_j^2] changes, by a
relative 2 / POOL on average; E[u u^T A u u^T], on which stability depends, keeps its form. Directions of different
steps and queries are independent.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
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
    """Part of a direction: u = scale * window * signs, or scale * window, in a parameter's flattened order."""

    window: Tensor
    signs: Tensor | None
    scale: float

    def add_to(self, x: Tensor, amount: float, out: Tensor) -> Tensor:
        """Write x + amount * u into ``out``, rounded to its dtype."""
        if self.signs is None:
            return torch.add(x, self.window, alpha=amount * self.scale, out=out)
        return torch.addcmul(x, self.window, self.signs, value=amount * self.scale, out=out)

    def add_square_to(self, x: Tensor, amount: float) -> None:
        """x += amount * u^2, in which signs do not matter."""
        x.addcmul_(self.window, self.window, value=amount * self.scale**2)

    def dense(self) -> Tensor:
        """u in float64."""
        signs = 1.0 if self.signs is None else self.signs
        return self.window.double() * self.scale * signs


class Direction:
    """A direction u over parameters of the given sizes.

    Args:
        kind: ``"gaussian"``, ``"sphere"`` (of radius sqrt(d), over all parameters together) or ``"rademacher"``.
        sizes: number of entries of every parameter; a frozen one counts, so that freezing leaves the others' noise.
        active: which parameters move.
        key: (seed, step, query), each below 2^32.
        device: where the parameters are.
    """

    def __init__(
        self, kind: str, sizes: Sequence[int], active: Sequence[bool], key: tuple[int, ...], device: torch.device
    ) -> None:
        self._random = np.random.Generator(np.random.SFC64(key))
        self._device = device
        draw = self._draw_signs if kind == "rademacher" else self._draw_normals
        self._pieces = self._independent(sizes, draw) if sum(sizes) <= INDEPENDENT else self._pooled(sizes, draw)
        if kind == "sphere":
            moving = [piece for row, moves in zip(self._pieces, active, strict=True) if moves for piece in row]
            # Short sums in float32, a long one in float64.
            square = sum(float(part.square().sum()) for piece in moving for part in piece.window.split(1 << 12))
            radius = (sum(len(piece.window) for piece in moving) / square) ** 0.5 if square else 1.0
            self._pieces = [[piece._replace(scale=radius) for piece in row] for row in self._pieces]

    def _independent(self, sizes: Sequence[int], draw: Callable[[Tensor], None]) -> list[list[Piece]]:
        rows = torch.empty(sum(sizes), device=self._device).split(list(sizes))
        for row in rows:
            draw(row)
        return [[Piece(row[at], None, 1.0) for at in pieces(len(row))] for row in rows]

    def _pooled(self, sizes: Sequence[int], draw: Callable[[Tensor], None]) -> list[list[Piece]]:
        # The head is repeated behind the end, so that windows need not wrap around.
        pool, signs = (torch.empty(POOL + PIECE, device=self._device) for _ in range(2))
        draw(pool[:POOL])
        self._draw_signs(signs[:POOL])
        for numbers in (pool, signs):
            numbers[POOL:] = numbers[:PIECE]
        found = []
        for size in sizes:
            slices = pieces(size)
            offsets = self._random.integers(0, POOL, (len(slices), 2)).tolist()
            lengths = [at.stop - at.start for at in slices]
            found.append(
                [Piece(pool[a : a + n], signs[b : b + n], 1.0) for n, (a, b) in zip(lengths, offsets, strict=True)]
            )
        return found

    def __getitem__(self, parameter: int) -> list[Piece]:
        return self._pieces[parameter]

    def scaled(self, factors: Sequence[Tensor | None]) -> "Direction":
        """The direction times a diagonal: flat factors for every parameter, ``None`` for those that do not move."""
        result = copy.copy(self)
        result._pieces = [
            []
            if factor is None
            else [
                Piece((piece.dense() * part).to(factor.dtype), None, 1.0)
                for piece, part in zip(row, factor.split(PIECE), strict=True)
            ]
            for row, factor in zip(self._pieces, factors, strict=True)
        ]
        return result

    def dense(self, parameter: int) -> Tensor:
        """The direction's part of one parameter as a flat float64 tensor."""
        parts = [piece.dense() for piece in self[parameter]]
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.float64, device=self._device)

    def _draw_normals(self, out: Tensor) -> None:
        for block, generator in self._blocks(out):
            block.normal_(generator=generator)

    def _draw_signs(self, out: Tensor) -> None:
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
