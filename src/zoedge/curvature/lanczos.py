"""The Lanczos method: the largest eigenvalues of a symmetric operator from products with it.

Every new vector is orthogonalised against the whole basis, twice, so that no ghosts appear and one can deflate by the
basis. When the memory does not hold all of it, it is compressed to its best vectors and goes on (thick restart).
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from zoedge.curvature.estimate import Estimate
from zoedge.curvature.operator import HessianOperator
from zoedge.curvature.probes import MEMORY, Progress, generator_for, norm, normal, project_out, rows_that_fit
from zoedge.theory import checks


@dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues, the largest first, with their vectors.

    Attributes:
        values: shape (k,).
        vectors: shape (k, d), orthonormal rows.
        residuals: |H v - lambda v|, shape (k,): an eigenvalue lies within this distance of lambda.
        errors: estimated distance to the nearest eigenvalue, shape (k,): the residual, or its square over the gap to
            the next. Of an eigenvalue that is there several times a Krylov space shows one, and the others late.
        products: Hessian-vector products taken.
        converged: whether the residuals met the tolerance.
    """

    values: NDArray[np.float64]
    vectors: Tensor
    residuals: NDArray[np.float64]
    errors: NDArray[np.float64]
    products: int
    converged: bool

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: int) -> Estimate:
        return Estimate(float(self.values[i]), float(self.errors[i]), self.products)


