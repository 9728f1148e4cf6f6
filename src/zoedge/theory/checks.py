"""Checks of arguments: every message names the argument and says what to do."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


def number(name: str, value: float) -> float:
    """Return ``value`` as a float; it must be a finite real number."""
    if isinstance(value, str | bytes | bool):
        raise TypeError(f"{name} must be a number, got {value!r}")
    try:
        result = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(result):
        raise ValueError(f"{name} must be finite, got {result}")
    return result


def positive(name: str, value: float) -> float:
    """Return ``value`` as a float; it must be finite and above zero."""
    result = number(name, value)
    if result <= 0:
        raise ValueError(f"{name} must be positive, got {result}")
    return result


def fraction(name: str, value: float) -> float:
    """Return ``value`` as a float in [0, 1)."""
    result = number(name, value)
    if not 0 <= result < 1:
        raise ValueError(f"{name} must lie in [0, 1), got {result}: at 1 the average never forgets")
    return result


def count(name: str, value: int, at_least: int = 1) -> int:
    """Return ``value`` as an int of at least ``at_least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value}")
    return int(value)


def choice(name: str, value: str, options: Sequence[str]) -> str:
    """Return ``value``; it must be one of ``options``."""
    if value not in options:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}")
    return value


def real_array(name: str, value: ArrayLike, ndim: int) -> NDArray[np.float64]:
    """Return ``value`` as a float64 array of ``ndim`` dimensions, not empty; entries are not looked at."""
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} must be an array of real numbers: {error}") from None
    if array.dtype.kind not in "fiu":
        raise TypeError(f"{name} must hold real numbers, got dtype {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), got shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty")
    return array.astype(np.float64, copy=False)


def rounding(value: ArrayLike, size: int) -> float:
    """Relative size of what rounding can leave in ``size`` eigenvalues, by the precision that ``value`` came in."""
    dtype = np.asarray(value).dtype
    return size * float(np.finfo(dtype if dtype.kind == "f" else np.float64).eps)


def finite_array(name: str, value: ArrayLike, ndim: int) -> NDArray[np.float64]:
    """Return ``value`` as a float64 array of ``ndim`` dimensions with finite entries."""
    array = real_array(name, value, ndim)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds NaN or infinite entries: remove them, or find where they come from")
    return array


def symmetric_matrix(name: str, value: ArrayLike) -> NDArray[np.float64]:
    """Return ``value`` as a symmetric float64 matrix; asymmetry at the level of float32 rounding is averaged out."""
    matrix = finite_array(name, value, ndim=2)
    rows, columns = matrix.shape
    if rows != columns:
        raise ValueError(f"{name} must be square, got shape {matrix.shape}")
    scale = np.abs(matrix).max()
    asymmetry = np.abs(matrix - matrix.T).max()
    if asymmetry > 1e-5 * scale:
        raise ValueError(
            f"{name} must be symmetric, but its largest asymmetry is {asymmetry:.3g} (largest entry {scale:.3g}): "
            f"if it is meant to be, pass ({name} + {name}.T) / 2"
        )
    return (matrix + matrix.T) / 2


def preconditioner(value: ArrayLike | None, dimension: int) -> NDArray[np.float64]:
    """Return the positive definite matrix P of a preconditioner: ``None`` (identity), its diagonal, or a matrix."""
    if value is None:
        return np.eye(dimension)
    array = np.asarray(value)
    if array.ndim == 1:
        matrix = np.diag(finite_array("preconditioner", array, ndim=1))
    else:
        matrix = symmetric_matrix("preconditioner", array)
    if len(matrix) != dimension:
        raise ValueError(f"preconditioner has dimension {len(matrix)}, but H has {dimension}")
    smallest = np.linalg.eigvalsh(matrix)[0]
    if smallest <= 0:
        raise ValueError(
            f"preconditioner must be positive definite, its smallest eigenvalue is {smallest:.3g}: add a small epsilon"
        )
    return matrix
