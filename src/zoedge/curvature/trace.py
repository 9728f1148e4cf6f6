"""The trace of the Hessian from random probes: Hutchinson's estimator, plain and deflated.

With entries +1 or -1, E[z^T H z] = Tr(H). A few outlying eigenvalues make most of the variance. Deflation takes an
orthonormal basis Q of a Krylov space, which holds the outliers, and probes only what is orthogonal to it:

    Tr(H) = Tr(Q H Q^T) + E[(z - Q^T Q z)^T H (z - Q^T Q z)],

where the first term is known exactly from the Lanczos steps that built Q.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoedge.curvature.estimate import Estimate, jackknife
from zoedge.curvature.lanczos import Krylov, first_vector
from zoedge.curvature.operator import HessianOperator
from zoedge.curvature.probes import MEMORY, Progress, generator_for, probe, rows_that_fit
from zoedge.theory import checks

# With fewer Lanczos steps outliers are left in the rest, which is known to second order only.
_FEW = 10


def trace(
    H: HessianOperator,
    probes: int = 500,
    *,
    deflation: int = 0,
    generator: torch.Generator | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Estimate:
    """Tr(H), or Tr(P^-1 H) of a preconditioned operator, by Hutchinson's estimator.

    Args:
        H: the operator.
        probes: number of random vectors, one product each; 500 are the paper's recipe.
        deflation: Lanczos steps before, one product each. 80 steps and 80 probes do better than 500 probes.
        generator: of the probes, by default with seed 0.
        memory: bytes for vectors.
        progress: called with (products so far, probes + deflation).
    """
    checks.count("probes", probes)
    krylov, samples = deflated(H, checks.count("deflation", deflation, at_least=0), probes, generator, memory, progress)
    exact = 0.0 if krylov is None else float(np.trace(krylov.T))
    products = len(samples) + (0 if krylov is None else krylov.products)
    if len(samples) == 0:
        return Estimate(exact, 0.0, products)
    return jackknife(lambda mean: exact + float(mean[0]), samples, products)


def deflated(
    H: HessianOperator,
    steps: int,
    count: int,
    generator: torch.Generator | None,
    memory: int,
    progress: Progress | None,
    start: Tensor | None = None,
) -> tuple[Krylov | None, NDArray[np.float64]]:
    """A Krylov space, and probes of the rest.

    Returns:
        The Krylov space of so many steps (``None`` for 0; fewer if memory or dimension do not allow them), and samples
        of Tr(R) and Tr(R^2), shape (count, 2), where R is H on what is orthogonal to it; no samples if nothing is left.
    """
    generator = generator_for(H, generator)
    krylov = None
    size = min(steps, H.shape[0])
    fit = rows_that_fit(H, memory) - 1
    if fit < min(size, _FEW):
        raise ValueError(
            f"memory of {memory} bytes holds {max(fit, 0)} vectors of {H.shape[0]} entries, too few to deflate by: "
            f"give it {(size + 1) * H.shape[0] * H.dtype.itemsize} for {size} of them"
        )
    size = min(size, fit)
    left = size < H.shape[0]
    total = size + (count if left else 0)
    if size > 0:
        krylov = Krylov(H, first_vector(H, start, generator), size, generator)
        while not krylov.full:
            krylov.step()
            if progress:
                progress(krylov.products, total)
        if not left:
            return krylov, np.empty((0, 2))
    samples = [
        torch.stack([(z * Rz).sum(1, dtype=torch.float64), Rz.square().sum(1, dtype=torch.float64)], 1).cpu().numpy()
        for z, Rz in probe(
            H,
            count,
            generator,
            basis=None if krylov is None else krylov.basis,
            memory=memory,
            progress=progress and (lambda done: progress(size + done, total)),
        )
    ]
    return krylov, np.concatenate(samples)
