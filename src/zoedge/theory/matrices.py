"""The covariance operator on symmetric matrices, for what does not decouple into coordinates.

Rademacher directions, mini-batches, or a preconditioner P that does not commute with H mix the eigendirections. With
z = scale * eta * P^-1 m the step is z' = beta z + scale * eta * P^-1 g, x' = x - z', and the second moments
X = E[x x^T], C = E[x z^T], Y = E[z z^T] follow a linear recursion that only needs E[g g^T]. In the basis R that
turns P^-1/2 H P^-1/2 into a diagonal, the mean part of the recursion is diagonal too and the noise is the rest:

    Y' = (mean part) + N(X),    N(X) = (scale * eta)^2 R^T (E[g g^T] - H X H) R.

Feeding noise in, letting the mean dynamics settle and reading off the noise that the settled state makes is a
positive map; its spectral radius, the gain, is below 1 exactly when the second moments are stable.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.optimize
import scipy.sparse.linalg
from numpy.typing import ArrayLike, NDArray

from zoedge.theory import checks
from zoedge.theory.estimator import Estimator
from zoedge.theory.methods import Method
from zoedge.theory.minibatch import MiniBatch

Matrix = NDArray[np.float64]

# Up to this size eigenvalues come from a dense matrix, beyond from Arnoldi's method.
_DENSE = 500


class MatrixCovariance:
    """The second moments of a method on the quadratic 0.5 x^T H x.

    One application costs O(d^3), so this is for dimensions up to a few hundred.

    Args:
        H: symmetric, positive semi-definite, shape (d, d); or mini-batches of examples. Flat directions are left out.
        method: the recursion.
        estimator: of the gradient; by default Gaussian, two-point, one query. First-order methods ignore it.
        preconditioner: P, its diagonal or a matrix; by default the identity.
    """

    def __init__(
        self,
        H: ArrayLike | MiniBatch,
        method: Method,
        estimator: Estimator | None = None,
        preconditioner: ArrayLike | None = None,
    ) -> None:
        self.method = method
        self.estimator = estimator or Estimator()
        self._data = H if isinstance(H, MiniBatch) else None
        self.H = H.mean if isinstance(H, MiniBatch) else checks.symmetric_matrix("H", H)
        # R turns P^-1/2 H P^-1/2 into a diagonal: R^T P R = 1, R^T H R = diag(values).
        values, R = scipy.linalg.eigh(self.H, checks.preconditioner(preconditioner, len(self.H)))
        if values[-1] <= 0:
            raise ValueError("H has no positive eigenvalue: no step size is critical")
        if values[0] < -1e-9 * values[-1]:
            raise ValueError(
                f"H has negative eigenvalues ({values[0]:.3g} after preconditioning), but the theory assumes none: "
                "pass its positive part"
            )
        moving = values > 1e-12 * values[-1]
        self._values, self._R = values[moving], R[:, moving]

    def _gradient_moment(self, X: Matrix) -> Matrix:
        """E[g g^T] of the gradient estimate g, given X = E[x x^T]."""
        A = self.H @ X @ self.H if self._data is None else self._data.second_moment(X)
        return self.estimator.second_moment(A) if self.method.zeroth_order else A

    # ------------------------------------------------------------------ the operator

    def _x(self, lr: float) -> NDArray[np.float64]:
        return self.method.scale * lr * self._values

    def _noise(self, X: Matrix, lr: float) -> Matrix:
        """Covariance of z' around its mean, in the basis R, where x = R y and X = E[y y^T]."""
        full = self._R @ X @ self._R.T
        return self._to_basis(self._gradient_moment(full) - self.H @ full @ self.H, lr)

    def _to_basis(self, gradient_covariance: Matrix, lr: float) -> Matrix:
        return (self.method.scale * lr) ** 2 * (self._R.T @ gradient_covariance @ self._R)

    def apply(self, state: Matrix, lr: float) -> Matrix:
        """One step. ``state`` has shape (3, r, r): X, C and Y in the basis R."""
        # The formulas hold for symmetric X and Y; their antisymmetric part, rounding or not, must not grow.
        X, C, Y = _symmetric(state[0]), state[1], _symmetric(state[2])
        x, beta = self._x(lr), self.method.momentum
        xC = x[:, None] * C
        Y = beta**2 * Y + beta * (xC + xC.T) + np.outer(x, x) * X + self._noise(X, lr)
        C = beta * C + X * x
        return np.stack([X - C - C.T + Y, C - Y, Y])

    def spectral_radius(self, lr: float) -> float:
        """The growth factor of the second moments in one step: below 1 is stable."""
        lr = checks.positive("lr", lr)
        r = len(self._values)
        if self.method.momentum == 0:
            # Without momentum X alone is the state: what C and Y were does not matter.
            empty = np.zeros((r, r))
            return _radius(lambda X: self.apply(np.stack([X, empty, empty]), lr)[0], (r, r))
        return _radius(lambda state: self.apply(state, lr), (3, r, r))

    # ------------------------------------------------------------------ the gain

    def _settle(self, noise: Matrix, lr: float) -> Matrix:
        """E[y y^T] that the mean dynamics settles at when z' gets this noise at every step.

        Two autoregressions of order two with a shared beta have the covariance (1 - beta^2) / D(x_i, x_j).
        """
        x, beta = self._x(lr), self.method.momentum
        a, b = x[:, None], x[None, :]
        D = (1 + beta) * (1 - beta) ** 2 * (a + b) + beta * (a * a + b * b) - (1 + beta**2) * a * b
        return (1 - beta**2) / D * noise

    def gain(self, lr: float) -> float:
        """How much noise the settled state makes out of unit noise: stable exactly when below 1."""
        if lr >= self.mean_critical_step_size():
            return np.inf
        r = len(self._values)
        return _radius(lambda X: self._settle(self._noise(_symmetric(X), lr), lr), (r, r))

    def mean_critical_step_size(self) -> float:
        """The largest step size at which E[x] stays bounded."""
        return 2 * (1 + self.method.momentum) / (self.method.scale * self._values[-1])

    def critical_step_size(self) -> float:
        """The step size at which the second moment stops being bounded, to about 1e-10."""
        mean = self.mean_critical_step_size()
        high = mean * (1 - 1e-9)
        if self.gain(high) <= 1:
            return mean
        low = high / 2
        while self.gain(low) > 1:
            low, high = low / 2, low

        # log(gain) is nearly linear in log(lr): a few evaluations are enough.
        def excess(log_lr: float) -> float:
            return math.log(self.gain(math.exp(log_lr)))

        root = scipy.optimize.brentq(excess, math.log(low), math.log(high), xtol=1e-12)
        return math.exp(root)  # pyright: ignore[reportArgumentType]

    def fixed_point(self, gradient_noise: Matrix, lr: float) -> Matrix:
        """E[x x^T] that the iterates settle at with this additional covariance of the gradient; shape (d, d).

        Flat directions, in which the iterates walk at random without end, are left out.
        """
        if not self.gain(lr) < 1:
            raise ValueError(f"lr {lr:.6g} is not below the critical step size: there is no fixed point")
        r = len(self._values)
        source = self._settle(self._to_basis(gradient_noise, lr), lr)

        def residual(vector: NDArray[np.float64]) -> NDArray[np.float64]:
            X = _symmetric(vector.reshape(r, r))
            return (X - self._settle(self._noise(X, lr), lr)).ravel()

        operator = scipy.sparse.linalg.LinearOperator((r * r, r * r), matvec=residual, dtype=np.float64)  # pyright: ignore[reportCallIssue]
        solution, failed = scipy.sparse.linalg.gmres(operator, source.ravel(), rtol=1e-12, maxiter=1000)
        if failed:
            raise RuntimeError(f"no fixed point found at lr {lr:.6g}: the step size is too near the critical one")
        return self._R @ _symmetric(solution.reshape(r, r)) @ self._R.T


def _symmetric(matrix: Matrix) -> Matrix:
    return (matrix + matrix.T) / 2


def _radius(apply: Callable[[Matrix], Matrix], shape: tuple[int, ...]) -> float:
    """Spectral radius of a linear map on arrays of this shape that preserves a cone, so that it is an eigenvalue."""
    size = int(np.prod(shape))

    def matvec(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        return apply(np.asarray(vector).reshape(shape)).ravel()

    if size <= _DENSE:
        matrix = np.stack([matvec(row) for row in np.eye(size)], axis=1)
        return float(np.abs(np.linalg.eigvals(matrix)).max())
    start = np.broadcast_to(np.eye(shape[-1]), shape).ravel()
    operator = scipy.sparse.linalg.LinearOperator((size, size), matvec=matvec, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    values = scipy.sparse.linalg.eigs(operator, k=1, which="LM", v0=start, return_eigenvectors=False)
    return float(np.abs(values[0]))
