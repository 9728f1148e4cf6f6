"""How far a preconditioner and the Hessian are from commuting, as the theory of ZO-Adam assumes they do."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from zoedge.curvature.estimate import Estimate, jackknife
from zoedge.curvature.operator import HessianOperator, flat_preconditioner
from zoedge.curvature.probes import MEMORY, Progress, generator_for, probe
from zoedge.theory import checks


def relative_commutator(
    H: HessianOperator,
    P: Sequence[Tensor] | Tensor,
    probes: int = 50,
    *,
    generator: torch.Generator | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Estimate:
    """|P H - H P| / |P H| in the Frobenius norm, from two products for every probe (the paper's appendix).

    Args:
        H: the operator, without a preconditioner.
        P: the diagonal of the preconditioner: a tensor for each parameter, or one vector.
        probes: number of random vectors.
        generator: of the probes, by default with seed 0.
        memory: bytes for vectors.
        progress: called with (products so far, 2 * probes).
    """
    if H.preconditioned:
        raise ValueError("H has a preconditioner of its own: build the HessianOperator without it")
    diagonal = flat_preconditioner(H, P)
    generator, done, samples = generator_for(H, generator), 0, []
    for z, Hz in probe(H, checks.count("probes", probes), generator, memory=memory):
        PHz = diagonal * Hz
        difference = PHz - H.rows(diagonal * z)
        samples.append(torch.stack([difference.square().sum(1), PHz.square().sum(1)], 1).double().cpu().numpy())
        done += 2 * len(z)
        if progress:
            progress(done, 2 * probes)
    squares = np.concatenate(samples)
    if squares[:, 1].sum() == 0:
        raise ValueError("the Hessian is zero, so there is nothing to commute with")
    return jackknife(lambda mean: float(np.sqrt(mean[0] / mean[1])), squares, done)
