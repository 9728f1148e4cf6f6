"""Moving parameters from x to x + mu u, to x - mu u, and back to x, exactly.

Adding and subtracting in place drifts: rounding loses bits of x, step after step. Two ways to lose nothing:

- ``Copied`` keeps a copy of the parameters for the time of the step.
- ``Replayed`` keeps only what rounding loses. Where (x + a u) - a u gives back x, which is nearly everywhere as long
  as a u is small beside x, there is nothing to keep; elsewhere the entry and its place are kept.

Both visit the same points to the last bit. Arithmetic is in float32, or float64 for float64 parameters; results are
rounded to the parameter's dtype.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoedge.optim.directions import PIECE, Direction, Piece, pieces

# new(number of the parameter, number and slice of the piece, its x, out): writes the new value into out.
Update = Callable[[int, int, slice, Tensor, Tensor], object]
# Number of a parameter and of a piece of it.
Place = tuple[int, int]


class Moves:
    """Where the parameters are; the subclasses know how to find back.

    Args:
        params: the parameters that move, by their number.
    """

    def __init__(self, params: dict[int, Tensor]) -> None:
        self._params = params

    def move(self, direction: Direction, amount: float) -> None:
        """Go to x + amount * u, from wherever the parameters are."""
        for i, p in self._params.items():
            with _flat(p) as flat:
                for k, at in enumerate(pieces(len(flat))):
                    here = flat[at]
                    self._leave((i, k), self._centre((i, k), here), here, direction[i][k], amount)

    def back(self) -> None:
        """Go back to x."""
        self.update(lambda i, k, at, x, out: out.copy_(x))

    def update(self, new: Update) -> None:
        """Set every piece to what ``new`` makes of x."""
        for i, p in self._params.items():
            with _flat(p) as flat:
                for k, at in enumerate(pieces(len(flat))):
                    new(i, k, at, self._centre((i, k), flat[at]), flat[at])
                    self._arrived((i, k))

    def _centre(self, place: Place, here: Tensor) -> Tensor:
        """The exact x of a piece whose entries are ``here`` now."""
        raise NotImplementedError

    def _leave(self, place: Place, x: Tensor, here: Tensor, piece: Piece, amount: float) -> None:
        """Set ``here`` to x + amount * u and remember how to find back."""
        raise NotImplementedError

    def _arrived(self, place: Place) -> None:
        """Forget the way: the piece has a new x."""
        raise NotImplementedError


class Copied(Moves):
    """Parameters with a copy of them.

    Args:
        params: the parameters that move, by their number.
        copies: buffers, filled here; the same dictionary in the next step saves their allocation.
    """

    def __init__(self, params: dict[int, Tensor], copies: dict[tuple, Tensor]) -> None:
        super().__init__(params)
        self._copies = copies
        self._saved: set[Place] = set()

    def _centre(self, place: Place, here: Tensor) -> Tensor:
        return self._copies[place] if place in self._saved else here

    def _leave(self, place: Place, x: Tensor, here: Tensor, piece: Piece, amount: float) -> None:
        if place not in self._saved:
            copy = self._copies.get(place)
            if copy is None or (copy.shape, copy.dtype, copy.device) != (x.shape, x.dtype, x.device):
                copy = self._copies[place] = torch.empty_like(x)
            x = copy.copy_(x)
            self._saved.add(place)
        piece.add_to(x, amount, out=here)

    def _arrived(self, place: Place) -> None:
        self._saved.discard(place)


class _Way(NamedTuple):
    """How to find back: the piece of u, how far one went, and the entries that rounding loses."""

    piece: Piece
    amount: float
    places: Tensor | slice
    values: Tensor


class Replayed(Moves):
    """Parameters with a list of the entries that the way back does not lead to.

    Args:
        params: the parameters that move, by their number.
        scratch: buffers for one piece, filled here; the same dictionary in the next step saves their allocation.
    """

    def __init__(self, params: dict[int, Tensor], scratch: dict[tuple, Tensor]) -> None:
        super().__init__(params)
        self._scratch = scratch
        self._ways: dict[Place, _Way] = {}

    def _centre(self, place: Place, here: Tensor) -> Tensor:
        x = self._like(here, "x").copy_(here)
        way = self._ways.get(place)
        if way is not None:
            way.piece.add_to(x, -way.amount, out=x)
            x[way.places if isinstance(way.places, slice) else way.places.long()] = way.values
        return x

    def _leave(self, place: Place, x: Tensor, here: Tensor, piece: Piece, amount: float) -> None:
        try:
            piece.add_to(x, amount, out=here)
            lost = _differing(piece.add_to(here, -amount, out=self._like(here, "back")), x)
            if len(lost) * (4 + x.element_size()) > x.nbytes:
                self._ways[place] = _Way(piece, amount, slice(None), x.clone())
            else:
                # int32 holds a place in a piece at half the memory.
                self._ways[place] = _Way(piece, amount, lost.to(torch.int32), x[lost])
        except BaseException:  # out of memory, most likely: x is still at hand
            here.copy_(x)
            self._ways.pop(place, None)
            raise

    def _arrived(self, place: Place) -> None:
        self._ways.pop(place, None)

    def _like(self, x: Tensor, name: str) -> Tensor:
        """A buffer for a piece. Fresh ones between the small lists that stay would leave the memory full of holes."""
        key = (name, x.dtype, x.device)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(PIECE, dtype=x.dtype, device=x.device)
        return self._scratch[key][: len(x)]


@contextmanager
def _flat(p: Tensor) -> Iterator[Tensor]:
    """A parameter as a flat tensor in its logical order; one of another memory layout is written back at the end."""
    if p.is_contiguous():
        yield p.view(-1)
        return
    flat = p.contiguous().view(-1)
    try:
        yield flat
    finally:
        p.copy_(flat.view(p.shape))


def _differing(a: Tensor, b: Tensor) -> Tensor:
    """Places at which the bits of two tensors differ."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    a, b = a.view(bits), b.view(bits)
    if a.device.type == "cpu":  # NumPy is three times as fast here
        return torch.from_numpy(np.flatnonzero(a.numpy() != b.numpy()))
    return torch.nonzero(a != b).view(-1)
