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
from zoedge.theory.blocks import local_growth
from zoedge.theory.estimator import Estimator
from zoedge.theory.methods import Method
from zoedge.theory.minibatch import MiniBatch

Matrix = NDArray[np.float64]

# Up to this size eigenvalues come from a dense matrix, beyond from Arnoldi's method.
_DENSE = 400


class MatrixCovariance:
    """The second moments of a method on the quadratic 0.5 x^T H x.

    One application costs O(d^3), and a critical step size some hundred of them: seconds at d = 100.

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
        self._method = method
        self._estimator = estimator or Estimator()
        self._data = H if isinstance(H, MiniBatch) else None
        self._H = H.mean if isinstance(H, MiniBatch) else checks.symmetric_matrix("H", H)
        # R turns P^-1/2 H P^-1/2 into a diagonal: R^T P R = 1, R^T H R = diag(values).
        values, R = scipy.linalg.eigh(self._H, checks.preconditioner(preconditioner, len(self._H)))
        rounding = checks.rounding(self._H if isinstance(H, MiniBatch) else H, len(values)) * values[-1]
        if values[-1] <= 0:
            raise ValueError("H has no positive eigenvalue: no step size is critical")
        if values[0] < -rounding:
            raise ValueError(
                f"H has negative eigenvalues ({values[0]:.3g} after preconditioning), but the theory assumes none: "
                "pass its positive part"
            )
        moving = values > rounding
        self._values, self._R = values[moving], R[:, moving]

    # ------------------------------------------------------------------ the operator

    def apply(self, state: Matrix, lr: float) -> Matrix:
        """One step. ``state`` has shape (3, r, r): X, C and Y in the basis R of the r directions that move."""
        # The formulas hold for symmetric X and Y; their antisymmetric part, rounding or not, must not grow.
        X, C, Y = _symmetric(state[0]), state[1], _symmetric(state[2])
        x, beta = self._x(lr), self._method.momentum
        xC = x[:, None] * C
        Y = beta**2 * Y + beta * (xC + xC.T) + np.outer(x, x) * X + self._noise(X, lr)
        C = beta * C + X * x
        return np.stack([X - C - C.T + Y, C - Y, Y])

    def trajectory(self, lr: float, steps: int, start: ArrayLike | None = None) -> NDArray[np.float64]:
        """E|x_t|^2 for t = 0..steps in the directions that move, exactly.

        Args:
            lr: the step size.
            steps: how many.
            start: x_0, shape (d,); by default all entries equal, of norm 1. Momentum starts at zero.
        """
        d, r = self._R.shape
        x0 = np.full(d, d**-0.5) if start is None else checks.finite_array("start", start, ndim=1)
        # x = R y up to flat directions, which only an orthogonal projection can tell apart.
        project = np.linalg.svd(self._H, hermitian=True)[0][:, :r]
        y = np.linalg.lstsq(project.T @ self._R, project.T @ x0, rcond=None)[0]
        state = np.zeros((3, r, r))
        state[0] = np.outer(y, y)
        path = np.empty(checks.count("steps", steps, at_least=0) + 1)
        for t in range(len(path)):
            seen = project.T @ self._R
            path[t] = np.trace(seen @ state[0] @ seen.T)
            state = self.apply(state, lr)
        return path

    def _x(self, lr: float) -> NDArray[np.float64]:
        return self._method.scale * checks.positive("lr", lr) * self._values

    def _noise(self, X: Matrix, lr: float) -> Matrix:
        """Covariance of z' around its mean, in the basis R, where x = R y and X = E[y y^T]."""
        if self._data is None and not self._method.zeroth_order:
            return np.zeros_like(X)
        full = self._R @ X @ self._R.T
        mean = self._H @ full @ self._H
        moment = mean if self._data is None else self._data.second_moment(full)
        if self._method.zeroth_order:
            moment = self._estimator.second_moment(moment)
        return self._to_basis(moment - mean, lr)

    def _to_basis(self, gradient_covariance: Matrix, lr: float) -> Matrix:
        return (self._method.scale * lr) ** 2 * (self._R.T @ gradient_covariance @ self._R)

    # ------------------------------------------------------------------ the gain

    def _settle(self, noise: Matrix, lr: float, rho: float = 1.0) -> Matrix:
        """sum_t rho^-t of the response to this noise: what the mean dynamics settles at, discounted by rho.

        Two autoregressions of order two, y' = (1 + beta - x) y - beta y_before, have the covariance
        (1 - beta^2) / D(x_i, x_j); discounting turns beta into beta / rho and 1 + beta - x into (...) / sqrt(rho).
        """
        beta = self._method.momentum / rho
        x = self._x(lr) if rho == 1 else 1 + beta - (1 + self._method.momentum - self._x(lr)) / math.sqrt(rho)
        a, b = x[:, None], x[None, :]
        D = (1 + beta) * (1 - beta) ** 2 * (a + b) + beta * (a * a + b * b) - (1 + beta**2) * a * b
        return (1 - beta**2) / (rho * D) * noise

    def gain(self, lr: float, rho: float = 1.0) -> float:
        """How much noise the settled state makes out of unit noise; the second moments are stable where it is below 1.

        With rho: the same for growth by a factor rho per step.
        """
        if float(local_growth(self._x(lr), self._method.momentum).max()) >= rho - 1:
            return math.inf
        r = len(self._values)
        return _radius(lambda X: self._settle(self._noise(_symmetric(X), lr), lr, rho), (r, r))

    def spectral_radius(self, lr: float) -> float:
        """The growth factor of the second moments in one step: below 1 is stable. It is the rho of gain 1."""
        low = 1 + float(local_growth(self._x(lr), self._method.momentum).max())
        above = 2 * max(low, 1.0)
        while self.gain(lr, above) > 1:
            above *= 2
        below = low + (above - low) / 2
        while self.gain(lr, below) < 1:
            if below - low < 1e-7 * above:
                return low  # hardly any noise: the mean dynamics decides
            below, above = low + (below - low) / 8, below
        root = scipy.optimize.brentq(lambda rho: 1 - 1 / self.gain(lr, rho), below, above, xtol=1e-13)
        return float(root)  # pyright: ignore[reportArgumentType]

    def mean_critical_step_size(self) -> float:
        """The largest step size at which E[x] stays bounded."""
        return 2 * (1 + self._method.momentum) / (self._method.scale * float(self._values[-1]))

    def critical_step_size(self) -> float:
        """The step size at which the second moment stops being bounded, to about 1e-10."""
        mean = self.mean_critical_step_size()
        high = mean * (1 - 1e-9)
        if self.gain(high) <= 1:
            return mean
        low = high / 2
        while self.gain(low) > 1:
            low, high = low / 2, low

        # The gain grows with the step size (seen in every case; proven without momentum), and log(gain) is nearly
        # linear in log(lr): a few evaluations are enough.
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
            raise ArithmeticError(f"no fixed point found at lr {lr:.6g}: it is too near the critical step size")
        return self._R @ _symmetric(solution.reshape(r, r)) @ self._R.T


def _symmetric(matrix: Matrix) -> Matrix:
    return (matrix + matrix.T) / 2


def _radius(apply: Callable[[Matrix], Matrix], shape: tuple[int, int]) -> float:
    """Spectral radius of a linear map on matrices that preserves the positive cone, so that it is an eigenvalue."""
    size = shape[0] * shape[1]
    start = np.eye(shape[0])
    if not apply(start).any():
        return 0.0  # a positive map that sends the identity to zero is zero

    def matvec(vector: NDArray[np.float64]) -> NDArray[np.float64]:
        return apply(np.asarray(vector).reshape(shape)).ravel()

    if size <= _DENSE:
        matrix = np.stack([matvec(row) for row in np.eye(size)], axis=1)
        return float(np.abs(np.linalg.eigvals(matrix)).max())
    operator = scipy.sparse.linalg.LinearOperator((size, size), matvec=matvec, dtype=np.float64)  # pyright: ignore[reportCallIssue]
    values = scipy.sparse.linalg.eigs(operator, k=1, which="LM", v0=start.ravel(), return_eigenvectors=False)
    return float(np.abs(values[0]))
