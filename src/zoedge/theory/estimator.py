"""The estimator: how a zeroth-order method estimates the gradient.

On a quadratic the two-point estimate of n queries is S H x, where S is the average of u u^T over the
directions. Stability needs one more thing about S, how it amplifies a matrix A: E[S A S]. For isotropic
directions this is (1 + kappa) A + b Tr(A) I, so the two numbers kappa and b are all that matters.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from zoedge.theory import checks
from zoedge.theory.methods import Method

Form = Literal["two-point", "forward"]
Directions = Literal["gaussian", "sphere", "rademacher"]


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
        checks.choice("form", self.form, get_args(Form))
        checks.choice("directions", self.directions, get_args(Directions))
        object.__setattr__(self, "queries", checks.count("queries", self.queries))
        object.__setattr__(self, "mu", checks.positive("mu", self.mu))

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
            d = checks.number("dimension", dimension)
            if d == 1:
                return 0.0, 0.0  # u = +1 or -1, so S = 1: no noise
            if d < 2:
                raise ValueError(f"dimension must be 1, or at least 2, for sphere directions, got {d}")
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
        if self.isotropic:
            values, V = np.linalg.eigh(H)
            return (V * self.isotropic_forward_noise(values, float(values.sum()), float(values @ values), len(H))) @ V.T
        off = H - np.diag(np.diag(H))
        square = off @ off
        square -= np.diag(np.diag(square))
        total = np.trace(H)
        moment = (total**2 + 2 * np.sum(off * off)) * np.eye(len(H)) + 4 * total * off + 8 * square
        return self.mu**2 / (4 * self.queries) * moment

    def isotropic_forward_noise(
        self, values: NDArray[np.float64], trace: float, square: float, dimension: float
    ) -> NDArray[np.float64]:
        """The same along the eigenvectors of H, from its eigenvalues, Tr(H) and Tr(H^2)."""
        gaussian = trace**2 + 2 * square + 4 * trace * values + 8 * values**2
        # The sixth moment of the sphere of radius sqrt(d) beside that of the Gaussian.
        radial = 1.0 if self.directions == "gaussian" else dimension**2 / ((dimension + 2) * (dimension + 4))
        return self.mu**2 / (4 * self.queries) * radial * gaussian


def noise_moments(method: Method, estimator: Estimator | None, dimension: float | None) -> tuple[float, float]:
    """The pair (kappa, b) of a method's gradients; a first-order method has no noise, whatever the estimator."""
    if not isinstance(method, Method):
        raise TypeError(f"method must be one such as ZOGD() or ZOGDM(beta=0.9), got {method!r}")
    if estimator is not None and not isinstance(estimator, Estimator):
        raise TypeError(f"estimator must be an Estimator, such as Estimator(queries=4), got {estimator!r}")
    return (estimator or Estimator()).moments(dimension) if method.zeroth_order else (0.0, 0.0)
