"""How much of the steps on mini-batches is signal.

A step on a batch B promises a decrease of lr |g_B|^2, of which new data keep lr |g|^2: the signal fraction is
s = |g|^2 / E|g_B|^2. One direction shows it with an error of about 1, since g.u is as often positive as negative; but
the steps of a stretch add up where they agree. The slope of k of them together on a new batch, over what they promised,
has the mean s and an error of about 1 / sqrt(k).
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Any

from zoedge.monitor.stretch import Stretch
from zoedge.optim.loss import Closure

# Before it is known, and the least that is assumed.
UNKNOWN, _LEAST = 0.05, 0.02
# New batches on which a stretch is tried, and the weight of past stretches in the average.
_BATCHES, _MEMORY = 4, 0.7
# Slopes that are averaged.
_SLOPES = 100


class Signal:
    """The signal fraction, averaged over stretches; at least 0.02."""

    def __init__(self) -> None:
        self._kept, self._promised = 0.0, 0.0
        self._sums = (0.0, 0.0)
        self._squares: deque[float] = deque(maxlen=_SLOPES)
        self._probes: deque[tuple[float, float]] = deque(maxlen=_SLOPES)

    @property
    def fraction(self) -> float:
        """The signal fraction; 0.05 before the first stretch is over."""
        if self._promised == 0:
            return UNKNOWN
        return min(max(self._kept / self._promised, _LEAST), 1.0)

    def add(self, slopes: Sequence[float], probe_slopes: Sequence[float]) -> None:
        """Take in the slopes of a step."""
        square = _mean_square(slopes)
        self._squares.append(square)
        if not math.isnan(probe_slopes[0]):
            self._probes.append((square, _mean_square(probe_slopes)))

    @property
    def square(self) -> float:
        """The mean of g^T P^-1 g on a step's own batch: squared slopes, in the ratio of the probed ones to all."""
        if not self._squares or not self._probes:
            return 0.0
        plain, probed = (sum(column) for column in zip(*self._probes, strict=True))
        return sum(self._squares) / len(self._squares) * (probed / plain if plain else 1.0)

    def measure(self, stretch: Stretch, closure: Closure, length: int) -> None:
        """At the end of a stretch, see how steeply it goes down on the batch of a closure."""
        left = length - stretch.steps
        if left >= _BATCHES or stretch.decrease == 0:
            return
        slope = stretch.slope(closure)
        if not math.isnan(slope):
            kept, promised = self._sums
            self._sums = kept - slope, promised + stretch.decrease
        if left <= 1:
            kept, promised = self._sums
            self._kept = _MEMORY * self._kept + (1 - _MEMORY) * kept
            self._promised = _MEMORY * self._promised + (1 - _MEMORY) * promised
            self._sums = (0.0, 0.0)

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on."""
        return {
            "numbers": (self._kept, self._promised, *self._sums),
            "squares": list(self._squares),
            "probes": list(self._probes),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        self._kept, self._promised, *sums = state["numbers"]
        self._sums = sums[0], sums[1]
        self._squares = deque(state["squares"], maxlen=_SLOPES)
        self._probes = deque(((a, b) for a, b in state["probes"]), maxlen=_SLOPES)


def _mean_square(slopes: Sequence[float]) -> float:
    return sum(slope**2 for slope in slopes) / len(slopes)
