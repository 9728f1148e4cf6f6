"""Forward differences: the same threshold, and a floor under it.

The forward form adds (mu / 2) (u^T H u) u to the estimate, which does not vanish at the minimum: below the
critical step size the iterates settle at a covariance of order mu^2 instead of zero, and the loss with them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zoedge.theory import checks
from zoedge.theory.estimator import Estimator
from zoedge.theory.matrices import MatrixCovariance
from zoedge.theory.methods import Method


@dataclass(frozen=True, eq=False)
class Floor:
    """Where a run with forward differences settles: E[x x^T], shape (d, d), and the loss 0.5 Tr(H E[x x^T])."""

    covariance: NDArray[np.float64]
    loss: float


def forward_floor(
    H: ArrayLike, method: Method, lr: float, estimator: Estimator, preconditioner: ArrayLike | None = None
) -> Floor:
    """The floor of a zeroth-order method with forward differences on the quadratic 0.5 x^T H x.

    The two-point form has no floor on a quadratic: its result is zero. Flat directions of H are left out; in them
    the iterates walk at random, at no cost in loss.

    Args:
        H: symmetric, positive semi-definite, shape (d, d); or its eigenvalues, shape (d,), taken as diagonal.
        method: the recursion.
        lr: the step size, below the critical one.
        estimator: with its ``mu``.
        preconditioner: P, its diagonal or a matrix.
    """
    matrix = np.diag(checks.finite_array("H", H, ndim=1)) if np.ndim(H) == 1 else checks.symmetric_matrix("H", H)
    if not method.zeroth_order or estimator.form == "two-point":
        return Floor(np.zeros_like(matrix), 0.0)
    operator = MatrixCovariance(matrix, method, estimator, preconditioner)
    covariance = operator.fixed_point(estimator.forward_noise(matrix), lr)
    return Floor(covariance, float(np.sum(matrix * covariance)) / 2)
