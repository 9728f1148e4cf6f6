"""``zoedge threshold``: critical step sizes from a spectrum, or from trace and largest eigenvalue."""

import json as jsonlib
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table

from zoedge.report import momentum_figure
from zoedge.theory import (
    METHODS,
    Estimator,
    MatrixCovariance,
    Method,
    Spectrum,
    critical_step_size,
    mean_critical_step_size,
    step_size_bounds,
)
from zoedge.theory.estimator import Directions

MethodName = Literal["gd", "gdm", "adam", "zo-gd", "zo-gdm", "zo-adam"]


@dataclass(frozen=True)
class Row:
    """The critical step sizes of one method; ``None`` is what the given numbers do not determine."""

    mean: float
    mean_square: float | None
    lower: float | None
    upper: float | None


@dataclass(frozen=True)
class Curvature:
    """What the user gave: always a trace and a largest eigenvalue, perhaps the spectrum, perhaps the matrix."""

    trace: float
    lambda_max: float
    dimension: float | None
    spectrum: Spectrum | None = None
    matrix: NDArray[np.float64] | None = None


def threshold(
    spectrum: Annotated[Path | None, tyro.conf.Positional, tyro.conf.arg(metavar="[SPECTRUM]")] = None,
    /,
    *,
    method: MethodName | None = None,
    beta: float = 0.9,
    directions: Directions = "gaussian",
    queries: int = 1,
    lr: float | None = None,
    trace: float | None = None,
    lambda_max: float | None = None,
    dimension: int | None = None,
    negative: Literal["raise", "keep", "clip"] = "raise",
    example: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False,
    plot: Path | None = None,
) -> None:
    """Critical step sizes: how large may the step size be?

    From a file with eigenvalues or a symmetric matrix (.npy, .csv, .txt), or from --trace and --lambda-max. Without
    --method, all six rows of the paper's Table 1.

    Try:
      zoedge threshold spectrum.npy --lr 1e-3
      zoedge threshold spectrum.npy --method zo-gdm --beta 0.9 --json
      zoedge threshold --trace 900 --lambda-max 40 --method zo-gd
      zoedge threshold --example --plot momentum.png

    Args:
        spectrum: File with the eigenvalues of H (of P^-1 H for Adam and ZO-Adam), or with the symmetric matrix H.
        method: One method only.
        beta: Momentum of GDM and ZO-GDM, beta1 of Adam and ZO-Adam.
        directions: Distribution of the search directions. Rademacher needs a matrix.
        queries: Directions averaged per step.
        lr: A step size to judge: adds its edge ratio and a verdict.
        trace: Trace of H, instead of a file.
        lambda_max: Largest eigenvalue of H, instead of a file.
        dimension: Number of parameters; needed for sphere directions with --trace.
        negative: What to do with negative eigenvalues, which the theory does not know: raise an error, keep them in
            the sums, or clip them to zero.
        example: Use an example spectrum, 1/i for i = 1..1000.
        json: Print JSON with full precision.
        plot: Also draw critical step sizes against momentum into this file (.png, .svg, .pdf).
    """
    if lr is not None and not (math.isfinite(lr) and lr > 0):
        raise ValueError(f"--lr must be positive, got {lr}")
    curvature = _curvature(spectrum, trace, lambda_max, dimension, example, negative)
    if plot is not None and curvature.spectrum is None:
        raise ValueError("--plot needs a spectrum: give a file, or --example")
    estimator = Estimator(directions=directions, queries=queries)
    methods = [_method(name, beta) for name in ([method] if method else METHODS)]
    rows = {m: _row(m, estimator, curvature, negative) for m in methods}

    if plot is not None and curvature.spectrum is not None:
        plot.parent.mkdir(parents=True, exist_ok=True)
        momentum_figure(curvature.spectrum, estimator).savefig(plot)
    if json:
        document = {m.name: asdict(row) | ({} if lr is None else _judged(row, lr)) for m, row in rows.items()}
        print(jsonlib.dumps(document, indent=2, allow_nan=False))
        return
    Console().print(_table(rows, estimator, curvature, beta, lr))
    if plot is not None:
        print(f"figure: {plot}")


def _method(name: str, beta: float) -> Method:
    cls = METHODS[name]
    return cls() if name in ("gd", "zo-gd") else cls(beta)  # pyright: ignore[reportCallIssue]


