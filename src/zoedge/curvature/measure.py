"""How near a run is to the edge: optimizer and loss in, a band out."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.optim import Optimizer

from zoedge.curvature.lanczos import top_eigenvalues
from zoedge.curvature.operator import HessianOperator
from zoedge.curvature.probes import MEMORY, Progress
from zoedge.curvature.recursion import Recursion, recursion
from zoedge.curvature.spectrum import MeasuredSpectrum, spectrum
from zoedge.theory import Band, band, spectrum_band


def measure(
    optimizer: Optimizer,
    closure: Callable[..., Any],
    budget: int = 160,
    *,
    batches: Iterable[Any] | None = None,
    keep: bool | None = None,
    generator: torch.Generator | None = None,
    memory: int = MEMORY,
    progress: Progress | None = None,
) -> Band:
    """The band of a run as it stands.

    >>> from zoedge.optim import ZOSGD
    >>> weights = torch.nn.Parameter(torch.ones(10))
    >>> loss = lambda: 0.5 * weights.square().sum()
    >>> reading = measure(ZOSGD([weights], lr=0.1), loss)
    >>> print(f"{reading.lower:.3f} <= {reading.exact:.3f} <= {reading.upper:.3f}, threshold {reading.threshold:.0f}")
    10.000 <= 12.000 <= 12.000, threshold 20

    Method, step size, momentum, estimator and preconditioner are read from the optimizer. For a first-order one,
    torch.optim.SGD, Adam or AdamW, the curvature is the largest eigenvalue alone. Rademacher directions are taken as
    Gaussian ones, whose ``exact`` they stay below; ``lower`` and ``upper`` hold for them too. Weight decay of a
    zeroth-order optimizer, which acts on the parameters directly and only damps, is left out, and so is AdamW's. For
    ZO-Adam the theory takes P to commute with H; ``relative_commutator`` says how far from that it is.

    Args:
        optimizer: a ZOSGD, ZOAdam, torch.optim.SGD, Adam or AdamW.
        closure: returns the loss, without backward; with ``batches`` it is called with each of them.
        budget: number of Hessian-vector products; for a first-order optimizer at most so many.
        batches: parts of the data, if they do not fit at once; see ``HessianOperator``.
        keep: see ``HessianOperator``.
        generator: of start and probes, by default with seed 0.
        memory: bytes for vectors.
        progress: called with (products so far, budget).
    """
    found = recursion(optimizer)
    H = HessianOperator(
        found.objective(closure),
        found.params,
        found.preconditioner,
        batches=batches,
        keep=batches is None if keep is None else keep,
    )
    if not found.method.zeroth_order:
        top = top_eigenvalues(H, max_products=budget, generator=generator, memory=memory, progress=progress)[0]
        reading = band(top.value, top.value, found.method, found.lr, step=found.step)
        return replace(
            reading,
            exact=top.value,
            lower_stderr=top.stderr,
            upper_stderr=top.stderr,
            exact_stderr=top.stderr,
            products=top.products,
        )
    return _zeroth_order_band(found, spectrum(H, budget, generator=generator, memory=memory, progress=progress))


def _zeroth_order_band(found: Recursion, measured: MeasuredSpectrum) -> Band:
    estimator = found.estimator
    if estimator is not None and not estimator.isotropic:
        estimator = replace(estimator, directions="gaussian")

    def reading(which: str) -> tuple[float, float]:
        estimate = measured.estimate(lambda s: getattr(spectrum_band(s, found.method, found.lr, estimator), which))
        return estimate.value, estimate.stderr

    lower, lower_stderr = reading("lower")
    upper, upper_stderr = reading("upper")
    exact, exact_stderr = reading("exact")
    # What the largest eigenvalue may be off by, by its factor in the upper term.
    off = (upper - lower) / measured.lambda_max * measured.top.stderr if measured.lambda_max else 0.0
    return Band(
        lower,
        spectrum_band(measured, found.method, found.lr, estimator).threshold,
        upper,
        exact,
        found.step,
        lower_stderr,
        math.hypot(upper_stderr, off),
        math.hypot(exact_stderr, off),
        measured.products,
    )
