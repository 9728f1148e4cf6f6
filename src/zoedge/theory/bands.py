"""The band: a run's threshold between two curvatures, as the paper draws it.

A run is stable while its curvature lies below the threshold. The exact curvature is not the trace but lies
between the two terms of the band:

    b Tr <= curvature <= b Tr + c lambda_max / (1 + beta),    threshold 2 (1 - beta) / (scale * lr)

(section 5.1 of the paper). For first-order methods curvature is lambda_max alone and the
threshold 2 (1 + beta) / (scale * lr).
"""

import math
from dataclasses import dataclass

from zoedge.theory import checks
from zoedge.theory.estimator import Estimator
from zoedge.theory.methods import Method
from zoedge.theory.spectrum import Spectrum
from zoedge.theory.step_size import critical_step_size, moments


@dataclass(frozen=True)
class Band:
    """One reading of how near a run is to the edge.

    At the edge ``lower <= threshold <= upper``. ``exact``, where it is known, is the curvature that the exact
    condition compares with the threshold: 2 (1 - beta) / scale over the critical step size.
    """

    lower: float
    threshold: float
    upper: float
    exact: float = math.nan
    step: int | None = None

    @property
    def edge_ratio(self) -> float:
        """Step size over critical step size: 1 is the edge, above 1 is unstable; NaN if ``exact`` is unknown."""
        return self.exact / self.threshold

    @property
    def inside(self) -> bool:
        """Whether the threshold lies between the two terms."""
        return self.lower <= self.threshold <= self.upper


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
    spectrum: Spectrum | None = None,
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
        spectrum: if given, ``exact`` is computed from it, with negative eigenvalues kept.
        step: the training step of the reading.
    """
    trace = checks.number("trace", trace)
    lambda_max = checks.number("lambda_max", lambda_max)
    beta = method.momentum
    if method.zeroth_order:
        kappa, b = moments(method, estimator, dimension)
        lower = b * trace
        upper = lower + ((1 - beta) + kappa * (1 + beta)) * lambda_max / (1 + beta)
    else:
        lower = upper = lambda_max
    exact = math.nan
    if spectrum is not None:
        exact = _unit(method) / critical_step_size(spectrum, method, estimator, negative="keep")
    return Band(lower, threshold(method, lr), upper, exact, step)


def _unit(method: Method) -> float:
    """The threshold at step size 1."""
    sign = -1 if method.zeroth_order else 1
    return 2 * (1 + sign * method.momentum) / method.scale
