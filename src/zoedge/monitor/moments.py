"""What samples of u^T H u say about the spectrum, and so about the critical step size.

For Gaussian directions E[u^T H u] = Tr(H) and Var[u^T H u] = 2 Tr(H^2). The critical step size depends on more than
these two, but little: given both, it is largest if all eigenvalues that are not zero are equal, to Tr(H^2)/Tr(H), and
no spectrum with lambda_max below sqrt(Tr(H^2)), as all have, brings it below the paper's bound for that lambda_max.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zoedge.theory import Estimator, Method, Spectrum, critical_step_size, step_size_bounds

# The share of the critical step size to aim at where every step sees all data, found by experiment.
TARGET = 0.7


@dataclass(frozen=True)
class Moments:
    """The first two moments of a spectrum, from samples of u^T H u.

    Attributes:
        trace: Tr(H).
        trace_stderr: its standard error.
        square: Tr(H^2).
        samples: how many.
    """

    trace: float
    trace_stderr: float
    square: float
    samples: int

    @property
    def rms(self) -> float:
        """The root mean square of u^T H u: a curvature that does not vanish where positive and negative cancel."""
        return math.sqrt(self.trace**2 + 2 * self.square)

    @property
    def positive(self) -> bool:
        """Whether the trace is positive beyond doubt, by two standard errors."""
        return self.trace > 2 * self.trace_stderr


@dataclass(frozen=True)
class Critical:
    """A critical step size from samples.

    Attributes:
        value: its estimate; infinite if the trace is not positive.
        stderr: its standard error.
        lower, upper: the paper's bounds, from the trace and the range in which lambda_max must lie.
    """

    value: float
    stderr: float
    lower: float
    upper: float


def moments(samples: Sequence[float], noise: float = 0.0) -> Moments:
    """Moments of the spectrum.

    Args:
        samples: of u^T H u.
        noise: variance of a sample that is due to rounding of the loss.
    """
    q = np.asarray(samples, dtype=np.float64)
    if len(q) < 2:
        raise ValueError(f"moments need two samples at least, got {len(q)}")
    variance = float(q.var(ddof=1))
    return Moments(float(q.mean()), math.sqrt(variance / len(q)), max(variance - noise, 0.0) / 2, len(q))


def critical(
    samples: Sequence[float],
    method: Method,
    estimator: Estimator | None = None,
    dimension: float = math.inf,
    noise: float = 0.0,
) -> Critical:
    """The critical step size, with its standard error.

    Args:
        samples: of u^T H u.
        method: the recursion.
        estimator: of the gradient.
        dimension: number of parameters.
        noise: variance of a sample that is due to rounding of the loss.
    """
    estimator, found = _isotropic(estimator), moments(samples, noise)
    if found.trace <= 0:
        return Critical(math.inf, math.inf, 0.0, math.inf)

    def step_size(trace: float, square: float) -> float:
        return critical_step_size(_equal(max(trace, 1e-3 * found.trace), square, dimension), method, estimator)

    value = step_size(found.trace, found.square)
    # By how much the two moments move it, times how much each sample moves the two moments.
    q = np.asarray(samples, dtype=np.float64)
    centred = q - found.trace
    change = 1e-3
    by_trace = (step_size((1 + change) * found.trace, found.square) - value) / (change * found.trace)
    by_square = 0.0
    if found.square > 0:
        by_square = (step_size(found.trace, (1 + change) * found.square) - value) / (change * found.square)
    influence = by_trace * centred + by_square * (centred**2 - centred.var()) / 2
    stderr = float(np.sqrt(np.square(influence).sum() / (len(q) * (len(q) - 1))))
    highest = max(math.sqrt(found.square), found.trace / min(dimension, 1e9))
    lower, upper = step_size_bounds(max(found.trace, highest), highest, method, estimator, _finite(dimension))
    return Critical(value, stderr, lower, upper)


def cautious(
    samples: Sequence[float], method: Method, estimator: Estimator | None = None, dimension: float = math.inf
) -> float:
    """A step size at which the method is stable for certain: as if the trace were the root mean square of the samples.

    Where positive and negative curvature cancel, the trace is small or negative and promises too much.
    """
    found = moments(samples)
    if found.rms == 0:
        return math.inf
    return critical_step_size(_equal(found.rms, found.square, dimension), method, _isotropic(estimator))


def _isotropic(estimator: Estimator | None) -> Estimator | None:
    """Rademacher directions count as Gaussian ones: with 2 diag(H) less of noise they are stable a little further."""
    if estimator is not None and estimator.directions == "rademacher":
        return replace(estimator, directions="gaussian")
    return estimator


def _equal(trace: float, square: float, dimension: float) -> Spectrum:
    """Equal eigenvalues with these moments, and zeros."""
    top = max(square / trace, trace / min(dimension, 1e9))
    count = trace / top
    if math.isinf(dimension) or count >= dimension:
        return Spectrum([top], [count])
    return Spectrum([top, 0.0], [count, dimension - count])


def _finite(dimension: float) -> float | None:
    return None if math.isinf(dimension) else dimension
