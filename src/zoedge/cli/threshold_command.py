"""``zoedge threshold``: critical step sizes from a spectrum, or from trace and largest eigenvalue."""

import json as jsonlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import tyro
from rich import box
from rich.console import Console
from rich.table import Table

from zoedge.cli.curvature_files import Curvature, from_file, from_numbers, from_spectrum
from zoedge.theory import (
    METHODS,
    Estimator,
    MatrixCovariance,
    Method,
    Spectrum,
    checks,
    critical_step_size,
    mean_critical_step_size,
    step_size_bounds,
)
from zoedge.theory.estimator import Directions
from zoedge.theory.spectrum import Negative

MethodName = Literal["gd", "gdm", "adam", "zo-gd", "zo-gdm", "zo-adam"]

# An edge ratio this near to 1 counts as "at the edge".
_AT_THE_EDGE = 0.05
_TABLE_WIDTH = 84


@dataclass(frozen=True)
class Row:
    """The critical step sizes of one method; ``None`` is what the given numbers do not determine."""

    mean: float
    mean_square: float | None
    lower: float | None
    upper: float | None


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
    negative: Negative = "raise",
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
        lr: A step size to judge: adds its edge ratio (step size over critical step size) and a verdict; within 5 % of
            1 is "at the edge".
        trace: Trace of H, instead of a file.
        lambda_max: Largest eigenvalue of H, instead of a file.
        dimension: Number of parameters; needed for sphere directions with --trace.
        negative: What to do with negative eigenvalues, which the theory does not know: raise an error, keep them in
            the sums, or clip them to zero.
        example: Use an example spectrum, 1/i for i = 1..1000.
        json: Print JSON with full precision.
        plot: Draw critical step sizes against momentum into this file (.png, .svg, .pdf); without a spectrum, of the
            example.
    """
    checks.fraction("--beta", beta)
    if lr is not None and checks.positive("--lr", lr) > 1e100:
        raise ValueError(f"--lr must be a sensible step size, got {lr}")
    estimator = Estimator(directions=directions, queries=queries)
    if plot is not None and (plot.suffix not in (".png", ".svg", ".pdf") or not estimator.isotropic):
        raise ValueError("--plot needs a name that ends in .png, .svg or .pdf, and gaussian or sphere directions")
    numbers = trace is not None or lambda_max is not None
    if plot is not None and spectrum is None and not numbers:
        example = True
    if (spectrum is not None) + example + numbers != 1:
        raise ValueError(
            "give one source of curvature: a file with eigenvalues, or --trace with --lambda-max, or --example"
        )
    if numbers:
        if plot is not None:
            raise ValueError("--plot needs a spectrum: give a file, or --example")
        curvature = from_numbers(trace, lambda_max, dimension, sphere=directions == "sphere")
    elif dimension is not None:
        raise ValueError("--dimension goes with --trace: a spectrum has a dimension of its own")
    else:
        source = Spectrum.power_law(1000) if spectrum is None else from_file(spectrum)
        curvature = from_spectrum(source, negative)
    methods = [_method(name, beta) for name in ([method] if method else METHODS)]
    rows = {m: _row(m, estimator, curvature) for m in methods}

    if plot is not None and curvature.spectrum is not None:
        from zoedge.report import momentum_figure  # matplotlib takes half a second to load

        plot.parent.mkdir(parents=True, exist_ok=True)
        momentum_figure(curvature.spectrum, estimator).savefig(plot)
    if json:
        document = {m.name: asdict(row) | ({} if lr is None else _judged(row, lr)) for m, row in rows.items()}
        print(jsonlib.dumps(document, indent=2, allow_nan=False))
        return
    console = Console()
    # A narrow terminal wraps lines; cutting digits off would be worse.
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(_table(rows, estimator, curvature, beta, lr))
    if plot is not None:
        print(f"figure: {plot}")


def _method(name: str, beta: float) -> Method:
    cls = METHODS[name]
    return cls(*(beta for _ in fields(cls)))


def _row(method: Method, estimator: Estimator, curvature: Curvature) -> Row:
    mean = mean_critical_step_size([curvature.lambda_max], method)
    if method.zeroth_order and not estimator.isotropic:
        if curvature.matrix is None:
            raise ValueError(
                "rademacher directions need the matrix H, not only its eigenvalues: give a file with a square matrix"
            )
        return Row(mean, MatrixCovariance(curvature.matrix, method, estimator).critical_step_size(), None, None)
    lower, upper = step_size_bounds(
        curvature.trace,
        curvature.lambda_max,
        method,
        estimator,
        dimension=curvature.dimension,
        positive_trace=curvature.positive_trace,
    )
    if curvature.spectrum is not None:
        exact = critical_step_size(curvature.spectrum, method, estimator, negative="keep")
    else:
        exact = None if method.zeroth_order else upper
    return Row(mean, exact, lower, upper)


def _judged(row: Row, lr: float) -> dict[str, float | list[float] | str | None]:
    """The edge ratio of a step size, and what it means in words."""
    if row.mean_square is not None:
        ratio = lr / row.mean_square
        at_the_edge = abs(ratio - 1) <= _AT_THE_EDGE
        return {"edge_ratio": ratio, "verdict": "at the edge" if at_the_edge else _side(ratio)}
    assert row.lower is not None
    assert row.upper is not None
    ratios = [lr / row.upper, lr / row.lower]
    undecided = ratios[0] < 1 < ratios[1]
    return {"edge_ratio": None, "edge_ratio_bounds": ratios, "verdict": "undecided" if undecided else _side(ratios[0])}


def _side(ratio: float) -> str:
    return "stable" if ratio < 1 else "unstable"


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
        cells = [method.label, *(_number(value) for value in (row.mean, row.mean_square, row.lower, row.upper))]
        if lr is not None:
            judged = _judged(row, lr)
            bounds = judged.get("edge_ratio_bounds", [judged["edge_ratio"]])
            assert isinstance(bounds, list)
            cells += [" to ".join(_number(bound, 3) for bound in bounds), str(judged["verdict"])]
        table.add_row(*cells)
    return table


def _number(value: object, digits: int = 5) -> str:
    return f"{value:.{digits}g}" if isinstance(value, float | np.floating) else "-"


def main(arguments: list[str]) -> None:
    """Parse and run."""
    tyro.cli(threshold, prog="zoedge threshold", args=arguments)
