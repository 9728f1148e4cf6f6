"""A spectrum good enough for the critical step size, from few products.

The equation of the critical step size is a sum over eigenvalues of f(lambda) = lambda / (s - c lambda). Outlying
eigenvalues need f exactly, all others, whose lambda is small beside s, only to second order: their sum and their sum of
squares. Half of the products go into a Krylov space, whose Ritz values stand for the outliers, half into probes of the
rest R, which give Tr(R) and, for nothing, Tr(R^2). The Krylov space is coupled to the rest by one entry beta, which
adds 2 beta^2 to the sum of squares. To second order the spectrum is then right whether or not a Ritz value has
converged.

The rest enters as two nodes +r and -r with the right sum and sum of squares: it may well have negative eigenvalues.
"""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoedge.curvature.estimate import Estimate, jackknife
from zoedge.curvature.lanczos import ritz_errors
from zoedge.curvature.operator import HessianOperator
from zoedge.curvature.probes import MEMORY, Progress
from zoedge.curvature.trace import deflated
from zoedge.theory import Spectrum, checks


class MeasuredSpectrum(Spectrum):
    """A spectrum with the samples that it was made of, so that what follows from it has a standard error.

    Attributes:
        products: Hessian-vector products that it took.
        top: the largest eigenvalue, with its error.
        vectors: the vectors of the largest Ritz values, shape (k, d): a warm start for the next measurement.
    """

    def __init__(
        self,
        ritz: NDArray[np.float64],
        coupling: float,
        samples: NDArray[np.float64],
        dimension: int,
        top: Estimate,
        vectors: Tensor,
    ) -> None:
        self._nodes = (ritz, coupling, dimension)
        self._samples = samples
        self.products = top.products
        self.top = top
        self.vectors = vectors
        exact = _with_rest(*self._nodes, samples.mean(0)) if len(samples) else Spectrum(ritz)
        super().__init__(exact.eigenvalues, exact.weights)

    def estimate(self, function: Callable[[Spectrum], float]) -> Estimate:
        """A function of the spectrum, with its standard error.

        >>> weights = torch.nn.Parameter(torch.ones(8))
        >>> H = HessianOperator(lambda: weights.square().sum(), [weights])
        >>> print(spectrum(H).estimate(lambda s: s.trace))
        16 +- 0 (8 products)
        """
        if len(self._samples) == 0:
            return Estimate(function(self), 0.0, self.products)
        return jackknife(lambda mean: function(_with_rest(*self._nodes, mean)), self._samples, self.products)


def spectrum(
    H: HessianOperator,
    budget: int = 160,
    *,
    start: Tensor | None = None,
    generator: torch.Generator | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> MeasuredSpectrum:
    """The spectrum of H, as well as so many products show it.

    Its top and its first two moments are right, which is what ``critical_step_size(..., negative="keep")`` needs; it
    does not show how the bulk is distributed (``spectral_density`` does).

    Args:
        H: the operator.
        budget: number of products, half for the Lanczos method, half for probes.
        start: ``vectors`` of an earlier measurement.
        generator: of start and probes, by default with seed 0.
        memory: bytes for vectors; half the budget of them would be best.
        progress: called with (products so far, budget).
    """
    steps = checks.count("budget", budget, at_least=4) // 2
    krylov, samples = deflated(H, steps, budget - steps, generator, memory, progress, start)
    assert krylov is not None, "a budget of 4 has 2 steps"
    values, coefficients, residuals = krylov.ritz()
    error = float(ritz_errors(values, residuals, krylov.rounding)[0])
    top = Estimate(float(values[0]), error, krylov.products + len(samples))
    vectors = krylov.vectors(coefficients[:, : max(len(values) // 4, 1)])
    return MeasuredSpectrum(values, krylov.beta**2, samples, H.shape[0], top, vectors)


def _with_rest(ritz: NDArray[np.float64], coupling: float, dimension: int, moments: NDArray[np.float64]) -> Spectrum:
    """Ritz values, and two nodes +-r for the rest with its first two moments; zeros fill up the dimension."""
    number = dimension - len(ritz)
    first, second = float(moments[0]), float(moments[1]) + 2 * coupling
    if second <= 0:
        return Spectrum(np.append(ritz, 0.0), np.append(np.ones(len(ritz)), number))
    # Any r between these has weights that are not negative and count no more than there are. The largest makes a rest
    # without negative eigenvalues one node; but the rest is no larger than the Ritz values at its border.
    smallest, largest = np.sqrt(second / number), second / abs(first) if first else np.inf
    r = float(min(max(np.abs(ritz).min(), smallest), largest))
    pair = np.maximum((second / r**2 + np.array([1.0, -1.0]) * first / r) / 2, 0)
    return Spectrum(
        np.concatenate([ritz, [r, -r, 0.0]]), np.concatenate([np.ones(len(ritz)), pair, [max(number - pair.sum(), 0)]])
    )
