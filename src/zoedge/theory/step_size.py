"""Critical step sizes: exact, in the mean, and their bounds from trace and largest eigenvalue.

With x_i = scale * eta * lambda_i and c = (1 - beta) + kappa (1 + beta), the second moment stays bounded up to
the root of

    b * sum_i x_i (1 + beta) / (2 (1 - beta^2) - c x_i) = 1,    x_max < 2 (1 - beta^2) / c.

kappa = b = 1 gives the paper's Theorems 1-3, kappa = b = 0 the first-order limit 2 (1 + beta) / lambda_max.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zoedge.theory import checks
from zoedge.theory.estimator import Estimator
from zoedge.theory.methods import Method
from zoedge.theory.spectrum import Spectrum, as_spectrum

# Blocks of this many eigenvalues stay in the cache while several operations pass over them (and are too small for
# BLAS to wake up its threads).
_BLOCK = 1 << 13
_EPS = float(np.finfo(np.float64).eps)


def moments(method: Method, estimator: Estimator | None, dimension: float | None) -> tuple[float, float]:
    """The pair (kappa, b) of a method's gradients; a first-order method has no noise, whatever the estimator."""
    return (estimator or Estimator()).moments(dimension) if method.zeroth_order else (0.0, 0.0)


def mean_critical_step_size(spectrum: Spectrum | ArrayLike, method: Method) -> float:
    """The largest step size at which E[x] stays bounded: 2 (1 + beta) / (scale * lambda_max)."""
    return _mean_critical(as_spectrum(spectrum).lambda_max, method)


def critical_step_size(
    spectrum: Spectrum | ArrayLike,
    method: Method,
    estimator: Estimator | None = None,
    negative: str = "raise",
) -> float:
    """The step size at which the second moment E|x|^2 stops being bounded, to about 1e-14.

    Args:
        spectrum: of H, or of P^-1 H for Adam and ZO-Adam; an array is taken as its eigenvalues.
        method: the recursion.
        estimator: of the gradient; by default Gaussian, two-point, one query. First-order methods ignore it.
        negative: what to do with negative eigenvalues: ``"raise"``, ``"keep"`` them in the sum, or ``"clip"`` to 0.

    Returns:
        The critical step size; infinite if no eigenvalue is positive.
    """
    spectrum = as_spectrum(spectrum).without_negatives(negative)
    if spectrum.lambda_max <= 0:
        return math.inf
    kappa, b = moments(method, estimator, spectrum.dimension)
    if b == 0:
        return _mean_critical(spectrum.lambda_max, method)
    beta = method.momentum
    c = (1 - beta) + kappa * (1 + beta)
    return 2 * (1 - beta**2) / (method.scale * _secular_root(spectrum, b * (1 + beta), c))


def step_size_bounds(
    trace: float,
    lambda_max: float,
    method: Method,
    estimator: Estimator | None = None,
    dimension: float | None = None,
    negative: str = "raise",
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
        negative: ``"raise"`` if trace < lambda_max, which means that H has negative eigenvalues, or ``"keep"``: the
            formulas as they are, which then are no proven bounds.
    """
    trace = checks.number("trace", trace)
    lambda_max = checks.number("lambda_max", lambda_max)
    checks.choice("negative", negative, ("raise", "keep"))
    if negative == "raise" and (lambda_max < 0 or trace < lambda_max * (1 - 1e-6)):
        raise ValueError(
            f"trace {trace:.6g} is below lambda_max {lambda_max:.6g}, so H has negative eigenvalues, "
            "which the theory does not know: pass negative='keep' to use the formulas all the same"
        )
    mean = _mean_critical(lambda_max, method)
    kappa, b = moments(method, estimator, dimension)
    beta = method.momentum
    c = (1 - beta) + kappa * (1 + beta)

    def step(curvature: float) -> float:
        return min(2 * (1 - beta) / (method.scale * curvature), mean) if curvature > 0 else mean

    return step(b * trace + c * lambda_max / (1 + beta)), step(b * trace)


def _mean_critical(lambda_max: float, method: Method) -> float:
    return 2 * (1 + method.momentum) / (method.scale * lambda_max) if lambda_max > 0 else math.inf


def _secular_root(spectrum: Spectrum, a: float, c: float) -> float:
    """The s > c lambda_max at which h(s) = a * sum_i lambda_i / (s - c lambda_i) is 1.

    Split h = p - n into the terms of positive and of negative eigenvalues and solve 1/p = 1/(1 + n). Without
    negative ones that is 1/p = 1, and 1/p is concave and nearly linear in s: Newton's method never overshoots from
    the left and needs a handful of steps. A bracket guards it in the other cases.
    """
    pole = max(c * spectrum.lambda_max, 0.0)
    low, s = pole, pole + a * _positive_trace(spectrum)
    high = s
    while True:
        p, dp, n, dn = _secular_sums(spectrum, s, a, c)
        value = 1 / p - 1 / (1 + n)
        slope = -dp / p**2 + dn / (1 + n) ** 2
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


def _positive_trace(spectrum: Spectrum) -> float:
    return spectrum.trace if spectrum.lambda_min >= 0 else spectrum.sum(np.maximum(spectrum.eigenvalues, 0))


def _secular_sums(spectrum: Spectrum, s: float, a: float, c: float) -> tuple[float, float, float, float]:
    """p, dp/ds, n, dn/ds at s. With t = lambda / (s - c lambda), d/ds of t is -t (1 + c t) / s."""
    p = square_p = n = square_n = 0.0
    for start in range(0, len(spectrum.eigenvalues), _BLOCK):
        block = slice(start, start + _BLOCK)
        values = spectrum.eigenvalues[block]
        t = values * -c
        t += s
        np.divide(values, t, out=t)
        weighted = t if spectrum.weights is None else t * spectrum.weights[block]
        if spectrum.lambda_min >= 0:
            p += float(weighted.sum())
            square_p += _dot(weighted, t)
        else:
            above, below = np.maximum(weighted, 0), np.minimum(weighted, 0)
            p += float(above.sum())
            square_p += _dot(above, t)
            n -= float(below.sum())
            square_n += _dot(below, t)
    return a * p, -a * (p + c * square_p) / s, a * n, -a * (n - c * square_n) / s


def _dot(left: NDArray[np.float64], right: NDArray[np.float64]) -> float:
    return float(left @ right)
