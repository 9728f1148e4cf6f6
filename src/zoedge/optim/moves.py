"""Moving parameters from x to x + mu u, to x - mu u, and back to x, exactly.

Adding and subtracting in place drifts: rounding loses bits of x, step after step. Two ways to lose nothing:

- ``Copied`` keeps a copy of the parameters for the time of the step.
- ``Replayed`` keeps only what rounding loses. Where (x + a u) - a u gives back x, which is nearly everywhere as long
  as a u is small beside x, there is nothing to keep; elsewhere the entry and its place are kept.

Both visit the same points to the last bit. Arithmetic is in float32, or float64 for float64 parameters; results are
rounded to the parameter's dtype.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from zoedge.optim.directions import PIECE, Direction, Piece, pieces

# new(number of the parameter, slice of the piece, its x, out): writes the new value of the piece into out.
Update = Callable[[int, slice, Tensor, Tensor], object]
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
        for place, _, here in self._pieces():
            piece = direction[place[0]][place[1]]
            self._leave(place, self._centre(place, here), here, piece, amount)

    def back(self) -> None:
        """Go back to x."""
        self.update(lambda i, at, x, out: out.copy_(x))

    def update(self, new: Update) -> None:
        """Set every piece to what ``new`` makes of x."""
        for place, at, here in self._pieces():
            new(place[0], at, self._centre(place, here), here)
            self._arrived(place)

    def _pieces(self) -> Iterator[tuple[Place, slice, Tensor]]:
        """Every piece: its place, its slice, and its entries as they are now, to be changed in place."""
        for i, p in self._params.items():
            # In its logical order; a parameter of another memory layout is written back afterwards.
            flat = p.view(-1) if p.is_contiguous() else p.contiguous().view(-1)
            for k, at in enumerate(pieces(len(flat))):
                yield (i, k), at, flat[at]
            if not p.is_contiguous():
                p.copy_(flat.view(p.shape))

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
        _shift(x, piece, amount, out=here)

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
            _shift(x, way.piece, -way.amount, out=x)
            x[way.places if isinstance(way.places, slice) else way.places.long()] = way.values
        return x

    def _leave(self, place: Place, x: Tensor, here: Tensor, piece: Piece, amount: float) -> None:
        _shift(x, piece, amount, out=here)
        lost = _differing(_shift(here, piece, -amount, out=self._like(here, "back")), x)
        if 2 * len(lost) > len(x):
            self._ways[place] = _Way(piece, amount, slice(None), x.clone())
        else:
            # int32 holds a place in a piece at half the memory.
            self._ways[place] = _Way(piece, amount, lost.to(torch.int32), x[lost])

    def _arrived(self, place: Place) -> None:
        self._ways.pop(place, None)

    def _like(self, x: Tensor, name: str) -> Tensor:
        """A buffer for a piece. Fresh ones between the small lists that stay would leave the memory full of holes."""
        key = (name, x.dtype, x.device)
        if key not in self._scratch:
            self._scratch[key] = torch.empty(PIECE, dtype=x.dtype, device=x.device)
        return self._scratch[key][: len(x)]


def _shift(x: Tensor, piece: Piece, amount: float, out: Tensor) -> Tensor:
    """x + amount * u, rounded to the dtype of x."""
    return torch.add(x, piece.window, alpha=amount * piece.scale, out=out)


def _differing(a: Tensor, b: Tensor) -> Tensor:
    """Places at which the bits of two tensors differ."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    a, b = a.view(bits), b.view(bits)
    if a.device.type == "cpu":  # NumPy is three times as fast here
        return torch.from_numpy(np.flatnonzero(a.numpy() != b.numpy()))
    return torch.nonzero(a != b).view(-1)
