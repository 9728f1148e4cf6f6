"""Mini-batches: the data are sampled as well as the directions. Beyond the paper, which leaves ZO-SGD open.

With H_B the Hessian on a batch, the estimate is S H_B x and its second moment E[S E_B[H_B X H_B] S].
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zoedge.theory import checks

Matrix = NDArray[np.float64]


class MiniBatch:
    """A quadratic whose Hessian is the mean over examples, seen through random batches.

    Args:
        hessians: one for each example, shape (N, d, d), each symmetric and positive semi-definite.
        batch_size: how many different examples make a batch (sampled without replacement), at most N.

    Attributes:
        mean: H, the Hessian of the full batch, shape (d, d).
    """

    def __init__(self, hessians: ArrayLike, batch_size: int) -> None:
        array = checks.finite_array("hessians", hessians, ndim=3)
        array = np.stack([checks.symmetric_matrix(f"hessians[{k}]", matrix) for k, matrix in enumerate(array)])
        lowest = np.linalg.eigvalsh(array)[:, 0]
        if lowest.min() < -checks.rounding(hessians, array.shape[1]) * np.abs(array).max():
            raise ValueError(f"hessians[{lowest.argmin()}] has the negative eigenvalue {lowest.min():.3g}")
        self._hessians, self._gradients = array, None
        self.mean: Matrix = array.mean(axis=0)
        self._set_batch_size(batch_size, len(array))

    @classmethod
    def from_gradients(cls, gradients: ArrayLike, batch_size: int) -> "MiniBatch":
        """Examples whose Hessians are the outer products g_k g_k^T; ``gradients`` has shape (N, d)."""
        data = cls.__new__(cls)
        array = checks.finite_array("gradients", gradients, ndim=2)
        data._hessians, data._gradients = None, array
        data.mean = array.T @ array / len(array)
        data._set_batch_size(batch_size, len(array))
        return data

    def _set_batch_size(self, batch_size: int, examples: int) -> None:
        self.batch_size, self._examples = checks.count("batch_size", batch_size), examples
        if self.batch_size > examples:
            raise ValueError(f"batch_size {batch_size} is larger than the number of examples {examples}")
        if not self.mean.any():
            raise ValueError("all examples are zero: there is no curvature")

    def second_moment(self, X: Matrix) -> Matrix:
        """E_B[H_B X H_B]."""
        N, B = self._examples, self.batch_size
        full = self.mean @ X @ self.mean
        if B == N:
            return full
        if self._gradients is not None:
            squares = np.einsum("ki,ij,kj->k", self._gradients, X, self._gradients, optimize=True)
            each = (self._gradients.T * squares) @ self._gradients / N
        else:
            each = np.einsum("kij,jl,klm->im", self._hessians, X, self._hessians, optimize=True) / N
        return full + (N - B) / (B * (N - 1)) * (each - full)

    def sample(self, rows: int, generator: np.random.Generator) -> Callable[[Matrix], Matrix]:
        """Draw a batch for each of ``rows`` replicas; returns the map x -> H_B x of each row."""
        order = generator.random((rows, self._examples))
        # The first B places of a random order are a sample without replacement.
        batches = np.argpartition(order, self.batch_size - 1, axis=1)[:, : self.batch_size]
        share = np.zeros_like(order)
        np.put_along_axis(share, batches, 1 / self.batch_size, axis=1)
        if self._gradients is not None:
            gradients = self._gradients
            return lambda x: (x @ gradients.T * share) @ gradients
        return lambda x: np.einsum("rk,kij,rj->ri", share, self._hessians, x, optimize=True)

    def conjectured_bounds(self) -> tuple[float, float]:
        """Bounds (lower, upper) on the critical step size of mini-batch ZO-GD to which no counterexample is known.

        With G = E_B[H_B^2]: 2 / (Tr(H^-1 G) + 2 lambda_max(H^-1 G)) and 2 / Tr(H^-1 G), inverse on the range of H.
        At full batch these are the paper's bounds. A conjecture with numerical evidence, not a theorem; for one
        Gaussian query per step, no momentum and no preconditioner.
        """
        values, V = np.linalg.eigh(self.mean)
        moving = values > checks.rounding(self.mean, len(V)) * values[-1]
        whiten = V[:, moving] / np.sqrt(values[moving])
        curvature = np.linalg.eigvalsh(whiten.T @ self.second_moment(np.eye(len(V))) @ whiten)
        return 2 / float(curvature.sum() + 2 * curvature[-1]), 2 / float(curvature.sum())
