"""Loss values around one point: slopes and curvatures along random directions, and how exact they are."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from zoedge.monitor.noise import POINTS, balanced_smoothing, rounding_noise, third_derivative
from zoedge.optim import ZOSGD, StepRecord
from zoedge.optim.loss import as_number

# What two evaluations at the same point may differ by, relative to the loss.
_SAME = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}
# Of mu.
_SMALLEST, _LARGEST = 1e-6, 0.1
# Directions by which the size of curvatures is guessed, and the share of it that noise may be.
_DIRECTIONS, _NOISE = 8, 0.05


class Probing:
    """Slopes and curvatures along random directions from one point, which is left as it is.

    Args:
        closure: returns the loss.
        params: the point.
        seed: of the directions.

    Attributes:
        evaluations: of the loss so far.
        dimension: number of parameters that train.
        slopes, curvatures: along the directions that were probed.
        noise: standard deviation of the rounding noise of the loss.
        mu: the smoothing for slopes.
    """

    def __init__(self, closure: Callable[[], Any], params: list[Tensor], seed: int) -> None:
        self.params, self.evaluations = params, 0
        self.dimension = sum(p.numel() for p in params if p.requires_grad)
        self._closure = closure
        self._optimizer = ZOSGD(params, lr=0.0, probe_every=1, seed=seed)
        self._step = 0
        self.noise, self.mu, self._wide = 0.0, math.nan, math.nan
        self.slopes: list[float] = []
        self.curvatures: list[float] = []

    def _counted(self) -> Any:
        self.evaluations += 1
        return self._closure()

    def _at(self, step: int, mu: float, queries: int = 1) -> StepRecord:
        for group in self._optimizer.param_groups:
            group.update(step=step, mu=mu, queries=queries)
        self._optimizer.step(self._counted)
        return self._optimizer.last

    @torch.no_grad()
    def check_repeatable(self) -> None:
        """The loss at one point must be one number."""
        state = torch.get_rng_state()
        first = as_number(self._counted())
        torch.set_rng_state(state)
        again, other = as_number(self._counted()), as_number(self._counted())
        torch.set_rng_state(state)
        if not math.isfinite(first):
            raise ValueError(f"the loss is {first} at these parameters: there is nothing to measure")
        same = _SAME.get(self.params[0].dtype, 1e-5) * max(abs(first), 1e-30)
        if abs(again - first) > same:
            raise ValueError(
                f"the closure gives {first:.6g} and then {again:.6g} at the same parameters: does it take another "
                "batch each time? Losses can be compared on one batch only: draw it outside the closure"
            )
        if abs(other - first) > same:
            raise ValueError(
                f"the loss depends on random numbers ({first:.6g}, then {other:.6g}): is dropout on? Call model.eval()"
            )

    def choose_smoothing(self, mu: float = 1e-3) -> None:
        """Find the noise of the loss, the mu that balances it against truncation, and one for curvatures."""
        lines: list[list[float]] = [[], []]
        for k in range(POINTS):
            record = self._at(0, mu * (1 + k / POINTS))
            lines[0].append(record.plus[0])
            lines[1].append(record.minus[0])
        self.noise = rounding_noise(lines)
        third, _ = third_derivative(lambda m: self._at(0, m).slopes[0], mu, self.noise, _LARGEST)
        self.mu = balanced_smoothing(self.noise, third, _SMALLEST, _LARGEST)
        # A curvature is a second difference: wide enough that noise is a small part of it.
        size = max(abs(q) for q in self._at(0, max(self.mu, mu), _DIRECTIONS).curvatures)
        wide = math.sqrt(math.sqrt(6) * self.noise / (_NOISE * size)) if size > 0 else self.mu
        self._wide = min(max(self.mu, wide), _LARGEST)

    @property
    def curvature_noise(self) -> float:
        """The variance of a curvature that is due to rounding of the loss."""
        return 6 * self.noise**2 / self._wide**4

    def probe(self, count: int) -> None:
        """Slopes and curvatures along so many new directions."""
        self._step += 1
        record = self._at(self._step, self._wide, count)
        self.slopes += record.slopes
        self.curvatures += record.curvatures
