"""Stochastic rounding to 16 bits: what is too small to move a number moves it sometimes, so that nothing is lost.

At lr * g = 1e-5 most bfloat16 weights do not change at all under rounding to nearest. Rounding up with the
probability of the lost part keeps the mean of the update.
"""

import numpy as np
import torch
from torch import Tensor

# Bits of float32's mantissa that the dtype does not have.
_DROPPED = {torch.bfloat16: 16, torch.float16: 13}
_SMALLEST_NORMAL = 2.0**-14
_SUBNORMAL_GRID = 2.0**24
# Sets rounding apart from search directions, whose keys are (seed, step, query).
_STREAM = (1 << 32) - 1


def stochastic_round(x: Tensor, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Round a float32 tensor to a neighbour in bfloat16 or float16 such that the mean of the result is x."""
    bits = _DROPPED[dtype]
    noise = torch.randint(0, 1 << bits, x.shape, generator=generator, device=x.device, dtype=torch.int32)
    # Adding noise below the last kept bit carries into it with the right probability; the sign bit is out of the way.
    raised = (x.view(torch.int32) + noise) & -(1 << bits)
    rounded = torch.where(torch.isfinite(x), raised.view(torch.float32), x)
    if dtype == torch.float16:
        # Below the smallest normal number float16 is a fixed grid.
        grid = torch.floor(x * _SUBNORMAL_GRID + noise / (1 << bits)) / _SUBNORMAL_GRID
        rounded = torch.where(x.abs() < _SMALLEST_NORMAL, grid, rounded)
    return rounded.to(dtype)


def rounding_generator(seed: int, step: int, place: tuple[int, int], device: torch.device) -> torch.Generator:
    """The generator for a piece of a step, a function of (seed, step, number of the parameter, number of the piece)."""
    words = np.random.SeedSequence((seed, step, _STREAM, *place)).generate_state(1)
    return torch.Generator(device).manual_seed(int(words[0]))
