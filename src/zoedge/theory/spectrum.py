"""The spectrum: eigenvalues with weights, which is all that the isotropic theory needs to know of a Hessian."""

import math
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from zoedge.theory import checks

Negative = Literal["raise", "keep", "clip"]


class Spectrum:
    """Eigenvalues with weights.

    A dense spectrum has weights 1 (``weights=None``). An estimated one has its top eigenvalues with weight 1 and
    quadrature nodes that stand for many eigenvalues each. Sums over the spectrum are weighted.

    Args:
        eigenvalues: shape (m,), in any order.
        weights: shape (m,), not negative; ``None`` means 1 each. Entries of weight 0 are dropped; any other one counts
            as an eigenvalue, so that a tiny weight at the top still limits the step size.

    Attributes:
        eigenvalues: as float64, read-only.
        weights: as float64, read-only, or ``None``.
        lambda_min: the smallest eigenvalue.
        lambda_max: the largest eigenvalue.
    """

    def __init__(self, eigenvalues: ArrayLike, weights: ArrayLike | None = None) -> None:
        if isinstance(eigenvalues, np.ndarray) and eigenvalues.ndim == 2:
            raise ValueError("eigenvalues must have 1 dimension, got a matrix: use Spectrum.from_matrix(H)")
        # A copy: what is computed from the eigenvalues is remembered, so nobody may change them.
        values = np.array(checks.real_array("eigenvalues", eigenvalues, ndim=1))
        self._rounding = checks.rounding(eigenvalues, len(values))
        if weights is not None:
            values, weights = _weighted(values, weights)
        # min and max propagate NaN and show infinities: no pass of isfinite over 1e7 numbers is needed.
        self.lambda_min, self.lambda_max = float(values.min()), float(values.max())
        if not (math.isfinite(self.lambda_min) and math.isfinite(self.lambda_max)):
            raise ValueError("eigenvalues hold NaN or infinite entries: remove them, or find where they come from")
        largest = max(-self.lambda_min, self.lambda_max)
        if largest != 0 and not 1e-150 < largest < 1e150:
            raise ValueError(f"eigenvalues of size {largest:.3g} overflow when squared: rescale H")
        self.eigenvalues = values
        self.weights: NDArray[np.float64] | None = weights
        values.flags.writeable = False

    @classmethod
    def from_matrix(cls, H: ArrayLike, preconditioner: ArrayLike | None = None) -> "Spectrum":
        """Spectrum of a symmetric matrix H, or of P^-1 H for a positive definite P (its diagonal, or a matrix)."""
        matrix = checks.symmetric_matrix("H", H)
        P = None if preconditioner is None else checks.preconditioner(preconditioner, len(matrix))
        spectrum = cls(scipy.linalg.eigh(matrix, P, eigvals_only=True))
        spectrum._rounding = checks.rounding(H, len(matrix))
        return spectrum

    @classmethod
    def power_law(cls, dimension: int, exponent: float = 1.0, lambda_max: float = 1.0) -> "Spectrum":
        """The spectrum lambda_max * i^-exponent, i = 1..dimension."""
        ranks = np.arange(1, checks.count("dimension", dimension) + 1, dtype=np.float64)
        return cls(checks.positive("lambda_max", lambda_max) * ranks ** -checks.number("exponent", exponent))

    @cached_property
    def trace(self) -> float:
        """The weighted sum of the eigenvalues."""
        return self.sum(self.eigenvalues)

    @cached_property
    def positive_trace(self) -> float:
        """The weighted sum of the positive eigenvalues."""
        if self.lambda_min >= 0:
            return self.trace
        return self.sum(np.maximum(self.eigenvalues, 0))

    @cached_property
    def dimension(self) -> float:
        """The number of eigenvalues, counted with their weights."""
        return float(len(self.eigenvalues)) if self.weights is None else float(self.weights.sum())

    def __repr__(self) -> str:
        return (
            f"Spectrum(dimension={self.dimension:g}, trace={self.trace:.6g}, "
            f"lambda_min={self.lambda_min:.6g}, lambda_max={self.lambda_max:.6g})"
        )

    def sum(self, values: NDArray[np.float64]) -> float:
        """Weighted sum of ``values``, one for each eigenvalue."""
        return float(values.sum() if self.weights is None else self.weights @ values)

    def treat_negatives(self, rule: Negative) -> "Spectrum":
        """Apply a rule for negative eigenvalues, which the theory does not know: raise, keep, or clip to zero.

        What rounding can leave below zero is clipped when the rule is ``"raise"``.
        """
        checks.choice("negative", rule, get_args(Negative))
        if self.lambda_min >= 0 or rule == "keep":
            return self
        if rule == "raise" and self.lambda_min < -self._rounding * max(self.lambda_max, 0.0):
            raise ValueError(
                f"eigenvalues go down to {self.lambda_min:.3g}, but the theory assumes none below zero: pass "
                "negative='keep' to put them into the sum as they are, or negative='clip' to take them as zero"
            )
        return Spectrum(np.maximum(self.eigenvalues, 0), self.weights)


def as_spectrum(value: Spectrum | ArrayLike) -> Spectrum:
    """``value`` itself, or the spectrum with these eigenvalues."""
    return value if isinstance(value, Spectrum) else Spectrum(value)


def _weighted(values: NDArray[np.float64], weights: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values and weights, checked, without those that count for nothing."""
    w = np.array(checks.finite_array("weights", weights, ndim=1))
    if w.shape != values.shape:
        raise ValueError(f"weights must have the shape of eigenvalues {values.shape}, got {w.shape}")
    if w.min() < 0:
        raise ValueError("weights must not be negative: a weight counts eigenvalues")
    if w.max() == 0:
        raise ValueError("weights must not all be zero")
    w.flags.writeable = False
    return (values, w) if w.min() > 0 else (values[w > 0], w[w > 0])
