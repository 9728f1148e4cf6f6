"""The covariance operator on coordinate blocks (Lemma 1 of the paper), for isotropic directions.

In the eigenbasis of H the second moments of (x_i, eta m_i) form a 2 x 2 block W_i for each eigenvalue, and one
step maps

    W_i -> A_i W_i A_i^T + (kappa x_i^2 (W_i)_11 + b / sigma_i * sum_j sigma_j x_j^2 (W_j)_11) Q

with x_i = scale * eta * lambda_i, A_i = [[1 - x_i, -beta], [x_i, beta]], Q = [[1, -1], [-1, 1]]; sigma_i are the
eigenvalues of a preconditioner that commutes with H. The blocks are coupled by one number only, so the operator
is applied in O(d), and its spectral radius is the root of a scalar equation.
"""

import numpy as np
import scipy.optimize
from numpy.typing import ArrayLike, NDArray

from zoedge.theory import checks
from zoedge.theory.estimator import Estimator
from zoedge.theory.methods import Method
from zoedge.theory.spectrum import Spectrum, as_spectrum
from zoedge.theory.step_size import moments

_XTOL = 1e-16


class BlockCovariance:
    """One step of the second moments at a given step size.

    Directions in which H is flat (lambda = 0) do not move and are left out, as in the paper.

    Args:
        spectrum: of H, or of P^-1 H for Adam and ZO-Adam.
        method: the recursion.
        lr: the step size.
        estimator: of the gradient; by default Gaussian, two-point, one query.
        sigma: eigenvalues of P, one for each eigenvalue of the spectrum. They change the operator by a similarity
            only, not its spectral radius.
    """

    def __init__(
        self,
        spectrum: Spectrum | ArrayLike,
        method: Method,
        lr: float,
        estimator: Estimator | None = None,
        sigma: ArrayLike | None = None,
    ) -> None:
        spectrum = as_spectrum(spectrum)
        moving = spectrum.eigenvalues != 0
        if not moving.any():
            raise ValueError("spectrum is zero: nothing moves, every step size is stable")
        scales = np.ones(moving.shape) if sigma is None else checks.finite_array("sigma", sigma, ndim=1)
        if scales.shape != moving.shape or scales.min() <= 0:
            raise ValueError("sigma must hold one positive number for each eigenvalue")
        weights = np.ones(moving.shape) if spectrum.weights is None else spectrum.weights
        self.x = method.scale * checks.positive("lr", lr) * spectrum.eigenvalues[moving]
        self.weights, self.sigma = weights[moving], scales[moving]
        self.beta = method.momentum
        self.kappa, self.b = moments(method, estimator, spectrum.dimension)

    def apply(self, state: NDArray[np.float64]) -> NDArray[np.float64]:
        """One step. ``state`` has shape (3, m): E[x^2], E[x eta m] and E[(eta m)^2] for each eigenvalue."""
        w11, w12, w22 = state
        x, beta = self.x, self.beta
        square = x * x * w11
        coupling = self.b * float(self.weights @ (self.sigma * square)) / self.sigma
        # z = eta m of the next step: its mean part is beta z + x-times-position, the rest is the estimator's noise.
        zz = beta**2 * w22 + 2 * beta * x * w12 + (1 + self.kappa) * square + coupling
        xz = beta * w12 + x * w11
        return np.stack([w11 - 2 * xz + zz, xz - zz, zz])

    def trajectory(self, steps: int, start: ArrayLike | None = None) -> NDArray[np.float64]:
        """E|x_t|^2 for t = 0..steps, exactly.

        Args:
            steps: how many.
            start: E[x_i^2] at t = 0, shape (m,); by default equal, with sum 1. Momentum starts at zero.
        """
        variances = (
            np.full(self.x.shape, 1 / self.weights.sum())
            if start is None
            else checks.finite_array("start", start, ndim=1)
        )
        state = np.zeros((3, len(self.x)))
        state[0] = variances
        path = np.empty(checks.count("steps", steps, at_least=0) + 1)
        for t in range(len(path)):
            path[t] = self.weights @ state[0]
            state = self.apply(state)
        return path

    def spectral_radius(self) -> float:
        """The growth factor of the second moment in one step: below 1 is stable.

        The operator is block-diagonal plus a rank-one coupling. With phi_i(rho) the response of block i to the
        coupling without kappa, rho is the largest root of b * sum_i phi_i / (1 - kappa phi_i) = 1; at rho = 1 this is
        the equation of the critical step size.
        """
        local = 1 + self._local_radius()
        if self.b == 0 or self.kappa < 0:
            return local  # no noise: a first-order method, or the sphere in one dimension, where u = +-1

        def inverse_gain(rho: float) -> float:
            phi = self._response(rho - 1)
            if np.isinf(phi).any() or (self.kappa * phi >= 1).any():
                return -1.0  # below the radius of a single block, where the sum means nothing
            return 1 / (self.b * float(self.weights @ (phi / (1 - self.kappa * phi)))) - 1

        high = max(local, 1.0) * 2
        while inverse_gain(high) < 0:
            high *= 2
        root = scipy.optimize.brentq(inverse_gain, local, high, xtol=_XTOL, rtol=4 * np.finfo(float).eps)
        return float(root)  # pyright: ignore[reportArgumentType]

    def _local_radius(self) -> float:
        """Largest rho - 1 of a block without noise: the squared modulus of the roots of r^2 - (1+beta-x) r + beta."""
        beta = self.beta
        e = self.x * (2 * (1 + beta) - self.x)
        p = 1 - beta**2 + e
        root = np.sqrt(np.maximum(p * p - 4 * e, 0))
        # Two forms of one root of d^2 + p d + e, each free of cancellation on its side.
        with np.errstate(divide="ignore", invalid="ignore"):
            delta = np.where(p > 0, -2 * e / (p + root), (root - p) / 2)
        complex_pair = p * p < 4 * e
        return float(np.where(complex_pair, beta - 1, delta).max())

    def _response(self, delta: float) -> NDArray[np.float64]:
        """phi_i at rho = 1 + delta, accurate for small x and small delta; infinite at and below the block's radius."""
        beta, x = self.beta, self.x
        e = x * (2 * (1 + beta) - x)
        rho = 1 + delta
        denominator = (rho - beta) * (delta * (delta + 1 - beta**2 + e) + e)
        phi = np.full_like(x, np.inf)
        return np.divide(x * x * rho * (rho + beta), denominator, out=phi, where=denominator > 0)
