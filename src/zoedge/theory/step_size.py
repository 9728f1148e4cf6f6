"""Critical step sizes: exact, in the mean, and their bounds from trace and largest eigenvalue.

With x_i = scale * eta * lambda_i and c = (1 - beta) + kappa (1 + beta), the second moment stays bounded up to
the root of

    b * sum_i x_i (1 + beta) / (2 (1 - beta^2) - c x_i) = 1,    x_max < 2 (1 - beta^2) / c.

kappa = b = 1 gives the paper's Theorems 1-3, kappa = b = 0 the first-order limit 2 (1 + beta) / lambda_max.
"""

import math

import numpy as np
from numpy.typing import ArrayLike

from zoedge.theory import checks
from zoedge.theory.estimator import Estimator, noise_moments
from zoedge.theory.methods import Method
from zoedge.theory.spectrum import Negative, Spectrum, as_spectrum

# Blocks of this many eigenvalues stay in the cache while several operations pass over them (and are too small for
# BLAS to wake up its threads).
_BLOCK = 1 << 13
_EPS = float(np.finfo(np.float64).eps)


def mean_critical_step_size(spectrum: Spectrum | ArrayLike, method: Method) -> float:
    """The largest step size at which E[x] stays bounded: 2 (1 + beta) / (scale * lambda_max)."""
    noise_moments(method, None, 1)
    return _mean_critical(as_spectrum(spectrum).lambda_max, method)


def critical_step_size(
    spectrum: Spectrum | ArrayLike,
    method: Method,
    estimator: Estimator | None = None,
    negative: Negative = "raise",
) -> float:
    """The step size at which the second moment E|x|^2 stops being bounded, to about 1e-14.

    Args:
        spectrum: of H, or of P^-1 H for Adam and ZO-Adam; an array is taken as its eigenvalues.
        method: the recursion.
        estimator: of the gradient; by default Gaussian, two-point, one query. First-order methods ignore it.
        negative: what to do with negative eigenvalues: ``"raise"``, ``"keep"`` them in the sum, or ``"clip"`` to 0. A
            direction of negative curvature grows at every step size; to keep it in the sum says how near the edge the
            other directions are.

    Returns:
        The critical step size; infinite if no eigenvalue is positive.
    """
    spectrum = as_spectrum(spectrum).treat_negatives(negative)
    kappa, b = noise_moments(method, estimator, spectrum.dimension)
    if b == 0 or spectrum.lambda_max <= 0:
        return _mean_critical(spectrum.lambda_max, method)
    beta = method.momentum
    c = (1 - beta) + kappa * (1 + beta)
    return 2 * (1 - beta**2) / (method.scale * _secular_root(spectrum, b * (1 + beta), c))


def curvature_terms(
    trace: float, lambda_max: float, method: Method, estimator: Estimator | None, dimension: float | None
) -> tuple[float, float]:
    """The terms that bound 2 (1 - beta) / (scale * eta) at the edge: b Tr and b Tr + c lambda_max / (1 + beta)."""
    kappa, b = noise_moments(method, estimator, dimension)
    beta = method.momentum
    return b * trace, b * trace + ((1 - beta) / (1 + beta) + kappa) * lambda_max


