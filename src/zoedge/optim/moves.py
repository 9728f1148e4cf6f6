"""Moving parameters to x + a u and back, exactly.

Adding and subtracting a u in place drifts: rounding loses bits of x, step after step. Two ways to lose nothing:

- ``Copied`` keeps a copy of the parameters for the time of the step.
- ``Replayed`` keeps only what rounding loses. Where (x + a u) - a u gives back x, which is nearly everywhere as long as
  a u is small beside x, there is nothing to keep; elsewhere the entry and its place are kept.

Both give the same bits. Arithmetic is in float32, or float64 for float64 parameters; results are rounded to the
parameter's dtype.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoedge.optim.directions import Direction, Piece, pieces

# new(number of the parameter, slice of the piece, its x, out): writes the new value of the piece into out.
Update = Callable[[int, slice, Tensor, Tensor], object]


class Copied:
    """Parameters with a copy of them.

    Args:
        params: the parameters that move, by their number.
        copies: buffers, filled here; the same dictionary in the next step saves their allocation.
    """

    def __init__(self, params: dict[int, Tensor], copies: dict[int, Tensor]) -> None:
        self._params, self._copies = params, copies
        self._saved: set[tuple[int, int]] = set()
        for i, p in params.items():
            copy = copies.get(i)
            if copy is None or (copy.numel(), copy.dtype, copy.device) != (p.numel(), p.dtype, p.device):
                copies[i] = torch.empty(p.numel(), dtype=p.dtype, device=p.device)

    def move(self, direction: Direction, amount: float) -> None:
        """Bring the parameters to x + amount * u, from wherever they are."""
        for i, p in self._params.items():
            with _Flat(p) as flat:
                for piece in direction[i]:
                    here = flat[_slice(piece)]
                    _shift(self._centre(i, _slice(piece), here), piece, amount, out=here)

    def back(self) -> None:
        """Bring the parameters back to x."""
        for i, p in self._params.items():
            with _Flat(p) as flat:
                for at in pieces(len(flat)):
                    flat[at].copy_(self._centre(i, at, flat[at]))
        self._saved.clear()

    def update(self, new: Update) -> None:
        """Set every piece to what ``new`` makes of x."""
        for i, p in self._params.items():
            with _Flat(p) as flat:
                for at in pieces(len(flat)):
                    new(i, at, self._centre(i, at, flat[at]), flat[at])
        self._saved.clear()

    def _centre(self, i: int, at: slice, here: Tensor) -> Tensor:
        """The exact x of a piece whose entries are ``here`` now."""
        x = self._copies[i][at]
        if (i, at.start) not in self._saved:
            x.copy_(here)
            self._saved.add((i, at.start))
        return x


class Replayed:
    """Parameters with a list of the entries that cannot be recovered by subtracting what was added.

    Args:
        params: the parameters that move, by their number.
    """

    def __init__(self, params: dict[int, Tensor]) -> None:
        self._params = params
        self._moved: dict[tuple[int, int], _Moved] = {}

    def move(self, direction: Direction, amount: float) -> None:
        """Bring the parameters to x + amount * u, from wherever they are."""
        for i, p in self._params.items():
            with _Flat(p) as flat:
                for k, piece in enumerate(direction[i]):
                    here = flat[_slice(piece)]
                    x = self._centre(i, k, here)
                    _shift(x, piece, amount, out=here)
                    places = _differing(_shift(here, piece, -amount), x)
                    # int32 holds a place in a piece at half the memory.
                    self._moved[i, k] = _Moved(piece, amount, places.to(torch.int32), x[places])

    def back(self) -> None:
        """Bring the parameters back to x."""
        self.update(lambda i, at, x, out: out.copy_(x))

    def update(self, new: Update) -> None:
        """Set every piece to what ``new`` makes of x."""
        for i, p in self._params.items():
            with _Flat(p) as flat:
                for k, at in enumerate(pieces(len(flat))):
                    x = self._centre(i, k, flat[at])
                    new(i, at, x, flat[at])
                    self._moved.pop((i, k), None)

    def _centre(self, i: int, k: int, here: Tensor) -> Tensor:
        """The exact x of a piece whose entries are ``here`` now."""
        moved = self._moved.get((i, k))
        if moved is None:
            return here.clone()
        x = _shift(here, moved.piece, -moved.amount)
        x[moved.places.long()] = moved.values
        return x


class _Moved(NamedTuple):
    """How a piece was moved, and the entries that subtracting does not give back."""

    piece: Piece
    amount: float
    places: Tensor
    values: Tensor


def _slice(piece: Piece) -> slice:
    return slice(piece.start, piece.start + len(piece.window))


def _shift(x: Tensor, piece: Piece, amount: float, out: Tensor | None = None) -> Tensor:
    """x + amount * u, rounded to the dtype of x."""
    out = torch.empty_like(x) if out is None else out
    return torch.add(x, piece.window, alpha=amount * piece.scale, out=out)


def _differing(a: Tensor, b: Tensor) -> Tensor:
    """Places at which the bits of two tensors differ."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    a, b = a.view(bits), b.view(bits)
    if a.device.type == "cpu":  # NumPy is three times as fast here
        return torch.from_numpy(np.flatnonzero(a.numpy() != b.numpy()))
    return torch.nonzero(a != b).view(-1)


class _Flat:
    """A parameter as a flat tensor in its logical order; one of another memory layout is written back at the end."""

    def __init__(self, p: Tensor) -> None:
        self._p = p
        self._flat = p.view(-1) if p.is_contiguous() else p.contiguous().view(-1)

    def __enter__(self) -> Tensor:
        return self._flat

    def __exit__(self, *_: object) -> None:
        if not self._p.is_contiguous():
            self._p.copy_(self._flat.view(self._p.shape))
