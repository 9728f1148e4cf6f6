"""A spectrum good enough for the critical step size, from few products.

The equation of the critical step size is a sum over eigenvalues of f(lambda) = lambda / (s - c lambda). Outlying
eigenvalues need f exactly, all others, whose lambda is small beside s, only to second order: their sum and their sum of
squares. Half of the products go into a Krylov space, whose Ritz values stand for the outliers, half into probes of the
rest R, which give Tr(R) and, for nothing, Tr(R^2). The Krylov space is coupled to the rest by one entry beta, which
adds 2 beta^2 to the sum of squares. To second order the spectrum is then right whether or not a Ritz value has
converged.

The rest enters as two nodes, one positive and one negative, with the right sum and sum of squares: real Hessians have
many negative eigenvalues. No node lies beyond the Ritz values that have not converged, as far as the rest reaches.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

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

# A Ritz value with a residual below this share of it has converged.
_CONVERGED = 0.05


class _Nodes(NamedTuple):
    """Ritz values; the square of what couples them to the rest; the dimension; how far the rest reaches."""

    ritz: NDArray[np.float64]
    coupling: float
    dimension: int
    highest: float
    lowest: float


class MeasuredSpectrum(Spectrum):
    """A spectrum with the samples that it was made of, so that what follows from it has a standard error.

    Attributes:
        products: Hessian-vector products that it took.
        top: the largest eigenvalue, with its error.
        vectors: the vectors of the largest Ritz values, shape (k, d): a warm start for the next measurement.
    """

    def __init__(self, nodes: _Nodes, samples: NDArray[np.float64], top: Estimate, vectors: Tensor) -> None:
        self._nodes, self._samples = nodes, samples
        self.products, self.top, self.vectors = top.products, top, vectors
        whole = _with_rest(nodes, samples.mean(0)) if len(samples) else Spectrum(nodes.ritz)
        super().__init__(whole.eigenvalues, whole.weights)

    def estimate(self, function: Callable[[Spectrum], float]) -> Estimate:
        """A function of the spectrum, with its standard error.

        >>> weights = torch.nn.Parameter(torch.ones(8))
        >>> H = HessianOperator(lambda: weights.square().sum(), [weights])
        >>> print(spectrum(H).estimate(lambda s: s.trace))
        16 +- 0 (8 products)
        """
        if len(self._samples) == 0:
            return Estimate(function(self), 0.0, self.products)
        return jackknife(lambda mean: function(_with_rest(self._nodes, mean)), self._samples, self.products)


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
    # What has not converged lies among the rest; with all converged, at the smallest in size.
    open_ = values[residuals > _CONVERGED * np.abs(values)]
    inner = open_ if len(open_) else values[np.abs(values).argmin()][None]
    nodes = _Nodes(values, krylov.beta**2, H.shape[0], max(float(inner.max()), 0.0), min(float(inner.min()), 0.0))
    return MeasuredSpectrum(nodes, samples, top, vectors)


def _with_rest(nodes: _Nodes, moments: NDArray[np.float64]) -> Spectrum:
    """Ritz values and two nodes for the rest with its first two moments; zeros fill up the dimension."""
    first, second = float(moments[0]), float(moments[1]) + 2 * nodes.coupling
    values, weights = _two_nodes(first, second, nodes.highest, nodes.lowest)
    zeros = max(nodes.dimension - len(nodes.ritz) - sum(weights), 0.0)
    return Spectrum(
        np.concatenate([nodes.ritz, values, [0.0]]), np.concatenate([np.ones(len(nodes.ritz)), weights, [zeros]])
    )


def _two_nodes(first: float, second: float, highest: float, lowest: float) -> tuple[list[float], list[float]]:
    """Nodes and weights with these moments, between lowest <= 0 and highest >= 0: a single node, if there is one."""
    if second <= 0:
        return [], []
    single = second / first if first else math.inf
    if lowest <= single <= highest or highest == 0 or lowest == 0:
        return ([single], [first**2 / second]) if first else ([], [])
    up, down = highest, -lowest
    if first > 0:
        up = min(up, single)
    elif first < 0:
        down = min(down, -single)
    positive, negative = (second + first * down) / (up * (up + down)), (second - first * up) / (down * (up + down))
    return [up, -down], [max(positive, 0.0), max(negative, 0.0)]
