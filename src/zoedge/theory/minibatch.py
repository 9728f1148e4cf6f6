"""Mini-batch ZO-SGD: the data are sampled as well as the directions. Beyond the paper, which leaves it open.

With H_B the Hessian on a batch, the estimate is S H_B x and its second moment E[S E_B[H_B X H_B] S].
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from zoedge.theory import checks

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class MiniBatch:
    """A quadratic whose Hessian is the mean over examples, seen through random batches.

    Args:
        hessians: one for each example, shape (N, d, d), each symmetric and positive semi-definite; or, shape
            (N, d), per-example gradients g_k whose outer products g_k g_k^T are the Hessians.
        batch_size: how many different examples make a batch (sampled without replacement), at most N.
    """

    hessians: NDArray[np.float64]
    batch_size: int

    def __post_init__(self) -> None:
        ndim = np.ndim(self.hessians)
        if ndim not in (2, 3):
            raise ValueError(f"hessians must have shape (N, d, d), or (N, d) for gradients; got {ndim} dimension(s)")
        array = checks.finite_array("hessians", self.hessians, ndim=ndim)
        if ndim == 3:
            array = np.stack([checks.symmetric_matrix(f"hessians[{k}]", matrix) for k, matrix in enumerate(array)])
            lowest = np.linalg.eigvalsh(array)[:, 0]
            if lowest.min() < -1e-9 * np.abs(array).max():
                raise ValueError(f"hessians[{lowest.argmin()}] has the negative eigenvalue {lowest.min():.3g}")
        checks.count("batch_size", self.batch_size)
        if self.batch_size > len(array):
            raise ValueError(f"batch_size {self.batch_size} is larger than the number of examples {len(array)}")
        object.__setattr__(self, "hessians", array)

    @property
    def outer(self) -> bool:
        """Whether the examples are given by gradients."""
        return self.hessians.ndim == 2

    @cached_property
    def mean(self) -> Matrix:
        """H, the Hessian of the full batch."""
        return self.hessians.T @ self.hessians / len(self.hessians) if self.outer else self.hessians.mean(axis=0)

    def second_moment(self, X: Matrix) -> Matrix:
        """E_B[H_B X H_B]."""
        N, B = len(self.hessians), self.batch_size
        full = self.mean @ X @ self.mean
        if B == N:
            return full
        if self.outer:
            squares = np.einsum("ki,ij,kj->k", self.hessians, X, self.hessians)
            each = (self.hessians.T * squares) @ self.hessians / N
        else:
            each = np.einsum("kij,jl,klm->im", self.hessians, X, self.hessians, optimize=True) / N
        return full + (N - B) / (B * (N - 1)) * (each - full)

    def product(self, x: NDArray[np.float64], generator: np.random.Generator) -> NDArray[np.float64]:
        """H_B x with a batch of its own for each row of x, shape (replicas, d)."""
        # The first B columns of a random order are a sample without replacement.
        order = generator.random((len(x), len(self.hessians)))
        batches = np.argpartition(order, self.batch_size - 1, axis=1)[:, : self.batch_size]
        chosen = self.hessians[batches]
        if self.outer:
            return np.einsum("rbi,rbj,rj->ri", chosen, chosen, x, optimize=True) / self.batch_size
        return np.einsum("rbij,rj->ri", chosen, x, optimize=True) / self.batch_size

    def conjectured_bounds(self) -> tuple[float, float]:
        """Bounds (lower, upper) on the critical step size of mini-batch ZO-GD to which no counterexample is known.

        With G = E_B[H_B^2]: 2 / (Tr(H^-1 G) + 2 lambda_max(H^-1 G)) and 2 / Tr(H^-1 G), inverse on the range of H.
        At full batch these are the paper's bounds. A conjecture with numerical evidence, not a theorem; for one
        Gaussian query per step, no momentum and no preconditioner.
        """
        values, V = np.linalg.eigh(self.mean)
        moving = values > 1e-12 * values[-1]
        whiten = V[:, moving] / np.sqrt(values[moving])
        curvature = np.linalg.eigvalsh(whiten.T @ self.second_moment(np.eye(len(V))) @ whiten)
        return 2 / float(curvature.sum() + 2 * curvature[-1]), 2 / float(curvature.sum())
