"""A step size before training."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from zoedge.curvature import HessianOperator, spectrum
from zoedge.monitor.moments import Critical, critical, moments
from zoedge.monitor.noise import POINTS, balanced_smoothing, rounding_noise, third_derivative
from zoedge.optim import ZOSGD, StepRecord
from zoedge.optim.loss import as_number
from zoedge.theory import METHODS, ZOGD, Estimator, Method, ZOAdam, checks, critical_step_size, step_size_bounds

# Shares of the critical step size: for all data; and for batches, whose steps are mostly noise, of that for the root
# mean square of the curvature.
FULL_BATCH = 0.7
MINI_BATCH = 0.02
# Directions that are drawn at a time, and the number below which their spread is not to be trusted.
_CHUNK, _ENOUGH = 8, 32
_SMALLEST_MU, _LARGEST_MU = 1e-6, 0.1
_SAME = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Suggestion:
    """Step sizes for a loss at a point; print it for a table.

    Attributes:
        critical: the critical step size; from loss values, which show two moments of the spectrum, its largest value
            for these: eigenvalues of different size bring it nearer to ``lower``, by a few percent for one query.
        stderr: its standard error.
        lower, upper: bounds on it.
        full_batch: recommended where every step sees all data, not above the lower bound.
        mini_batch: recommended where every step sees a batch.
        mu: the smoothing that balances rounding of the loss against truncation; NaN with ``backprop``.
        noise: the loss's rounding noise at this smoothing; NaN with ``backprop``.
        trace: of the Hessian, or of P^-1 H for ZO-Adam.
        trace_stderr: its standard error.
        evaluations: of the loss that it took.
        products: Hessian-vector products that it took.
    """

    critical: float
    stderr: float
    lower: float
    upper: float
    full_batch: float
    mini_batch: float
    mu: float
    noise: float
    trace: float
    trace_stderr: float
    evaluations: int
    products: int

    def __str__(self) -> str:
        rows = [
            (
                "critical step size",
                f"{self.critical:.4g} +- {self.stderr:.2g}, in {self.lower:.3g} .. {self.upper:.3g}",
            ),
            ("recommended lr", f"{self.full_batch:.3g} on all data, {self.mini_batch:.3g} on mini-batches"),
            ("trace", f"{self.trace:.4g} +- {self.trace_stderr:.2g}"),
        ]
        if not math.isnan(self.mu):
            rows.append(("smoothing mu", f"{self.mu:.2g}, where the loss has a noise of {self.noise:.1g}"))
        spent = f"{self.products} Hessian-vector products" if self.products else f"{self.evaluations} evaluations"
        return "\n".join(f"{name:20}{value}" for name, value in [*rows, ("it took", spent)])


def suggest_lr(
    closure: Callable[[], Any],
    params: Iterable[Tensor],
    method: Method | str | None = None,
    estimator: Estimator | None = None,
    *,
    backprop: bool = False,
    precision: float = 0.05,
    max_evaluations: int = 500,
    seed: int = 0,
) -> Suggestion:
    """The critical step size of a zeroth-order method at the parameters as they are, and step sizes below it.

    >>> weights = torch.nn.Parameter(torch.ones(100))
    >>> found = suggest_lr(lambda: 0.5 * weights.square().sum(), [weights])
    >>> bool(abs(found.critical - 2 / 102) < 3 * found.stderr)
    True

    From loss values alone, at x and along random directions, or with ``backprop`` from Hessian-vector products. The
    parameters are left as they are. For ZO-Adam the preconditioner is taken as what it comes to be within some hundred
    steps from here: the root mean square of an estimated gradient, the same for every parameter.

    Args:
        closure: returns the loss, without backward; the same one every time at the same parameters.
        params: parameters to train.
        method: a zeroth-order method of ``zoedge.theory``, or its name; by default ZO-GD.
        estimator: of the gradient; by default Gaussian, two-point, one query.
        backprop: whether to use Hessian-vector products.
        precision: relative standard error of the critical step size at which to stop.
        max_evaluations: of the loss, at which to stop in any case.
        seed: of the directions.
    """
    chosen = METHODS[method]() if isinstance(method, str) and method in METHODS else method or ZOGD()
    if not isinstance(chosen, Method) or not chosen.zeroth_order:
        known = ", ".join(name for name, kind in METHODS.items() if kind.zeroth_order)
        raise ValueError(f"method must be a zeroth-order one ({known}), got {method!r}")
    checks.positive("precision", precision)
    probing = _Probing(closure, list(params), seed)
    probing.check_repeatable()
    slopes = probing.slopes()
    preconditioner = 1.0
    if isinstance(chosen, ZOAdam):
        queries = estimator.queries if estimator else 1
        preconditioner = math.sqrt(sum(c * c for c in slopes) / len(slopes) / queries)
        if preconditioner == 0:
            raise ValueError("the gradient is zero here, so ZO-Adam has no step size: is the loss constant?")
    if backprop:
        return _by_products(closure, probing, chosen, estimator, preconditioner)
    noise, mu, wide = probing.smoothing()
    samples: list[float] = []
    while True:
        samples += [q / preconditioner for q in probing.curvatures(_CHUNK, wide)]
        variance = 6 * noise**2 / wide**4 / preconditioner**2
        found = critical(samples, chosen, estimator, probing.dimension, variance)
        precise = found.stderr <= precision * found.value < math.inf and len(samples) >= _ENOUGH
        if precise or probing.evaluations + 2 * _CHUNK >= max_evaluations:
            break
    about = moments(samples, variance)
    return _suggestion(found, chosen, about.trace, about.trace_stderr, about.rms, mu, noise, probing.evaluations, 0)


def _suggestion(
    found: Critical, method: Method, trace: float, stderr: float, rms: float, mu: float, noise: float,
    evaluations: int, products: int,
) -> Suggestion:  # fmt: skip
    unit = 2 * (1 - method.momentum) / method.scale
    # Where positive and negative curvature cancel, the trace promises too much.
    full = min(FULL_BATCH * found.value, found.lower) if trace > 2 * stderr else FULL_BATCH * unit / max(rms, 1e-300)
    mini = MINI_BATCH * unit / rms if rms > 0 else math.inf
    return Suggestion(
        found.value, found.stderr, found.lower, found.upper, full, mini, mu, noise, trace, stderr, evaluations, products
    )


def _by_products(
    closure: Callable[[], Any], probing: "_Probing", method: Method, estimator: Estimator | None, preconditioner: float
) -> Suggestion:
    H = HessianOperator(closure, [p for p in probing.params if p.requires_grad])
    measured = spectrum(H)
    gain = 1 / preconditioner
    step = measured.estimate(lambda s: critical_step_size(s, method, estimator, negative="keep"))
    trace = measured.estimate(lambda s: s.trace)
    square = measured.sum(measured.eigenvalues**2)
    lower, upper = step_size_bounds(
        measured.trace, measured.lambda_max, method, estimator, measured.dimension,
        positive_trace=measured.positive_trace,
    )  # fmt: skip
    found = Critical(step.value / gain, step.stderr / gain, lower / gain, upper / gain)
    rms = math.sqrt(trace.value**2 + 2 * square) * gain
    nan = math.nan
    return _suggestion(
        found, method, trace.value * gain, trace.stderr * gain, rms, nan, nan, probing.evaluations, measured.products
    )


class _Probing:
    """Losses along directions from one point, by steps of size zero."""

    def __init__(self, closure: Callable[[], Any], params: list[Tensor], seed: int) -> None:
        self.params, self.evaluations = params, 0
        self.dimension = sum(p.numel() for p in params if p.requires_grad)
        self._closure = closure
        self._optimizer = ZOSGD(params, lr=0.0, probe_every=1, seed=seed)
        self._step = 0

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

    def slopes(self, mu: float = 1e-3) -> list[float]:
        """Projected gradients."""
        return list(self._at(0, mu, _CHUNK).slopes)

    def smoothing(self, mu: float = 1e-3) -> tuple[float, float, float]:
        """The loss's noise, the mu that balances it against truncation for slopes, and a mu for curvatures."""
        lines: list[list[float]] = [[], []]
        for k in range(POINTS):
            record = self._at(0, mu * (1 + k / POINTS))
            lines[0].append(record.plus[0])
            lines[1].append(record.minus[0])
        noise = rounding_noise(lines)
        third, _ = third_derivative(lambda m: self._at(0, m).slopes[0], mu, noise, _LARGEST_MU)
        best = balanced_smoothing(noise, third, _SMALLEST_MU, _LARGEST_MU)
        # A curvature is a second difference: wide enough that noise is a twentieth of it at most.
        size = max(abs(q) for q in self._at(0, max(best, mu), _CHUNK).curvatures)
        wide = math.sqrt(math.sqrt(6) * noise / (0.05 * size)) if size > 0 else best
        return noise, best, min(max(best, wide), _LARGEST_MU)

    def curvatures(self, count: int, mu: float) -> list[float]:
        """u^T H u along so many new directions."""
        self._step += 1
        return list(self._at(self._step, mu, count).curvatures)
