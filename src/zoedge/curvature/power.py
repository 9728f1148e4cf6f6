"""Power iteration, as the paper takes the largest eigenvalue."""

import torch

from zoedge.curvature.estimate import Estimate
from zoedge.curvature.operator import HessianOperator
from zoedge.curvature.probes import Progress, generator_for, norm, normal
from zoedge.theory import checks


def power_iteration(
    H: HessianOperator,
    iterations: int = 50,
    *,
    generator: torch.Generator | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """The eigenvalue of largest size, which is not the largest one if a negative one is larger in size.

    ``top_eigenvalues`` finds the largest, with fewer products; this is the paper's recipe.

    Args:
        H: the operator.
        iterations: number of products.
        generator: for the start, by default with seed 0.
        progress: called with (products so far, iterations).

    Returns:
        The Rayleigh quotient of the last vector; its ``stderr`` is the norm of the residual, which bounds the distance
        to the nearest eigenvalue.
    """
    v = normal(H, generator_for(H, generator))
    value = residual = 0.0
    for i in range(checks.count("iterations", iterations)):
        v /= norm(v)
        w = H.matvec(v)
        value = float((v * w).sum(dtype=torch.float64))
        residual = norm(w - value * v)
        if progress:
            progress(i + 1, iterations)
        if norm(w) == 0:  # v is in the null space, and so most likely is everything
            return Estimate(0.0, 0.0, i + 1)
        v = w
    return Estimate(value, residual, iterations)
