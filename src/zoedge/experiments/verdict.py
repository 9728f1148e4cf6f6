"""What the readings of a run say: has it reached the edge, and does it stay there?"""

import math
from dataclasses import dataclass

import numpy as np

# The edge is reached at the first reading with an edge ratio of at least this.
REACHED = 0.8
# The threshold may lie so far outside of the band, relative to it, and still count as inside.
WIDENED = 0.1


@dataclass(frozen=True)
class Verdict:
    """The readings of a run in a few numbers.

    Attributes:
        reached: the step of the first reading at the edge, or ``None``.
        readings: number of readings from there on.
        inside: share of these with the threshold in the band, widened by 10 %.
        edge_ratio: mean of the exact edge ratio from there on (of the last reading, if the edge was not reached).
        lowest, highest: its range from there on.
        lower: mean of the lower term from there on: the trace, or the largest eigenvalue for first-order methods.
        threshold: of the last reading.
    """

    reached: int | None
    readings: int
    inside: float
    edge_ratio: float
    lowest: float
    highest: float
    lower: float
    threshold: float

    def __str__(self) -> str:
        if not self.readings:
            return "not measured"
        if self.reached is None:
            return f"inside, edge ratio {self.edge_ratio:.2f}"
        return f"at the edge from step {self.reached} on"


def verdict(readings: dict[str, list[float]]) -> Verdict:
    """The verdict on a run.

    Args:
        readings: columns ``step``, ``lower``, ``upper``, ``exact``, ``threshold`` of the metrics, of measured steps.
    """
    step, lower, upper, exact, threshold = (
        np.array(readings[name]) for name in ("step", "lower", "upper", "exact", "threshold")
    )
    if len(step) == 0:
        return Verdict(None, 0, math.nan, math.nan, math.nan, math.nan, math.nan, math.nan)
    ratios = exact / threshold
    at_edge = np.flatnonzero(ratios >= REACHED)
    start = int(at_edge[0]) if len(at_edge) else len(step) - 1
    low, high = lower[start:] * (1 - WIDENED), upper[start:] * (1 + WIDENED)
    inside = float(np.mean((low <= threshold[start:]) & (threshold[start:] <= high)))
    ratios = ratios[start:]
    return Verdict(
        int(step[start]) if len(at_edge) else None,
        len(ratios),
        inside,
        float(ratios.mean()),
        float(ratios.min()),
        float(ratios.max()),
        float(lower[start:].mean()),
        float(threshold[-1]),
    )
