"""What a user gives as curvature: a file with eigenvalues or a matrix, or two numbers."""

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from zoedge.theory import Spectrum, checks
from zoedge.theory.spectrum import Negative


@dataclass(frozen=True)
class Curvature:
    """Always a trace and a largest eigenvalue, perhaps the spectrum, perhaps the matrix.

    ``positive_trace`` is the sum of the positive eigenvalues.
    """

    trace: float
    lambda_max: float
    dimension: float | None
    positive_trace: float
    spectrum: Spectrum | None = None
    matrix: NDArray[np.float64] | None = None


def from_numbers(trace: float | None, lambda_max: float | None, dimension: int | None, sphere: bool) -> Curvature:
    """From --trace and --lambda-max."""
    if trace is None or lambda_max is None:
        raise ValueError("--trace and --lambda-max go together: give both")
    checks.number("--trace", trace)
    if checks.positive("--lambda-max", lambda_max) > 1e100 or lambda_max < 1e-100:
        raise ValueError(f"--lambda-max must be a sensible curvature, got {lambda_max}")
    if trace < lambda_max:
        raise ValueError(
            f"--trace {trace:g} is below --lambda-max {lambda_max:g}, so H has negative eigenvalues, and two numbers "
            "do not bound the critical step size: give a file with the eigenvalues and --negative keep"
        )
    if sphere and dimension is None:
        raise ValueError("sphere directions need the number of parameters: give --dimension")
    return Curvature(trace, lambda_max, dimension, trace)


def from_spectrum(source: Spectrum | NDArray[np.float64], negative: Negative) -> Curvature:
    """From a spectrum or the array of a file, with the rule for negative eigenvalues applied."""
    matrix = None
    if isinstance(source, Spectrum):
        spectrum = source
    elif source.ndim == 1:
        spectrum = Spectrum(source)
    else:
        matrix, spectrum = source, Spectrum.from_matrix(source)
    try:
        spectrum = spectrum.treat_negatives(negative)
    except ValueError:
        raise ValueError(
            f"eigenvalues go down to {spectrum.lambda_min:.3g}, but the theory assumes none below zero: pass "
            "--negative keep to put them into the sums as they are, or --negative clip to take them as zero"
        ) from None
    if spectrum.lambda_max <= 0:
        raise ValueError("no eigenvalue is positive: there is no critical step size")
    if matrix is not None and negative == "clip":
        values, V = np.linalg.eigh(matrix)
        matrix = (V * np.maximum(values, 0)) @ V.T
    return Curvature(spectrum.trace, spectrum.lambda_max, spectrum.dimension, spectrum.positive_trace, spectrum, matrix)


def from_file(path: Path) -> NDArray[np.float64]:
    """Eigenvalues, shape (d,), or a square matrix, from a .npy, .csv or .txt file."""
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".csv", ".txt"):
        raise ValueError(f"{path}: the name of a spectrum file must end in .npy, .csv or .txt")
    if path.is_dir():
        raise ValueError(f"{path}: this is a folder, give a file in it")
    try:
        if suffix == ".npy":
            array = np.load(path, allow_pickle=False)
        else:
            with warnings.catch_warnings(action="ignore"):  # of an empty file, which is seen below
                array = np.loadtxt(path, delimiter="," if suffix == ".csv" else None, ndmin=1, encoding="utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except (ValueError, EOFError) as error:
        kind = "an array saved by numpy.save" if suffix == ".npy" else "numbers only, without a header"
        raise ValueError(f"{path}: expected {kind} ({error})") from None
    if array.size == 0:
        raise ValueError(f"{path}: the file holds no numbers")
    if array.ndim == 2 and 1 in array.shape:
        array = array.ravel()
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise ValueError(f"{path}: expected real numbers in one row, one column or a square matrix")
    return array
