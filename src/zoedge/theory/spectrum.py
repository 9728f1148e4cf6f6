"""The spectrum: eigenvalues with weights, which is all that the isotropic theory needs to know of a Hessian."""

import math
from functools import cached_property

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray

from zoedge.theory import checks


class Spectrum:
    """Eigenvalues with weights.

    A dense spectrum has weights 1 (``weights=None``). An estimated one has its top eigenvalues with weight 1 and
    quadrature nodes that stand for many eigenvalues each. Sums over the spectrum are weighted.

    Args:
        eigenvalues: shape (m,), in any order.
        weights: shape (m,), not negative; ``None`` means 1 each.

    Attributes:
        eigenvalues: as float64, read-only.
        weights: as float64, read-only, or ``None``.
        lambda_min: the smallest eigenvalue.
        lambda_max: the largest eigenvalue.
    """

    def __init__(self, eigenvalues: ArrayLike, weights: ArrayLike | None = None) -> None:
        values = checks.real_array("eigenvalues", eigenvalues, ndim=1)
        # min and max propagate NaN and show infinities: no pass of isfinite over 1e7 numbers is needed.
        self.lambda_min, self.lambda_max = float(values.min()), float(values.max())
        if not (math.isfinite(self.lambda_min) and math.isfinite(self.lambda_max)):
            raise ValueError("eigenvalues hold NaN or infinite entries: remove them, or find where they come from")
        self.eigenvalues = _read_only(values)
        self.weights: NDArray[np.float64] | None = None
        if weights is not None:
            w = checks.finite_array("weights", weights, ndim=1)
            if w.shape != values.shape:
                raise ValueError(f"weights must have the shape of eigenvalues {values.shape}, got {w.shape}")
            if w.min() < 0:
                raise ValueError("weights must not be negative: a weight counts eigenvalues")
            if w.sum() == 0:
                raise ValueError("weights must not all be zero")
            self.weights = _read_only(w)

    @classmethod
    def from_matrix(cls, H: ArrayLike, preconditioner: ArrayLike | None = None) -> "Spectrum":
        """Spectrum of a symmetric matrix H, or of P^-1 H for a positive definite P (its diagonal, or a matrix)."""
        matrix = checks.symmetric_matrix("H", H)
        if preconditioner is None:
            return cls(scipy.linalg.eigvalsh(matrix))
        P = checks.preconditioner(preconditioner, len(matrix))
        return cls(scipy.linalg.eigh(matrix, P, eigvals_only=True))

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

    def without_negatives(self, negative: str) -> "Spectrum":
        """Apply the rule for negative eigenvalues, which the theory does not know: raise, keep, or clip to zero.

        Negative eigenvalues at the level of rounding are always clipped when the rule is ``"raise"``.
        """
        checks.choice("negative", negative, ("raise", "keep", "clip"))
        if self.lambda_min >= 0 or negative == "keep":
            return self
        rounding = len(self.eigenvalues) * np.finfo(np.float64).eps * max(self.lambda_max, 0.0)
        if negative == "raise" and self.lambda_min < -rounding:
            raise ValueError(
                f"eigenvalues go down to {self.lambda_min:.3g}, but the theory assumes none below zero: pass "
                "negative='keep' to put them into the sum as they are, or negative='clip' to take them as zero"
            )
        return Spectrum(np.maximum(self.eigenvalues, 0), self.weights)


def as_spectrum(value: Spectrum | ArrayLike) -> Spectrum:
    """``value`` itself, or the spectrum with these eigenvalues."""
    return value if isinstance(value, Spectrum) else Spectrum(value)


def _read_only(array: NDArray[np.float64]) -> NDArray[np.float64]:
    """A view that cannot be written to, while the caller's own array stays writable."""
    view = array.view()
    view.flags.writeable = False
    return view
