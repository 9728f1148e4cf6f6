"""A step size before training."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from zoedge.curvature import HessianOperator, spectrum
from zoedge.monitor.moments import TARGET, Critical, critical, moments
from zoedge.monitor.probing import Probing
from zoedge.theory import METHODS, ZOGD, Estimator, Method, ZOAdam, checks, critical_step_size, step_size_bounds

# For batches, whose steps are mostly noise, the share of the step size for the root mean square of the curvature.
MINI_BATCH = 0.02
# Directions that are drawn at a time, and the number below which their spread is not to be trusted.
_CHUNK, _ENOUGH = 8, 32


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
        mu: the smoothing that balances rounding of the loss against truncation.
        noise: standard deviation of the rounding noise of the loss.
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
            ("smoothing mu", f"{self.mu:.2g}, for a loss with a noise of {self.noise:.1g}"),
        ]
        products = f" and {self.products} Hessian-vector products" if self.products else ""
        rows.append(("it took", f"{self.evaluations} evaluations{products}"))
        return "\n".join(f"{name:20}{value}" for name, value in rows)


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

    >>> import torch
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
    queries = estimator.queries if estimator else 1
    probing = Probing(closure, list(params), seed)
    probing.check_repeatable()
    probing.choose_smoothing()
    while True:
        probing.probe(_CHUNK)
        if backprop and len(probing.slopes) >= _ENOUGH:
            return _by_products(closure, probing, chosen, estimator, _scale(probing.slopes, chosen, queries))
        gain, doubt = _scale(probing.slopes, chosen, queries)
        variance = probing.curvature_noise * gain**2
        samples = [gain * q for q in probing.curvatures]
        found = critical(samples, chosen, estimator, probing.dimension, variance)
        found = replace(found, stderr=math.hypot(found.stderr, doubt * found.value))
        precise = found.stderr <= precision * found.value < math.inf and len(samples) >= _ENOUGH
        if precise or probing.evaluations + 2 * _CHUNK >= max_evaluations:
            break
    about = moments(samples, variance)
    return _suggestion(found, chosen, about.trace, about.trace_stderr, about.rms, probing, 0)


def _scale(slopes: Sequence[float], method: Method, queries: int) -> tuple[float, float]:
    """What the Hessian is multiplied by, 1/P, and the relative standard error of that."""
    if not isinstance(method, ZOAdam):
        return 1.0, 0.0
    squares = np.square(slopes)
    if squares.mean() == 0:
        raise ValueError("the gradient is zero here, so ZO-Adam has no step size: is the loss constant?")
    doubt = float(squares.std() / squares.mean()) / (2 * math.sqrt(len(squares)))
    return 1 / math.sqrt(squares.mean() / queries), doubt


def _suggestion(
    found: Critical, method: Method, trace: float, stderr: float, rms: float, probing: Probing, products: int
) -> Suggestion:
    unit = 2 * (1 - method.momentum) / method.scale
    # Where positive and negative curvature cancel, the trace promises too much.
    full = min(TARGET * found.value, found.lower) if trace > 2 * stderr else TARGET * unit / max(rms, 1e-300)
    mini = MINI_BATCH * unit / rms if rms > 0 else math.inf
    return Suggestion(
        critical=found.value,
        stderr=found.stderr,
        lower=found.lower,
        upper=found.upper,
        full_batch=full,
        mini_batch=mini,
        mu=probing.mu,
        noise=probing.noise,
        trace=trace,
        trace_stderr=stderr,
        evaluations=probing.evaluations,
        products=products,
    )


def _by_products(
    closure: Callable[[], Any],
    probing: Probing,
    method: Method,
    estimator: Estimator | None,
    scale: tuple[float, float],
) -> Suggestion:
    H = HessianOperator(closure, [p for p in probing.params if p.requires_grad])
    measured = spectrum(H)
    gain, doubt = scale
    step = measured.estimate(lambda s: critical_step_size(s, method, estimator, negative="keep"))
    trace = measured.estimate(lambda s: s.trace)
    square = measured.sum(measured.eigenvalues**2)
    lower, upper = step_size_bounds(
        measured.trace, measured.lambda_max, method, estimator, measured.dimension,
        positive_trace=measured.positive_trace,
    )  # fmt: skip
    stderr = math.hypot(step.stderr, doubt * step.value)
    found = Critical(step.value / gain, stderr / gain, lower / gain, upper / gain)
    rms = math.sqrt(trace.value**2 + 2 * square) * gain
    return _suggestion(found, method, trace.value * gain, trace.stderr * gain, rms, probing, measured.products)
