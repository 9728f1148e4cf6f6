"""The density of the spectrum, for a plot: stochastic Lanczos quadrature."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from zoedge.curvature.lanczos import Krylov
from zoedge.curvature.operator import HessianOperator
from zoedge.curvature.probes import MEMORY, Progress, generator_for, normal, rows_that_fit
from zoedge.theory import checks


@dataclass(frozen=True)
class Density:
    """Share of the eigenvalues per unit of lambda, smoothed by a Gaussian of the given width.

    Attributes:
        eigenvalues: the grid, shape (points,).
        values: the density on it, shape (points,); its integral is 1.
        stderr: of the values, shape (points,); NaN if there was a single probe.
        width: standard deviation of the Gaussian.
        products: Hessian-vector products taken.
    """

    eigenvalues: NDArray[np.float64]
    values: NDArray[np.float64]
    stderr: NDArray[np.float64]
    width: float
    products: int


def spectral_density(
    H: HessianOperator,
    probes: int = 5,
    steps: int = 60,
    *,
    points: int = 1000,
    width: float | None = None,
    generator: torch.Generator | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Density:
    """The density of the eigenvalues of H.

    A Krylov space from a random start is a Gauss quadrature of the spectrum: nodes at its Ritz values, weighted by the
    square of the first entry of their vectors.

    Args:
        H: the operator.
        probes: number of random starts.
        steps: Lanczos steps from each.
        points: of the grid, a little wider than the spectrum.
        width: of the smoothing, by default 1 % of the range of the spectrum.
        generator: of the starts, by default with seed 0.
        memory: bytes for vectors.
        progress: called with (products so far, probes * steps).
    """
    checks.count("probes", probes)
    steps = min(checks.count("steps", steps), H.shape[0])
    if rows_that_fit(H, memory) <= steps:
        raise ValueError(f"memory of {memory} bytes does not hold {steps} vectors: raise memory or lower steps")
    generator = generator_for(H, generator)
    quadratures = []
    for number in range(probes):
        krylov = Krylov(H, normal(H, generator), steps, generator)
        while not krylov.full and krylov.beta != 0:
            krylov.step()
            if progress:
                progress(number * steps + krylov.products, probes * steps)
        nodes, vectors, _ = krylov.ritz()
        quadratures.append((nodes, vectors[0] ** 2))
    low, high = (pick(pick(nodes) for nodes, _ in quadratures) for pick in (min, max))
    width = (high - low) / 100 or 1e-3 * abs(high) or 1.0 if width is None else checks.positive("width", width)
    grid = np.linspace(low - 5 * width, high + 5 * width, checks.count("points", points, at_least=2))
    curves = np.stack([_smooth(grid, nodes, weights, width) for nodes, weights in quadratures])
    stderr = curves.std(0, ddof=1) / np.sqrt(probes) if probes > 1 else np.full(len(grid), np.nan)
    return Density(grid, curves.mean(0), stderr, width, sum(len(nodes) for nodes, _ in quadratures))


def _smooth(
    grid: NDArray[np.float64], nodes: NDArray[np.float64], weights: NDArray[np.float64], width: float
) -> NDArray[np.float64]:
    bells = np.exp(-0.5 * ((grid[:, None] - nodes) / width) ** 2) / (width * np.sqrt(2 * np.pi))
    return bells @ weights
