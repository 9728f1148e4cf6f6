"""The band figure of the paper: the loss above, below the curvature terms with the threshold they settle at."""

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


def band_figure(runs: list[RunFolder], labels: list[str]) -> Figure:
    """Draw runs, one colour each.

    Lower term solid, upper term dash-dotted, exact curvature dotted, threshold dashed; of a first-order run the largest
    eigenvalue is all three terms and is drawn once.
    """
    figure = Figure(figsize=(6.4, 6.0), layout="constrained", dpi=160)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 1.5))
    seen = {"lower", "threshold"}
    for number, (run, label) in enumerate(zip(runs, labels, strict=True)):
        color = f"C{number}"
        metrics, readings = run.metrics(), run.readings()
        above.plot(*_smoothed(metrics["step"], metrics["loss"]), color=color, lw=1.1, label=label)
        zeroth = METHODS[run.settings.method].zeroth_order
        for name, (style, width, _) in _STYLES.items():
            if zeroth or name in ("lower", "threshold"):
                below.plot(readings["step"], readings[name], style, color=color, lw=width)
                seen.add(name)
    above.set(ylabel="training loss", yscale="log")
    above.legend(frameon=False, fontsize=8)
    below.set(xlabel="step", ylabel="curvature", ylim=_range(runs))
    handles = [
        Line2D([], [], color="0.25", ls=style, lw=width, label=name)
        for key, (style, width, name) in _STYLES.items()
        if key in seen
    ]
    below.legend(handles=handles, frameon=False, fontsize=8, ncols=2, loc="upper left")
    for axes in (above, below):
        _tidy(axes)
    return figure


def _smoothed(steps: list[float], loss: list[float], points: int = 400) -> tuple[np.ndarray, np.ndarray]:
    """Medians over short stretches, if there are many: a zeroth-order loss is noisy."""
    x, y = np.array(steps), np.array(loss)
    width = max(len(x) // points, 1)
    count = len(x) // width
    x, y = x[: count * width].reshape(count, width), y[: count * width].reshape(count, width)
    return x.mean(1), np.median(y, 1)


def _range(runs: list[RunFolder]) -> tuple[float, float]:
    """From zero to a little above the largest threshold and what is near it; catapults may go far beyond."""
    thresholds = [value for run in runs for value in run.readings()["threshold"]]
    uppers = [value for run in runs for value in run.readings()["upper"]]
    if not thresholds:
        return 0.0, 1.0
    return 0.0, 1.3 * min(max(max(uppers), max(thresholds)), 2 * max(thresholds))


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.2)
