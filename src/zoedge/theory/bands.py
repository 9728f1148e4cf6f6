"""The band: a run's threshold between two curvatures, as the paper draws it.

A run is stable while its curvature lies below the threshold. The exact curvature is not the trace but lies
between the two terms of the band:

    b Tr <= curvature <= b Tr + c lambda_max / (1 + beta),    threshold 2 (1 - beta) / (scale * lr)

(section 5.1 of the paper). For first-order methods curvature is lambda_max alone and the threshold
2 (1 + beta) / (scale * lr).
"""

import math
from dataclasses import dataclass

from numpy.typing import ArrayLike

from zoedge.theory import checks
from zoedge.theory.estimator import Estimator
from zoedge.theory.methods import Method
from zoedge.theory.spectrum import Spectrum, as_spectrum
from zoedge.theory.step_size import critical_step_size, curvature_terms


@dataclass(frozen=True)
class Band:
    """One reading of how near a run is to the edge.

    At the edge ``lower <= threshold <= upper``. ``exact``, where it is known, is the curvature that the exact
    condition compares with the threshold: 2 (1 - beta) / scale over the critical step size. The standard errors are
    those of a measured spectrum, with the number of Hessian-vector products it took; a known one has none.
    """

    lower: float
    threshold: float
    upper: float
    exact: float = math.nan
    step: int | None = None
    lower_stderr: float = 0.0
    upper_stderr: float = 0.0
    exact_stderr: float = 0.0
    products: int = 0

    @property
    def edge_ratio(self) -> float:
        """Step size over critical step size: 1 is the edge, above 1 is unstable; NaN if ``exact`` is unknown."""
        return self.exact / self.threshold

    @property
    def edge_ratio_stderr(self) -> float:
        """Standard error of the edge ratio."""
        return self.exact_stderr / self.threshold


def threshold(method: Method, lr: float) -> float:
    """The number that the curvature is compared with: 2/lr, 2(1-beta)/lr or 2/lr for ZO-GD, ZO-GDM, ZO-Adam."""
    return _unit(method) / checks.positive("lr", lr)


def band(
    trace: float,
    lambda_max: float,
    method: Method,
    lr: float,
    estimator: Estimator | None = None,
    dimension: float | None = None,
    step: int | None = None,
) -> Band:
    """The band of a run from trace and largest eigenvalue of H (of P^-1 H for Adam and ZO-Adam).

    Args:
        trace: Tr(H); negative values, which happen early in training, are taken as they are.
        lambda_max: the largest eigenvalue.
        method: the recursion.
        lr: the step size.
        estimator: of the gradient.
        dimension: number of parameters; only sphere directions need it.
        step: the training step of the reading.
    """
    trace = checks.number("trace", trace)
    lambda_max = checks.number("lambda_max", lambda_max)
    lower, upper = curvature_terms(trace, lambda_max, method, estimator, dimension)
    if not method.zeroth_order:
        lower = upper = lambda_max
    return Band(lower, threshold(method, lr), upper, step=step)


def spectrum_band(
    spectrum: Spectrum | ArrayLike,
    method: Method,
    lr: float,
    estimator: Estimator | None = None,
    step: int | None = None,
) -> Band:
    """The band of a run from a spectrum, with the exact curvature; negative eigenvalues are kept."""
    spectrum = as_spectrum(spectrum)
    reading = band(spectrum.trace, spectrum.lambda_max, method, lr, estimator, spectrum.dimension)
    exact = _unit(method) / critical_step_size(spectrum, method, estimator, negative="keep")
    return Band(reading.lower, reading.threshold, reading.upper, exact, step)


def _unit(method: Method) -> float:
    """The threshold at step size 1."""
    sign = -1 if method.zeroth_order else 1
    return 2 * (1 + sign * method.momentum) / method.scale
