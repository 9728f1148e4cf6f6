"""An estimate: a number with its standard error and what it cost."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Estimate:
    """A number, how far off it may be, and how many Hessian-vector products it took.

    ``stderr`` is the standard error of a random estimate, NaN if there is a single sample; of an eigenvalue, which is
    not random, how far the nearest true one may be.
    """

    value: float
    stderr: float
    products: int

    def __float__(self) -> float:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:.4g} +- {self.stderr:.2g} ({self.products} products)"


def jackknife(
    function: Callable[[NDArray[np.float64]], float], samples: NDArray[np.float64], products: int
) -> Estimate:
    """A function of the mean of samples, with the standard error that leaving out one at a time shows.

    Args:
        function: of the mean, shape (k,).
        samples: shape (n, k).
        products: that the samples took.
    """
    n, total = len(samples), samples.sum(0)
    if n < 2:
        return Estimate(function(total / n), math.nan, products)
    without = np.array([function((total - sample) / (n - 1)) for sample in samples])
    return Estimate(function(total / n), float(np.sqrt((n - 1) * without.var())), products)