def step_size_bounds(
    trace: float,
    lambda_max: float,
    method: Method,
    estimator: Estimator | None = None,
    dimension: float | None = None,
    positive_trace: float | None = None,
) -> tuple[float, float]:
    """Bounds (lower, upper) on the critical step size from two numbers: the paper's Table 1.

    ``2 (1 - beta) / (b Tr + c lambda_max / (1 + beta)) <= scale * eta <= 2 (1 - beta) / (b Tr)``, and never above
    the critical step size in the mean (which only matters for several queries, where b Tr is small).

    Args:
        trace: Tr(H), or Tr(P^-1 H) for Adam and ZO-Adam.
        lambda_max: the largest eigenvalue of the same matrix.
        method: the recursion.
        estimator: of the gradient.
        dimension: number of parameters; only sphere directions need it.
        positive_trace: the sum of the positive eigenvalues, if there are negative ones. The bounds then hold for the
            critical step size with ``negative="keep"``.
    """
    trace = checks.number("trace", trace)
    lambda_max = checks.positive("lambda_max", lambda_max)
    positive = trace if positive_trace is None else checks.number("positive_trace", positive_trace)
    if positive < lambda_max * (1 - 1e-6):
        raise ValueError(
            f"trace {positive:.6g} is below lambda_max {lambda_max:.6g}, so H has negative eigenvalues: without the "
            "sum of its positive eigenvalues (positive_trace) nothing bounds the critical step size from below"
        )
    if dimension is not None and positive > lambda_max * checks.number("dimension", dimension) * (1 + 1e-6):
        raise ValueError(f"trace {positive:.6g} is above dimension * lambda_max: one of the three is wrong")
    mean = _mean_critical(lambda_max, method)
    low, _ = curvature_terms(trace, lambda_max, method, estimator, dimension)
    _, high = curvature_terms(positive, lambda_max, method, estimator, dimension)
    unit = 2 * (1 - method.momentum) / method.scale
    return min(unit / high, mean), min(unit / low, mean) if low > 0 else mean


def _mean_critical(lambda_max: float, method: Method) -> float:
    return 2 * (1 + method.momentum) / (method.scale * lambda_max) if lambda_max > 0 else math.inf


def _secular_root(spectrum: Spectrum, a: float, c: float) -> float:
    """The s > c lambda_max at which h(s) = a * sum_i lambda_i / (s - c lambda_i) is 1.

    Split h = p - n into the terms of positive and of negative eigenvalues and solve 1/p = 1/(1 + n). Without
    negative ones that is 1/p = 1, and 1/p is concave and nearly linear in s: Newton's method never overshoots from
    the left and needs a handful of steps. A bracket guards it in the other cases. The root is unique: p' <= -p/s and
    n' >= -n/s make h' <= -h/s, so h falls wherever it is positive.
    """
    pole = max(c * spectrum.lambda_max, 0.0)
    low, s = pole, pole + a * spectrum.positive_trace
    high = s
    for _ in range(200):
        p, p2, n, n2 = _secular_sums(spectrum, s, c)
        # d/ds of t is -t (1 + c t) / s.
        p, slope_p, n, slope_n = a * p, a * (p + c * p2) / s, a * n, a * (-n + c * n2) / s
        value = 1 / p - 1 / (1 + n)
        slope = slope_p / p**2 + slope_n / (1 + n) ** 2 if math.isfinite(slope_p) else 0.0
        low, high = (s, high) if value < 0 else (low, s)
        newton = s - value / slope if slope > 0 else math.inf
        if low <= newton <= high:
            # What a Newton step leaves is of the order of its square over the distance from the pole.
            if (newton - s) ** 2 <= _EPS * s * (s - pole):
                return newton
            s = newton
        elif high - low <= 4 * _EPS * s:
            return s
        else:
            s = (low + high) / 2
    raise ArithmeticError(f"no critical step size found for {spectrum}: please report this spectrum")


def _secular_sums(spectrum: Spectrum, s: float, c: float) -> tuple[float, float, float, float]:
    """Sums of t and t^2 over positive eigenvalues, of |t| and t^2 over negative ones; t = lambda / (s - c lambda)."""
    signed = spectrum.lambda_min < 0
    first = second = first_abs = second_abs = 0.0
    for start in range(0, len(spectrum.eigenvalues), _BLOCK):
        values = spectrum.eigenvalues[start : start + _BLOCK]
        t = values * -c
        t += s
        with np.errstate(divide="ignore"):  # at the pole itself
            np.divide(values, t, out=t)
        weighted = t if spectrum.weights is None else t * spectrum.weights[start : start + _BLOCK]
        first += float(weighted.sum())
        second += float(weighted @ t)
        if signed:
            size = np.abs(weighted)
            first_abs += float(size.sum())
            second_abs += float(size @ t)
    if not signed:
        return first, second, 0.0, 0.0
    return (first_abs + first) / 2, (second + second_abs) / 2, (first_abs - first) / 2, (second - second_abs) / 2
