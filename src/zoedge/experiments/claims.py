"""Claims: what a figure of the paper shows, as a condition on the runs behind it, with the numbers that decide it."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from zoedge.experiments.folder import RunFolder
from zoedge.experiments.verdict import REACHED, Verdict, verdict

# The share of readings from the edge on that must have the threshold in the widened band.
_INSIDE = 0.8
# How far a mean over readings may be from what it settles at.
_NEAR = 0.15
# A loss so many times its median before is a spike.
_SPIKE = 1.5


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
    """Every run trains to its end, and its edge ratio gets to 0.8."""
    found = [verdict(run.readings()) for run in runs]
    holds = all(v.reached is not None and run.status.state == "finished" for run, v in zip(runs, found, strict=True))
    return Claim("every run reaches the edge and trains on", holds, _list(names, map(_when, runs, found)))


def stays_in_the_band(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """From the edge on the threshold lies in or very near the band."""
    found = [verdict(run.readings()) for run in runs]
    holds = all(v.reached is not None and v.inside >= _INSIDE for v in found)
    numbers = (f"{v.inside:.0%} of {v.readings}" if v.reached is not None else "-" for v in found)
    text = f"from then on the threshold is in the band, widened by 10 %, in at least {_INSIDE:.0%} of the readings"
    return Claim(text, holds, _list(names, numbers))


def settles_at_one(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """The exact edge ratio is 1 on average."""
    found = [verdict(run.readings()) for run in runs]
    holds = all(v.reached is not None and abs(v.edge_ratio - 1) <= _NEAR for v in found)
    numbers = (f"{v.edge_ratio:.2f} ({v.lowest:.2f} to {v.highest:.2f})" for v in found)
    return Claim(f"the mean edge ratio from there on is 1 within {_NEAR:.0%}", holds, _list(names, numbers))


def top_settles_at_the_threshold(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """GD: the largest eigenvalue settles at 2/lr."""
    shares = [_lower_share(run) for run in runs]
    holds = all(abs(share - 1) <= _NEAR for share in shares)
    text = f"the largest eigenvalue settles at 2/lr, within {_NEAR:.0%}"
    return Claim(text, holds, _list(names, (f"{share:.2f} of it" for share in shares)))


def trace_settles_below_the_threshold(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """ZO-GD: the trace settles slightly below 2/lr."""
    shares = [_lower_share(run) for run in runs]
    holds = all(REACHED - _NEAR <= share < 1 for share in shares)
    text = f"the trace settles slightly below 2/lr, at {REACHED - _NEAR:.2f} to 1 of it"
    return Claim(text, holds, _list(names, (f"{share:.2f} of it" for share in shares)))


def loss_spikes(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """After each raise of the step size the loss spikes."""
    found = [ratio for run in runs for ratio in map(lambda phase: _spike(run, phase), _phases(run)[1:])]
    holds = bool(found) and all(ratio >= _SPIKE for ratio in found)
    text = f"after each raise of the step size the loss spikes, to at least {_SPIKE:g} times its median before"
    return Claim(text, holds, ", ".join(f"{ratio:.2f} times" for ratio in found))


def trace_drops(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """After each raise the trace falls below the new threshold."""
    found = []
    for run in runs:
        for start, end in _phases(run)[1:]:
            before, after = _in_phase(run, (0, start), "lower"), _in_phase(run, (start, end), "lower")
            limit = _last(_in_phase(run, (start, end), "threshold"))
            found.append((_last(before), min(after, default=math.nan), limit))
    holds = bool(found) and all(low < limit for _, low, limit in found)
    numbers = ", ".join(f"{high:.0f} to {low:.0f} (threshold {limit:.0f})" for high, low, limit in found)
    return Claim("after each raise the trace drops below the new threshold", holds, numbers)


def re_equilibrates(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """In the second half of every phase the edge ratio is near 1."""
    means = []
    for run in runs:
        for start, end in _phases(run):
            half = ((start + end) // 2, end)
            means.append(_mean(_in_phase(run, half, "exact") / _in_phase(run, half, "threshold")))
    holds = bool(means) and all(abs(mean - 1) <= 2 * _NEAR for mean in means)
    text = f"in the second half of each phase the mean edge ratio is 1 within {2 * _NEAR:.0%}"
    return Claim(text, holds, ", ".join(f"{mean:.2f}" for mean in means))


def falls_with_smoothing(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """The larger mu above 1e-3, the smaller the trace; up to 1e-3 it reaches the threshold."""
    shares = [_second_half(run) for run in runs]
    small = [share for run, share in zip(runs, shares, strict=True) if run.settings.mu <= 1e-3]
    large = [share for run, share in zip(runs, shares, strict=True) if run.settings.mu > 1e-3]
    holds = min(small) >= REACHED > max(large) and large == sorted(large, reverse=True)
    text = "mu <= 1e-3 reaches the threshold, larger mu stays below, in order of mu (edge ratio over the second half)"
    return Claim(text, holds, _list(names, (f"{share:.2f}" for share in shares)))


def grows_with_batches(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """Smaller batches settle at smaller traces; the runs are in order of their batches, all data last."""
    means = [_mean(_half(run, "lower")) for run in runs]
    text = "smaller batches settle at smaller traces (mean over the second half)"
    return Claim(text, means == sorted(means), _list(names, (f"{mean:.0f}" for mean in means)))


def commutator_falls(runs: Sequence[RunFolder], names: Sequence[str]) -> Claim:
    """Preconditioner and Hessian come to commute: 0.8-0.9 at the start to below 0.05 in the paper."""
    found = []
    for run in runs:
        values = np.array(run.readings()["commutator"])
        found.append((_last(values[:1]), min(values, default=math.nan), _mean(values[len(values) // 2 :])))
    holds = all(start > 0.5 and late < 0.05 for start, _, late in found)
    numbers = (f"from {start:.2f} to {least:.3f}, {late:.3f} in the second half" for start, least, late in found)
    text = "the relative commutator falls from above 0.5 to below 0.05"
    return Claim(text, holds, _list(names, numbers))


def _list(names: Sequence[str], values: Iterable[str]) -> str:
    return "; ".join(f"{name}: {value}" for name, value in zip(names, values, strict=True))


def _when(run: RunFolder, found: Verdict) -> str:
    end = "" if run.status.state == "finished" else f", {run.status.state} at step {run.status.step}"
    return (f"from step {found.reached}" if found.reached is not None else f"up to {found.edge_ratio:.2f}") + end


def _lower_share(run: RunFolder) -> float:
    """Mean of the lower term over the threshold, from the edge on."""
    found = verdict(run.readings())
    return found.lower / found.threshold


def _mean(values: np.ndarray) -> float:
    """NaN of nothing: a run may end before it is measured."""
    return float(values.mean()) if len(values) else math.nan


def _last(values: np.ndarray) -> float:
    return float(values[-1]) if len(values) else math.nan


def _half(run: RunFolder, column: str) -> np.ndarray:
    values = np.array(run.readings()[column])
    return values[len(values) // 2 :]


def _second_half(run: RunFolder) -> float:
    """Mean edge ratio over the second half."""
    return _mean(_half(run, "exact") / _half(run, "threshold"))


def _phases(run: RunFolder) -> list[tuple[int, int]]:
    """First and last steps of the stretches of one step size."""
    starts = [0, *(step for step, _ in run.settings.lr_schedule)]
    return list(zip(starts, [*starts[1:], run.settings.steps + 1], strict=True))


def _in_phase(run: RunFolder, phase: tuple[int, int], column: str) -> np.ndarray:
    readings = run.readings()
    return np.array([v for s, v in zip(readings["step"], readings[column], strict=True) if phase[0] <= s < phase[1]])


def _spike(run: RunFolder, phase: tuple[int, int]) -> float:
    """The largest loss in the first half of a phase over the median in as many steps before it."""
    metrics = run.metrics()
    steps, loss = np.array(metrics["step"]), np.array(metrics["loss"])
    length = (phase[1] - phase[0]) // 2
    after = loss[(steps >= phase[0]) & (steps < phase[0] + length)]
    before = loss[(steps >= phase[0] - length) & (steps < phase[0])]
    return float(after.max() / np.median(before)) if len(after) and len(before) else math.nan
