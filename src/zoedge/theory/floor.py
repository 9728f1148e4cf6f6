"""Forward differences: the same threshold, and a floor under it.

The forward form adds (mu / 2) (u^T H u) u to the estimate, which does not vanish at the minimum: below the
critical step size the iterates settle at a covariance of order mu^2 instead of zero, and the loss with them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zoedge.theory import checks
from zoedge.theory.estimator import Estimator, noise_moments
from zoedge.theory.matrices import MatrixCovariance
from zoedge.theory.methods import Method
from zoedge.theory.spectrum import Spectrum, as_spectrum
from zoedge.theory.step_size import critical_step_size


@dataclass(frozen=True, eq=False)
class Floor:
    """Where a run with forward differences settles.

    Attributes:
        covariance: E[x x^T], shape (d, d); or, from a spectrum, the variances along the eigenvectors, shape (m,).
        loss: 0.5 Tr(H E[x x^T]).
    """

    covariance: NDArray[np.float64]
    loss: float


def forward_floor(
    H: Spectrum | ArrayLike, method: Method, lr: float, estimator: Estimator, preconditioner: ArrayLike | None = None
) -> Floor:
    """The floor of a zeroth-order method with forward differences on the quadratic 0.5 x^T H x.

    The two-point form has no floor on a quadratic: its result is zero. Flat directions of H are left out; in them
    the iterates walk at random, at no cost in loss.

    Args:
        H: a spectrum or its eigenvalues, in closed form for isotropic directions; or a symmetric matrix, shape (d, d).
        method: the recursion.
        lr: the step size, below the critical one.
        estimator: with its ``mu``.
        preconditioner: P, its diagonal or a matrix; needs a matrix H.
    """
    checks.positive("lr", lr)
    if isinstance(H, Spectrum) or np.ndim(H) == 1:
        if preconditioner is not None:
            raise ValueError("a preconditioner needs the matrix H, not its eigenvalues")
        return _spectrum_floor(as_spectrum(H), method, lr, estimator)
    matrix = checks.symmetric_matrix("H", H)
    operator = MatrixCovariance(matrix, method, estimator, preconditioner)
    added = estimator.form == "forward" and method.zeroth_order
    noise = estimator.forward_noise(matrix) if added else np.zeros_like(matrix)
    covariance = operator.fixed_point(noise, lr)
    return Floor(covariance, float(np.sum(matrix * covariance)) / 2)


def _spectrum_floor(spectrum: Spectrum, method: Method, lr: float, estimator: Estimator) -> Floor:
    spectrum = spectrum.treat_negatives("raise")
    values, beta = spectrum.eigenvalues, method.momentum
    kappa, b = noise_moments(method, estimator, spectrum.dimension)
    if lr >= critical_step_size(spectrum, method, estimator):
        raise ValueError(f"lr {lr:.6g} is not below the critical step size: there is no fixed point")
    if estimator.form == "two-point" or not method.zeroth_order:
        return Floor(np.zeros_like(values), 0.0)
    square = spectrum.sum(values**2)
    noise = estimator.isotropic_forward_noise(values, spectrum.trace, square, spectrum.dimension)
    step = method.scale * lr
    c = (1 - beta) + kappa * (1 + beta)
    # lambda * variance per unit of gradient noise, the coupling by b left out: finite also where lambda is 0.
    response = step * (1 + beta) / (2 * (1 - beta**2) - c * step * values)
    coupling = spectrum.sum(values * response * noise) / (1 - b * spectrum.sum(values * response))
    energy = np.where(values > 0, response * (b * coupling + noise), 0.0)
    variances = np.divide(energy, values, out=np.zeros_like(values), where=values > 0)
    return Floor(variances, spectrum.sum(energy) / 2)
