"""What the readings of a run say: has it reached the edge, and does it stay there?"""

import math
from dataclasses import dataclass

import numpy as np

# Training hovers around the edge: a run is there from the first reading with an edge ratio of at least this on, if the
# median from there on is, too.
REACHED = 0.8
# The threshold may lie so far outside of the band, relative to it, and still count as inside.
WIDENED = 0.1


@dataclass(frozen=True)
class Verdict:
    """The readings of a run in a few numbers.

    Attributes:
        reached: the step from which on the run is at the edge, or ``None``.
        readings: number of readings from there on (0 without any, 1 if the edge was not reached).
        in_band: share of these with the threshold in the band, widened by 10 %.
        edge_ratio: mean of the exact edge ratio from there on (of the last reading, if the edge was not reached).
        lowest, highest: its range from there on (of all readings, if the edge was not reached).
        lower: mean of the lower term from there on: the trace, or the largest eigenvalue for first-order methods.
        threshold: of the last reading.
    """

    reached: int | None
    readings: int
    in_band: float
    edge_ratio: float
    lowest: float
    highest: float
    lower: float
    threshold: float

    def __str__(self) -> str:
        if not self.readings:
            return "not measured"
        if self.reached is None:
            return f"below the edge, edge ratio {self.edge_ratio:.2f}"
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
    reached = next((i for i, ratio in enumerate(ratios) if ratio >= REACHED <= np.median(ratios[i:])), None)
    start = len(step) - 1 if reached is None else reached
    low, high = lower[start:] * (1 - WIDENED), upper[start:] * (1 + WIDENED)
    seen = ratios if reached is None else ratios[start:]
    return Verdict(
        None if reached is None else int(step[start]),
        len(step) - start,
        float(np.mean((low <= threshold[start:]) & (threshold[start:] <= high))),
        float(ratios[start:].mean()),
        float(seen.min()),
        float(seen.max()),
        float(lower[start:].mean()),
        float(threshold[-1]),
    )
