"""How rough the loss is at the scale of a move, and which smoothing mu rounding and truncation allow.

The rounding noise of a loss is estimated from a difference table of values at equally spaced points: differences of a
smooth function die out with their order, those of noise grow as sqrt((2j)!) / j! (Hamming; More and Wild, 2011).
"""

import math
from collections.abc import Callable, Sequence

import numpy as np

# Points of a line, and the orders of differences that are compared.
POINTS = 8
_ORDERS = (3, 4, 5)


def rounding_noise(lines: Sequence[Sequence[float]]) -> float:
    """The standard deviation of the noise of a function.

    Args:
        lines: values at equally spaced points, on several lines.
    """
    found = []
    for order in _ORDERS:
        factor = math.factorial(order) ** 2 / math.factorial(2 * order)
        found.append(factor * np.mean([np.square(np.diff(line, order)).mean() for line in lines]))
    return float(np.sqrt(min(found)))


def balanced_smoothing(noise: float, third: float, smallest: float, largest: float) -> float:
    """The mu with the smallest error of (f+ - f-) / (2 mu): noise / (sqrt(2) mu) against mu^2 |f'''| / 6.

    Args:
        noise: standard deviation of the loss's rounding noise.
        third: size of the third derivative along a direction.
        smallest: of what is allowed.
        largest: of what is allowed.
    """
    if third <= 0:
        return largest
    return min(max((3 * noise / third) ** (1 / 3), smallest), largest)


def third_derivative(slope: Callable[[float], float], mu: float, noise: float, largest: float) -> tuple[float, float]:
    """The size of the third derivative, from slopes at growing mu until their difference stands out of the noise.

    Args:
        slope: (f+ - f-) / (2 mu) of mu.
        mu: to begin with.
        noise: of the loss.
        largest: mu to end with.

    Returns:
        The derivative, and the mu at which it was seen.
    """
    first = slope(mu)
    while True:
        wide = min(4 * mu, largest)
        second = slope(wide)
        difference = abs(second - first)
        if difference > 10 * noise / mu or wide >= largest:
            return 6 * difference / (wide**2 - mu**2), wide
        mu, first = wide, second
