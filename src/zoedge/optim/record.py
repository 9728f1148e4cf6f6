"""What a step leaves behind, and what it raises when the loss is not a finite number."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class StepRecord:
    """One step of a zeroth-order optimizer. Per-query values are tuples; NaN is what was not measured.

    Attributes:
        step: number of the step, from 0.
        lr: step size of each parameter group.
        mu: the smoothing.
        plus: f(x + mu u) of each query.
        minus: f(x - mu u) of each query; NaN with forward differences unless probed.
        centre: f(x); NaN with two-point differences unless probed.
        slopes: the projected gradient of each query, (f+ - f-) / (2 mu) or (f+ - f) / mu.
        probe_slopes: the projected gradient along the directions of the curvatures, where probed: for ZO-Adam v^T g.
        curvatures: (f+ - 2 f + f-) / mu^2 of each query, an estimate of u^T H u, where probed; for ZO-Adam along
            v = P^-1/2 u, an estimate of v^T H v.
        skipped: whether a loss was not finite, so that nothing was updated.
    """

    step: int
    lr: tuple[float, ...]
    mu: float
    plus: tuple[float, ...]
    minus: tuple[float, ...]
    centre: float
    slopes: tuple[float, ...]
    probe_slopes: tuple[float, ...]
    curvatures: tuple[float, ...]
    skipped: bool = False

    @property
    def loss(self) -> float:
        """The loss of the step: f(x) if it was evaluated, else the mean over the pairs; NaN if it was skipped."""
        if self.skipped:
            return math.nan
        if not math.isnan(self.centre):
            return self.centre
        return (sum(self.plus) + sum(self.minus)) / (2 * len(self.plus))


class NonFiniteLossError(ArithmeticError):
    """The loss is NaN or infinite. The parameters are as they were before the step.

    Attributes:
        step: number of the step.
        lr: step size of each parameter group.
        loss: the loss that is not finite.
        last_finite_loss: loss of the last step that had one, or NaN.
    """

    def __init__(self, step: int, lr: tuple[float, ...], loss: float, last_finite_loss: float) -> None:
        sizes = ", ".join(f"{value:g}" for value in lr)
        super().__init__(
            f"loss is {loss} in step {step} at lr {sizes}; the last finite loss was {last_finite_loss:g}. The "
            "parameters are as they were before the step. Likely the step size is too large for the curvature: lower "
            "lr (or mu, if x + mu u leaves the domain of the loss), or pass on_nonfinite='skip' to go on without it"
        )
        self.step, self.lr, self.loss, self.last_finite_loss = step, lr, loss, last_finite_loss

    def __reduce__(self):
        return type(self), (self.step, self.lr, self.loss, self.last_finite_loss)
