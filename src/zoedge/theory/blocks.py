"""The covariance operator on coordinate blocks (Lemma 1 of the paper), for isotropic directions.

In the eigenbasis of H the second moments of (x_i, eta m_i) form a 2 x 2 block W_i for each eigenvalue, and one
step maps

    W_i -> A_i W_i A_i^T + (kappa x_i^2 (W_i)_11 + b / sigma_i^2 * sum_j sigma_j^2 x_j^2 (W_j)_11) Q

with x_i = scale * eta * lambda_i, A_i = [[1 - x_i, -beta], [x_i, beta]], Q = [[1, -1], [-1, 1]]; lambda_i are the
eigenvalues of P^-1 H and sigma_i those of a preconditioner P that commutes with H. (The paper has sigma in place of
sigma^2, because there x stands for P^1/2 x.) The blocks are coupled by one number only, so the operator is applied in
O(d), and its spectral radius is the root of a scalar equation.
"""

import math

import numpy as np
import scipy.optimize
from numpy.typing import ArrayLike, NDArray

from zoedge.theory import checks
from zoedge.theory.estimator import Estimator, noise_moments
from zoedge.theory.methods import Method
from zoedge.theory.spectrum import Spectrum, as_spectrum


class BlockCovariance:
    """The second moments of a method, for directions that look the same in every basis.

    Directions in which H is flat (lambda = 0) do not move anything and are left out, as in the paper.

    Args:
        spectrum: of H, or of P^-1 H for Adam and ZO-Adam.
        method: the recursion.
        estimator: of the gradient; by default Gaussian, two-point, one query.
        sigma: eigenvalues of P, one for each eigenvalue of the spectrum. They change the second moments, but neither
            spectral radius nor critical step size.
    """

    def __init__(
        self,
        spectrum: Spectrum | ArrayLike,
        method: Method,
        estimator: Estimator | None = None,
        sigma: ArrayLike | None = None,
    ) -> None:
        spectrum = as_spectrum(spectrum)
        size = len(spectrum.eigenvalues)
        self._moving = spectrum.eigenvalues != 0
        if not self._moving.any():
            raise ValueError("spectrum is zero: nothing moves, every step size is stable")
        scales = np.ones(size) if sigma is None else checks.finite_array("sigma", sigma, ndim=1)
        if scales.shape != (size,) or scales.min() <= 0:
            raise ValueError("sigma must hold one positive number for each eigenvalue")
        weights = np.ones(size) if spectrum.weights is None else spectrum.weights
        self._eigenvalues = spectrum.eigenvalues[self._moving]
        self._weights, self._sigma_squared = weights[self._moving], scales[self._moving] ** 2
        self._method = method
        self._kappa, self._b = noise_moments(method, estimator, spectrum.dimension)

    def apply(self, state: NDArray[np.float64], lr: float) -> NDArray[np.float64]:
        """One step. ``state`` has shape (3, r): E[x^2], E[x eta m], E[(eta m)^2] along each moving eigenvector."""
        w11, w12, w22 = state
        x, beta = self._x(lr), self._method.momentum
        square = x * x * w11
        coupling = self._b * float(self._weights @ (self._sigma_squared * square)) / self._sigma_squared
        # z = eta m of the next step: its mean part is beta z + x-times-position, the rest is the estimator's noise.
        zz = beta**2 * w22 + 2 * beta * x * w12 + (1 + self._kappa) * square + coupling
        xz = beta * w12 + x * w11
        return np.stack([w11 - 2 * xz + zz, xz - zz, zz])

    def trajectory(self, lr: float, steps: int, start: ArrayLike | None = None) -> NDArray[np.float64]:
        """E|x_t|^2 for t = 0..steps, exactly; infinite where it overflows.

        Args:
            lr: the step size.
            steps: how many.
            start: E[x_i^2] at t = 0, one for each eigenvalue of the spectrum; by default equal, with sum 1. Momentum
                starts at zero.
        """
        path = np.empty(checks.count("steps", steps, at_least=0) + 1)
        state = np.zeros((3, len(self._eigenvalues)))
        if start is None:
            state[0] = 1 / self._weights.sum()
        else:
            variances = checks.finite_array("start", start, ndim=1)
            if variances.shape != self._moving.shape or variances.min() < 0:
                raise ValueError(f"start must hold a variance for each of the {len(self._moving)} eigenvalues")
            state[0] = variances[self._moving]
        log_scale = 0.0
        for t in range(len(path)):
            total = float(self._weights @ state[0])
            path[t] = math.exp(min(math.log(total) + log_scale, 709.0)) if total > 0 else 0.0
            path[t] = path[t] if path[t] < math.exp(709.0) else np.inf
            if total > 0:
                state, log_scale = state / total, log_scale + math.log(total)
            state = self.apply(state, lr)
        return path

    def spectral_radius(self, lr: float) -> float:
        """The growth factor of the second moment in one step: below 1 is stable.

        The operator is block-diagonal plus a rank-one coupling. With phi_i(rho) the response of block i to the
        coupling without kappa, rho is the largest root of b * sum_i phi_i / (1 - kappa phi_i) = 1; at rho = 1 this is
        the equation of the critical step size. Solved for rho - 1, which small eigenvalues bring close to 0.
        """
        x, beta = self._x(lr), self._method.momentum

        def inverse_gain(delta: float) -> float:
            phi = _response(x, beta, delta)
            if np.isinf(phi).any() or (self._kappa * phi >= 1).any():
                return -1.0  # below the radius of a single block, where the sum means nothing
            gain = self._b * float(self._weights @ (phi / (1 - self._kappa * phi)))
            return 1 / gain - 1 if gain > 0 else 1.0

        low = float(local_growth(x, beta).max())
        if self._b == 0 or inverse_gain(low) >= 0:
            return 1 + low
        high = 2 * (1 + max(low, 0.0))
        while inverse_gain(high) < 0:
            high *= 2
        root = scipy.optimize.brentq(inverse_gain, low, high, xtol=1e-300, rtol=4 * np.finfo(float).eps, maxiter=2000)
        return 1 + float(root)  # pyright: ignore[reportArgumentType]

    def _x(self, lr: float) -> NDArray[np.float64]:
        x = self._method.scale * checks.positive("lr", lr) * self._eigenvalues
        if not 1e-150 < np.abs(x).max() < 1e100:
            raise ValueError(f"lr {lr:.3g} times the largest eigenvalue is beyond what can be computed with")
        return x


def local_growth(x: NDArray[np.float64], beta: float) -> NDArray[np.float64]:
    """Growth factor less one of each block without noise: of |r|^2, r the roots of r^2 - (1 + beta - x) r + beta."""
    e = x * (2 * (1 + beta) - x)
    p = 1 - beta**2 + e
    root = np.sqrt(np.maximum(p * p - 4 * e, 0))
    # Two forms of one root of d^2 + p d + e, each free of cancellation on its side.
    with np.errstate(divide="ignore", invalid="ignore"):
        delta = np.where(p > 0, -2 * e / (p + root), (root - p) / 2)
    return np.where(p * p < 4 * e, beta - 1, delta)


def _response(x: NDArray[np.float64], beta: float, delta: float) -> NDArray[np.float64]:
    """phi_i at rho = 1 + delta, accurate for small x and small delta; infinite at and below the block's radius."""
    e = x * (2 * (1 + beta) - x)
    rho = 1 + delta
    denominator = (rho - beta) * (delta * (delta + 1 - beta**2 + e) + e)
    phi = np.full_like(x, np.inf)
    return np.divide(x * x * rho * (rho + beta), denominator, out=phi, where=denominator > 0)
