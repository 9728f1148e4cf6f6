"""Claims: what a figure of the paper shows, as a condition on the runs behind it, with the numbers that decide it.

A claim about runs of which one did not train to its end, or was not measured, does not hold.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from zoedge.experiments.folder import RunFolder
from zoedge.experiments.verdicts import REACHED, Verdict, verdict

# The share of readings from the edge on that must have the threshold in the widened band.
_IN_BAND = 0.8
# How far a mean over readings may be from what it settles at.
_NEAR = 0.15
# A loss so many times the largest before is a spike.
_SPIKE = 1.5
# The relative commutator at the paper's start and at its floor.
_COMMUTATOR = (0.5, 0.05)


@dataclass(frozen=True)
class Claim:
    """A condition and what was found.

    Attributes:
        text: what must hold.
        holds: whether it does.
        numbers: that decide it, run by run.
    """

    text: str
    holds: bool
    numbers: str


Check = Callable[[Sequence[RunFolder], Sequence[str]], Claim]


def reaches_the_edge(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """Every run trains to its end, and is at the edge by then."""
    found = [verdict(run.readings()) for run in runs]
    return _claim(
        "every run reaches the edge, and trains on",
        runs,
        all(v.reached is not None for v in found),
        _list(names, map(_when, runs, found)),
    )


def stays_in_the_band(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """From the edge on the threshold lies in or very near the band."""
    found = [verdict(run.readings()) for run in runs]
    return _claim(
        f"from then on the threshold is in the band, widened by 10 %, in at least {_IN_BAND:.0%} of the readings",
        runs,
        all(v.reached is not None and v.in_band >= _IN_BAND for v in found),
        _list(names, (f"{v.in_band:.0%} of {v.readings}" if v.reached is not None else "-" for v in found)),
    )


def settles_at_one(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """The exact edge ratio is 1 on average."""
    found = [verdict(run.readings()) for run in runs]
    return _claim(
        f"the mean edge ratio from there on is 1 within {_NEAR:.0%}",
        runs,
        all(v.reached is not None and abs(v.edge_ratio - 1) <= _NEAR for v in found),
        _list(names, (f"{v.edge_ratio:.2f} ({v.lowest:.2f} to {v.highest:.2f})" for v in found)),
    )


def top_settles_at_the_threshold(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """GD: the largest eigenvalue settles at 2/lr."""
    found = [verdict(run.readings()) for run in runs]
    return _claim(
        f"the largest eigenvalue settles at 2/lr, within {_NEAR:.0%}",
        runs,
        all(v.reached is not None and abs(v.lower / v.threshold - 1) <= _NEAR for v in found),
        _list(names, (f"{v.lower / v.threshold:.2f} of it" for v in found)),
    )


def trace_settles_below_the_threshold(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """ZO-GD: the trace settles slightly below 2/lr."""
    found = [verdict(run.readings()) for run in runs]
    least = REACHED - _NEAR
    return _claim(
        f"the trace settles slightly below 2/lr, at {least:.2f} to 1 of it",
        runs,
        all(v.reached is not None and least <= v.lower / v.threshold < 1 for v in found),
        _list(names, (f"{v.lower / v.threshold:.2f} of it" for v in found)),
    )


def loss_spikes(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """Soon after each raise of the step size the loss spikes."""
    found = [_spike(run, phase) for run in runs for phase in _phases(run)[1:]]
    return _claim(
        f"in the quarter after each raise the loss spikes, to {_SPIKE:g} times its largest in the quarter before",
        runs,
        all(ratio >= _SPIKE for ratio in found),
        ", ".join(f"{ratio:.2f} times" for ratio in found),
    )


def trace_drops(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """Each raise puts the trace above the threshold, and it falls below."""
    found = []
    for run in runs:
        for start, end in _phases(run)[1:]:
            lower = _in_phase(run, (start, end), "lower")
            limit = _last(_in_phase(run, (start, end), "threshold"))
            found.append((_last(lower[:1]), min(lower[1:], default=math.nan), limit))
    return _claim(
        "each raise puts the trace above the new threshold, and then it drops below",
        runs,
        all(low < limit < high for high, low, limit in found),
        ", ".join(f"{high:.0f} to {low:.0f} (threshold {limit:.0f})" for high, low, limit in found),
    )


def re_equilibrates(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """In the second half of every phase after a raise the edge ratio is near 1."""
    means = []
    for run in runs:
        for start, end in _phases(run)[1:]:
            half = ((start + end) // 2, end)
            means.append(_mean(_in_phase(run, half, "exact") / _in_phase(run, half, "threshold")))
    return _claim(
        f"in the second half of the phases after a raise the mean edge ratio is 1 within {2 * _NEAR:.0%}",
        runs,
        all(abs(mean - 1) <= 2 * _NEAR for mean in means),
        ", ".join(f"{mean:.2f}" for mean in means),
    )


def falls_with_smoothing(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """Up to mu = 1e-3 the threshold is reached; the larger mu beyond, the smaller the curvature."""
    ratios = [_mean(_last_quarter(run, "exact") / _last_quarter(run, "threshold")) for run in runs]
    small = [ratio for run, ratio in zip(runs, ratios, strict=True) if run.settings.mu <= 1e-3]
    large = [ratio for run, ratio in zip(runs, ratios, strict=True) if run.settings.mu > 1e-3]
    return _claim(
        "mu <= 1e-3 reaches the threshold, larger mu stays below, in order of mu (edge ratio over the last quarter)",
        runs,
        all(r >= REACHED for r in small) and all(r < REACHED for r in large) and all(a > b for a, b in pairwise(large)),
        _list(names, (f"{ratio:.2f}" for ratio in ratios)),
    )


def grows_with_batches(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """Smaller batches settle at smaller traces; the runs are in order of their batches, all data last."""
    means = [_mean(_last_quarter(run, "lower")) for run in runs]
    return _claim(
        "smaller batches settle at smaller traces (mean over the last quarter)",
        runs,
        all(a < b for a, b in pairwise(means)),
        _list(names, (f"{mean:.0f}" for mean in means)),
    )


def commutator_falls(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """Preconditioner and Hessian come to commute."""
    found = []
    for run in runs:
        values = np.array(run.readings("commutator")["commutator"])
        late = values[len(values) // 2 :]
        found.append((_last(values[:1]), min(values, default=math.nan), max(late, default=math.nan)))
    start, floor = _COMMUTATOR
    return _claim(
        f"the relative commutator falls from above {start:g} and stays below {floor:g} in the second half",
        runs,
        all(first > start and late < floor for first, _, late in found),
        _list(names, (f"from {a:.2f} to {b:.3f}, at most {c:.3f} in the second half" for a, b, c in found)),
    )


def _claim(text: str, runs: Sequence[RunFolder], holds: bool, numbers: str) -> Claim:
    """A claim that also needs all runs to have come to their end."""
    ended = [run.status.state == "finished" for run in runs]
    return Claim(text, all(ended) and holds, numbers)


def _list(names: Sequence[str], values: Iterable[str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))


def _when(run: RunFolder, found: Verdict) -> str:
    end = "" if run.status.state == "finished" else f", {run.status.state} at step {run.status.step}"
    return (f"from step {found.reached}" if found.reached is not None else f"up to {found.highest:.2f}") + end


def _mean(values: np.ndarray) -> float:
    """NaN of nothing, with which every comparison fails."""
    return float(values.mean()) if len(values) else math.nan


def _last(values: np.ndarray) -> float:
    return float(values[-1]) if len(values) else math.nan


def _last_quarter(run: RunFolder, column: str) -> np.ndarray:
    """The last quarter of the readings, where runs that settle have settled."""
    values = np.array(run.readings()[column])
    return values[3 * len(values) // 4 :]


def _phases(run: RunFolder) -> list[tuple[int, int]]:
    """First and last steps of the stretches of one step size."""
    starts = [0, *(step for step, _ in run.settings.lr_schedule)]
    return list(zip(starts, [*starts[1:], run.settings.steps + 1], strict=True))


def _in_phase(run: RunFolder, phase: tuple[int, int], column: str) -> np.ndarray:
    readings = run.readings()
    return np.array([v for s, v in zip(readings["step"], readings[column], strict=True) if phase[0] <= s < phase[1]])


def _spike(run: RunFolder, phase: tuple[int, int]) -> float:
    """The largest loss in the first quarter of a phase over the largest in as many steps before it."""
    metrics = run.metrics()
    steps, loss = np.array(metrics["step"]), np.array(metrics["loss"])
    length = (phase[1] - phase[0]) // 4
    after = loss[(steps >= phase[0]) & (steps < phase[0] + length)]
    before = loss[(steps >= phase[0] - length) & (steps < phase[0])]
    return float(after.max() / before.max()) if len(after) and len(before) else math.nan