class Krylov:
    """An orthonormal basis Q of rows and T = Q H Q^T, grown by one product at a time.

    H Q^T = Q^T T + beta q e^T holds throughout, with q the next vector and e the last unit vector.

    Args:
        H: the operator.
        start: the first direction, not zero.
        size: number of basis vectors that there is room for.
        generator: for a new direction when the basis is invariant.
    """

    def __init__(self, H: HessianOperator, start: Tensor, size: int, generator: torch.Generator) -> None:
        self._H = H
        self._generator = generator
        self._rows = H.empty(size + 1)
        self._T = np.zeros((size, size))
        self._rows[0] = start / norm(start)
        self.size = 0
        self.beta = math.nan
        self.products = 0
        self._coupling = np.empty(0)  # what the next product has of the basis, by symmetry

    @property
    def basis(self) -> Tensor:
        """Q, shape (m, d)."""
        return self._rows[: self.size]

    @property
    def T(self) -> NDArray[np.float64]:
        """Q H Q^T, shape (m, m)."""
        return self._T[: self.size, : self.size]

    @property
    def full(self) -> bool:
        """Whether there is no room, or no dimension, left."""
        return self.size == len(self._T)

    def step(self) -> None:
        """Take a product with the newest vector and put what is new into the basis."""
        w = self._H.rows(self._rows[self.size : self.size + 1])[0]
        self.products += 1
        self.size += 1
        column = self._orthogonalise(w)
        self._check_symmetry(column)
        self._T[: self.size, self.size - 1] = column
        self._T[self.size - 1, : self.size] = column
        self.beta = norm(w)
        # Below the rounding of H's products there is no direction left: the basis is invariant.
        if self.beta <= 10 * torch.finfo(w.dtype).eps * max(float(np.abs(self.T).max()), 1e-300):
            self.beta = 0.0
            w = normal(self._H, self._generator)
            self._orthogonalise(w)
            if self.size == self._H.shape[0]:
                return
        self._rows[self.size] = w / norm(w)
        self._coupling = np.append(np.zeros(self.size - 1), self.beta)

    def ritz(self) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Ritz values, the largest first, their vectors in the basis (columns), and the norms of their residuals."""
        values, vectors = np.linalg.eigh(self.T)
        values, vectors = values[::-1], vectors[:, ::-1]
        return values, vectors, self.beta * np.abs(vectors[-1])

    @property
    def rounding(self) -> float:
        """What rounding in the products makes of an eigenvalue."""
        return float(10 * torch.finfo(self.basis.dtype).eps * np.abs(self.T).sum(0).max())

    def vectors(self, coefficients: NDArray[np.float64]) -> Tensor:
        """Vectors with these coefficients (columns) in the basis, as rows; shape (k, d)."""
        return torch.from_numpy(coefficients.T.copy()).to(self.basis) @ self.basis

    def compress(self, keep: int) -> None:
        """Restart from the ``keep`` largest Ritz vectors and the next direction."""
        values, vectors, _ = self.ritz()
        self._rows[:keep] = self.vectors(vectors[:, :keep])
        self._rows[keep] = self._rows[self.size]
        self._T[:] = 0
        self._T[range(keep), range(keep)] = values[:keep]
        self._coupling = self.beta * vectors[-1, :keep]
        self.size = keep

    def _check_symmetry(self, column: NDArray[np.float64]) -> None:
        """What H q has of earlier vectors is what their products had of q."""
        asymmetry = np.abs(column[:-1] - self._coupling).max(initial=0.0)
        # In the null space of H there is only rounding.
        if asymmetry > 0.01 * np.abs(column).max() + self.rounding:
            raise ArithmeticError(
                "products with the Hessian are not symmetric, so a second derivative in the model is wrong: "
                "PyTorch's weight_norm is known for it, and custom autograd functions are suspect"
            )

    def _orthogonalise(self, w: Tensor) -> NDArray[np.float64]:
        """Subtract from w its part in the basis, twice, in place; its coefficients."""
        total = sum(project_out(w[None], self.basis)[0] for _ in range(2))
        assert isinstance(total, Tensor)
        return total.cpu().numpy()


def first_vector(H: HessianOperator, start: Tensor | None, generator: torch.Generator) -> Tensor:
    """Where a Krylov space starts: at random, or near the sum of earlier vectors, shape (m, d)."""
    noise = normal(H, generator)
    if start is None:
        return noise
    if start.shape[-1] != H.shape[0]:
        raise ValueError(f"start must be vectors of {H.shape[0]} entries, got shape {tuple(start.shape)}")
    total = start.reshape(-1, H.shape[0]).to(noise).sum(0)
    if not norm(total) > 0:
        raise ValueError("start must be vectors whose sum is not zero and finite")
    # As much of every direction, for what the earlier vectors have nothing of.
    return total / norm(total) + noise / norm(noise)


def top_eigenvalues(
    H: HessianOperator,
    k: int = 1,
    *,
    tolerance: float = 1e-3,
    max_products: int = 300,
    start: Tensor | None = None,
    generator: torch.Generator | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Eigenpairs:
    """The k largest eigenvalues (not the largest in size) by Lanczos.

    >>> weights = torch.nn.Parameter(torch.zeros(4))
    >>> H = HessianOperator(lambda: (torch.arange(1, 5) * weights.square()).sum(), [weights])
    >>> top_eigenvalues(H, 2).values.round(4)
    array([8., 6.])

    Args:
        H: the operator.
        k: how many.
        tolerance: stop when the residuals of all are below this, relative to the largest Ritz value in size. The
            error of an eigenvalue is about the square of that.
        max_products: give up then; ``converged`` and the errors tell.
        start: vectors of an earlier, similar operator, shape (m, d): a warm start, from their sum.
        generator: for the start, by default with seed 0.
        memory: bytes for the basis, shape (m, d).
        progress: called with (products so far, max_products).
    """
    d = H.shape[0]
    if checks.count("k", k) > d:
        raise ValueError(f"k must be at most the dimension {d}, got {k}")
    checks.count("max_products", max_products, at_least=k)
    generator = generator_for(H, generator)
    krylov = Krylov(H, first_vector(H, start, generator), _basis_size(H, k, max_products, memory), generator)
    while True:
        krylov.step()
        if progress:
            progress(krylov.products, max_products)
        values, vectors, residuals = krylov.ritz()
        # A few steps more than it may seem to take: early Ritz values can converge and leave out a larger one.
        enough = krylov.products >= 2 * k + 8
        converged = enough and residuals[:k].max() <= tolerance * np.abs(values).max()
        if converged or krylov.size == d or krylov.products >= max_products:
            break
        if krylov.full:
            krylov.compress(k + (krylov.size - k) // 3)
    return Eigenpairs(
        values[:k].copy(),
        krylov.vectors(vectors[:, :k]),
        residuals[:k].copy(),
        ritz_errors(values, residuals, krylov.rounding)[:k],
        krylov.products,
        bool(converged or krylov.size == d),
    )


def _basis_size(H: HessianOperator, k: int, steps: int, memory: int) -> int:
    fit = rows_that_fit(H, memory) - 1
    needed = min(2 * k + 2, H.shape[0])
    if fit < needed:
        raise ValueError(
            f"memory of {memory} bytes holds {max(fit, 0)} vectors of {H.shape[0]} entries, but {k} eigenvalues need "
            f"{needed}: raise memory or lower k"
        )
    return min(fit, max(steps, needed), H.shape[0])


def ritz_errors(values: NDArray[np.float64], residuals: NDArray[np.float64], rounding: float) -> NDArray[np.float64]:
    """The residual, or residual^2 / gap (Kato and Temple) where the neighbour has converged, so that there is a gap."""
    gaps = np.abs(np.diff(values)) - residuals[1:] - residuals[:-1]
    nearest = np.minimum(np.append(np.inf, gaps), np.append(gaps, np.inf))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(nearest > residuals, residuals**2 / nearest, residuals) + rounding
