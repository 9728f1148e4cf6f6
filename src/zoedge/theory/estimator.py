"""The estimator: how a zeroth-order method estimates the gradient.

On a quadratic the two-point estimate of n queries is S H x, where S is the average of u u^T over the
directions. Stability needs one more thing about S, how it amplifies a matrix A: E[S A S]. For isotropic
directions this is (1 + kappa) A + b Tr(A) I, so the two numbers kappa and b are all that matters.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from zoedge.theory import checks

Form = Literal["two-point", "forward"]
Directions = Literal["gaussian", "sphere", "rademacher"]
FORMS = ("two-point", "forward")
DIRECTIONS = ("gaussian", "sphere", "rademacher")


@dataclass(frozen=True)
class Estimator:
    """How the gradient is estimated.

    Args:
        form: ``"two-point"``, (f(x + mu u) - f(x - mu u)) / (2 mu) u, or ``"forward"``, (f(x + mu u) - f(x)) / mu u.
        directions: ``"gaussian"``, ``"sphere"`` (of radius sqrt(d)), or ``"rademacher"`` (entries +1 or -1).
        queries: number n of independent directions that are averaged.
        mu: the smoothing.
    """

    form: Form = "two-point"
    directions: Directions = "gaussian"
    queries: int = 1
    mu: float = 1e-3

    def __post_init__(self) -> None:
        checks.choice("form", self.form, FORMS)
        checks.choice("directions", self.directions, DIRECTIONS)
        checks.count("queries", self.queries)
        checks.positive("mu", self.mu)

    @property
    def isotropic(self) -> bool:
        """Whether the directions look the same in every basis."""
        return self.directions != "rademacher"

    def moments(self, dimension: float | None = None) -> tuple[float, float]:
        """The pair (kappa, b) of E[S A S] = (1 + kappa) A + b Tr(A) I.

        Args:
            dimension: number of parameters d; only the sphere needs it.
        """
        if self.directions == "gaussian":
            return 1 / self.queries, 1 / self.queries
        if self.directions == "sphere":
            if dimension is None:
                raise ValueError("dimension is needed for sphere directions: pass the number of parameters")
            d = checks.positive("dimension", dimension)
            return (2 * d / (d + 2) - 1) / self.queries, d / (d + 2) / self.queries
        raise ValueError(
            "directions 'rademacher' are not isotropic: their critical step size depends on the eigenvectors of H, "
            "not on its spectrum alone; pass the matrix to MatrixCovariance, or use 'gaussian' or 'sphere'"
        )

    def second_moment(self, A: NDArray[np.float64]) -> NDArray[np.float64]:
        """E[S A S] for a symmetric matrix A, shape (d, d)."""
        identity = np.eye(len(A))
        if self.isotropic:
            kappa, b = self.moments(len(A))
            return (1 + kappa) * A + b * np.trace(A) * identity
        return A + (A + np.trace(A) * identity - 2 * np.diag(np.diag(A))) / self.queries

    def forward_noise(self, H: NDArray[np.float64]) -> NDArray[np.float64]:
        """Covariance of the forward form's additive term at the minimum, mu^2 / (4 n) E[(u^T H u)^2 u u^T]."""
        d = len(H)
        if self.isotropic:
            radial = 1.0 if self.directions == "gaussian" else d * d / ((d + 2) * (d + 4))
            total = np.trace(H)
            moment = radial * ((total**2 + 2 * np.sum(H * H)) * np.eye(d) + 4 * total * H + 8 * H @ H)
        else:
            off = H - np.diag(np.diag(H))
            square = off @ off
            square -= np.diag(np.diag(square))
            total = np.trace(H)
            moment = (total**2 + 2 * np.sum(off * off)) * np.eye(d) + 4 * total * off + 8 * square
        return self.mu**2 / (4 * self.queries) * moment
