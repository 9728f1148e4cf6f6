"""The band figure of the paper: the loss above, below the curvature terms with the threshold they settle at."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from zoedge.experiments.folder import RunFolder
from zoedge.theory import METHODS

_STYLES = {
    "lower": ("-", 1.6, "lower term"),
    "upper": ("-.", 1.0, "upper term"),
    "exact": (":", 1.4, "exact curvature"),
    "threshold": ("--", 1.2, "threshold"),
}
_HEIGHTS = {"loss": 2.4, "band": 3.6, "commutator": 1.8, "lr": 2.4}


@dataclass(frozen=True)
class Column:
    """A column of a figure: runs that are drawn over each other, one colour each.

    Attributes:
        title: above it.
        runs: that are drawn.
        labels: of the runs.
    """

    title: str
    runs: Sequence[RunFolder]
    labels: Sequence[str]


def band_figure(columns: Sequence[Column], rows: Sequence[str] = ("loss", "band")) -> Figure:
    """Draw columns of runs.

    In the row of the band: lower term solid, upper term dash-dotted, exact curvature dotted, threshold dashed; of a
    first-order run the largest eigenvalue is all three terms and is drawn once.

    Args:
        columns: side by side.
        rows: ``loss``, ``band``, ``commutator`` and ``lr``, from above.
    """
    heights = [_HEIGHTS[row] for row in rows]
    width = 6.4 if len(columns) == 1 else 4.2 * len(columns)
    figure = Figure(figsize=(width, sum(heights)), layout="constrained", dpi=160)
    grid = figure.subplots(len(rows), len(columns), sharex="col", squeeze=False, height_ratios=heights)
    for axes, column in zip(grid.T, columns, strict=True):
        for place, row in zip(axes, rows, strict=True):
            _DRAW[row](place, column)
            place.spines[["top", "right"]].set_visible(False)
            place.grid(alpha=0.2)
        # A dollar would begin a formula.
        names = [label.replace("$", r"\$") for label in column.labels]
        colors = [Line2D([], [], color=f"C{i}", label=name) for i, name in enumerate(names)]
        axes[0].legend(handles=colors, frameon=False, fontsize=8, loc="best" if rows[0] == "loss" else "lower right")
        axes[0].set_title(column.title, fontsize=11)
        axes[-1].set_xlabel("step")
    _style_legend(grid[list(rows).index("band"), 0], columns)
    return figure


def _draw_loss(axes: Axes, column: Column) -> None:
    for number, run in enumerate(column.runs):
        metrics = run.metrics()
        step, low, middle, high = _stretches(metrics["step"], metrics["loss"])
        axes.fill_between(step, low, high, color=f"C{number}", alpha=0.25, lw=0)
        axes.plot(step, middle, color=f"C{number}", lw=1.1)
    axes.set(ylabel="training loss", yscale="log")


def _draw_band(axes: Axes, column: Column) -> None:
    for number, run in enumerate(column.runs):
        readings = run.readings()
        for name in _terms(run):
            style, width, _ = _STYLES[name]
            axes.plot(readings["step"], readings[name], style, color=f"C{number}", lw=width)
    axes.set(ylabel="curvature", ylim=_range(column.runs))


def _draw_commutator(axes: Axes, column: Column) -> None:
    for number, run in enumerate(column.runs):
        readings = run.readings("commutator")
        axes.plot(readings["step"], readings["commutator"], color=f"C{number}", lw=1.3)
    axes.set(ylabel="rel. commutator", ylim=(0, 1))


def _draw_lr(axes: Axes, column: Column) -> None:
    """The step size, and the critical one at the readings."""
    for number, run in enumerate(column.runs):
        metrics, readings = run.metrics(), run.readings()
        axes.plot(metrics["step"], metrics["lr"], color=f"C{number}", lw=1.3)
        exact, threshold = np.array(readings["exact"]), np.array(readings["threshold"])
        critical = np.array(readings["lr"]) * threshold / np.where(exact > 0, exact, np.nan)
        axes.plot(readings["step"], critical, ":", color=f"C{number}", lw=1.4)
    handles = [Line2D([], [], color="0.25", ls=style, label=name) for style, name in (("-", "lr"), (":", "critical"))]
    axes.legend(handles=handles, frameon=False, fontsize=8)
    axes.set(ylabel="step size", yscale="log")


_DRAW = {"loss": _draw_loss, "band": _draw_band, "commutator": _draw_commutator, "lr": _draw_lr}


def _terms(run: RunFolder) -> Sequence[str]:
    return tuple(_STYLES) if METHODS[run.settings.method].zeroth_order else ("lower", "threshold")


def _style_legend(axes: Axes, columns: Sequence[Column]) -> None:
    seen = {name for column in columns for run in column.runs for name in _terms(run)}
    handles = [
        Line2D([], [], color="0.25", ls=style, lw=width, label=name)
        for key, (style, width, name) in _STYLES.items()
        if key in seen
    ]
    # Beside a legend of the colours that may be there already.
    if (first := axes.get_legend()) is not None:
        axes.add_artist(first)
    axes.legend(handles=handles, frameon=False, fontsize=8, ncols=2, loc="upper left")


def _stretches(steps: list[float], loss: list[float], points: int = 400) -> tuple[np.ndarray, ...]:
    """Means of steps; minimum, median and maximum of the loss over short stretches: a zeroth-order loss is noisy."""
    x, y = np.array(steps), np.array(loss)
    width = max(len(x) // points, 1)
    count = len(x) // width
    x, y = x[: count * width].reshape(count, width), y[: count * width].reshape(count, width)
    return x.mean(1), y.min(1), np.median(y, 1), y.max(1)


def _range(runs: Sequence[RunFolder]) -> tuple[float, float]:
    """From zero to a little above the largest threshold and what is near it; catapults may go far beyond."""
    thresholds = [value for run in runs for value in run.readings()["threshold"]]
    uppers = [value for run in runs for value in run.readings()["upper"]]
    if not thresholds:
        return 0.0, 1.0
    # A step size that grows from nearly nothing begins with a threshold far above all others.
    thresholds = [value for value in thresholds if value <= 10 * np.median(thresholds)]
    return 0.0, 1.3 * min(max(max(uppers), max(thresholds)), 2 * max(thresholds))