def _row(method: Method, estimator: Estimator, curvature: Curvature, negative: str) -> Row:
    isotropic = estimator.isotropic or not method.zeroth_order
    exact = lower = upper = None
    if not isotropic:
        if curvature.matrix is None:
            raise ValueError(
                "rademacher directions need the matrix H, not only its eigenvalues: give a file with a square matrix"
            )
        exact = MatrixCovariance(curvature.matrix, method, estimator).critical_step_size()
    else:
        if curvature.spectrum is not None:
            exact = critical_step_size(curvature.spectrum, method, estimator, negative=negative)
        lower, upper = step_size_bounds(
            curvature.trace,
            curvature.lambda_max,
            method,
            estimator,
            dimension=curvature.dimension,
            # The spectrum has passed its own check, or has been clipped.
            negative=negative if curvature.spectrum is None else "keep",
        )
        if not method.zeroth_order:
            exact = upper
    return Row(mean_critical_step_size([curvature.lambda_max], method), exact, lower, upper)


def _judged(row: Row, lr: float) -> dict[str, float | list[float | None] | str | None]:
    """The edge ratio of a step size, and what it means in words."""
    if row.mean_square is not None:
        ratio = lr / row.mean_square
        verdict = "stable" if ratio < 0.95 else "unstable" if ratio > 1.05 else "at the edge"
        return {"edge_ratio": ratio, "verdict": verdict}
    assert row.lower is not None
    assert row.upper is not None
    verdict = "stable" if lr <= row.lower else "unstable" if lr >= row.upper else "undecided"
    return {"edge_ratio": None, "edge_ratio_bounds": [lr / row.upper, lr / row.lower], "verdict": verdict}


def _table(rows: dict[Method, Row], estimator: Estimator, curvature: Curvature, beta: float, lr: float | None) -> Table:
    title = f"Critical step sizes at trace {curvature.trace:.6g}, lambda_max {curvature.lambda_max:.6g}"
    caption = f"beta {beta:g}; {estimator.directions} directions, {estimator.queries} per step"
    if lr is not None:
        caption += f"; edge ratio at lr {lr:g}"
    table = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for column in ("mean", "mean square", "lower", "upper"):
        table.add_column(column, justify="right", no_wrap=True)
    if lr is not None:
        table.add_column("edge ratio", justify="right", no_wrap=True)
        table.add_column("verdict", no_wrap=True)
    for method, row in rows.items():
        cells = [
            method.label,
            *(_number(value) for value in (row.mean, row.mean_square, row.lower, row.upper)),
        ]
        if lr is not None:
            judged = _judged(row, lr)
            bounds = judged.get("edge_ratio_bounds")
            ratio = (
                "-".join(_number(bound, 3) for bound in bounds)
                if isinstance(bounds, list)
                else _number(judged["edge_ratio"], 3)
            )
            cells += [ratio, str(judged["verdict"])]
        table.add_row(*cells)
    return table


def _number(value: object, digits: int = 5) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float) else "-"


def _curvature(
    path: Path | None,
    trace: float | None,
    lambda_max: float | None,
    dimension: int | None,
    example: bool,
    negative: str,
) -> Curvature:
    numbers = trace is not None or lambda_max is not None
    if (path is not None) + example + numbers != 1:
        raise ValueError(
            "give one source of curvature: a file with eigenvalues, or --trace with --lambda-max, or --example"
        )
    if numbers:
        if trace is None or lambda_max is None:
            raise ValueError("--trace and --lambda-max go together: give both")
        if not (lambda_max > 0 and math.isfinite(lambda_max) and math.isfinite(trace)):
            raise ValueError(
                f"--trace and --lambda-max must be finite, --lambda-max positive; got {trace}, {lambda_max}"
            )
        return Curvature(trace, lambda_max, dimension)
    array = Spectrum.power_law(1000).eigenvalues if path is None else _load(path)
    matrix = array if array.ndim == 2 else None
    spectrum = Spectrum(array) if matrix is None else Spectrum.from_matrix(array)
    spectrum = spectrum.without_negatives(negative)
    if spectrum.lambda_max <= 0:
        raise ValueError("no eigenvalue is positive: every step size is stable, or none")
    return Curvature(spectrum.trace, spectrum.lambda_max, spectrum.dimension, spectrum, matrix)


def _load(path: Path) -> NDArray[np.float64]:
    """Eigenvalues, shape (d,), or a square matrix, from a .npy, .csv or .txt file."""
    try:
        if path.suffix == ".npy":
            array = np.load(path, allow_pickle=False)
        elif path.suffix in (".csv", ".txt"):
            array = np.loadtxt(path, delimiter="," if path.suffix == ".csv" else None, ndmin=1)
        else:
            raise ValueError("its name must end in .npy, .csv or .txt")
    except FileNotFoundError:
        raise ValueError(f"{path}: there is no such file") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    if array.size == 0:
        raise ValueError(f"{path}: the file holds no numbers")
    if array.ndim == 2 and 1 in array.shape:
        array = array.ravel()
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise ValueError(f"{path}: expected real numbers in one row, one column or a square matrix")
    return array
