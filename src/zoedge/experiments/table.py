"""The paper's Table 1 on the measured spectrum of a trained network, checked by simulation.

GD, GDM, ZO-GD and ZO-GDM take the Hessian of a network trained by ZO-GD, Adam and ZO-Adam the preconditioned Hessian of
one trained by ZO-Adam. Negative eigenvalues, which the theorems exclude, are taken as zero.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from zoedge.curvature import HessianOperator, MeasuredSpectrum, spectrum
from zoedge.curvature.recursion import recursion
from zoedge.experiments import checkpoint
from zoedge.experiments.claims import Claim
from zoedge.experiments.folder import RunFolder
from zoedge.experiments.objective import Objective
from zoedge.experiments.optimizers import build_optimizer
from zoedge.theory import METHODS, BlockCovariance, Method, Spectrum, critical_step_size, simulate, step_size_bounds

# Hessian-vector products for a spectrum.
_BUDGET = 400
# Shares of the critical step size at which the second moment is followed.
BELOW, ABOVE = 0.8, 1.25
_STEPS, _REPLICAS = 300, 200


@dataclass(frozen=True)
class Growth:
    """What the second moment does at a step size.

    Attributes:
        rate: the factor of a step in the long run: the spectral radius of the covariance operator.
        simulated: the factor over the second half of a simulation.
        stderr: its standard error; the mean of few runs has heavy tails.
    """

    rate: float
    simulated: float
    stderr: float

    def __str__(self) -> str:
        return f"{self.simulated:.2g} +- {self.stderr:.1g}"


@dataclass(frozen=True)
class Row:
    """A method's critical step size.

    Attributes:
        method: its name.
        exact: the critical step size.
        stderr: its standard error, from that of the spectrum.
        lower, upper: the paper's bounds from trace and largest eigenvalue.
        below, above: what the second moment does at 0.8 and at 1.25 of it.
    """

    method: str
    exact: float
    stderr: float
    lower: float
    upper: float
    below: Growth
    above: Growth


def measured_spectrum(run: RunFolder) -> MeasuredSpectrum:
    """The spectrum of the Hessian, of P^-1 H for Adam, at the end of a run."""
    objective = Objective(run.settings)
    optimizer = build_optimizer(run.settings, objective)
    found, _ = checkpoint.load(run.path / "checkpoints", model=objective.model, optimizer=optimizer)
    if found is None:
        raise FileNotFoundError(f"{run.path} has no checkpoint to measure")
    P = recursion(optimizer).preconditioner
    H = HessianOperator(objective.part, list(objective.model.parameters()), P, batches=objective.chunks(), keep=True)
    return spectrum(H, min(_BUDGET, H.shape[0]), generator=torch.Generator(H.device).manual_seed(0))


def stability_table(plain: MeasuredSpectrum, preconditioned: MeasuredSpectrum) -> list[Row]:
    """A row for every method, in the order of the paper's table."""
    return [
        _row(METHODS[name](), preconditioned if "adam" in name else plain)
        for name in ("gd", "gdm", "adam", "zo-gd", "zo-gdm", "zo-adam")
    ]


def table_claims(rows: Sequence[Row]) -> list[Claim]:
    """What the table must show; its first and last line hold for every spectrum, and check the code."""
    by_name = {row.method: row for row in rows}
    gain = by_name["gdm"].exact / by_name["gd"].exact
    loss = by_name["zo-gdm"].exact / by_name["zo-gd"].exact
    return [
        Claim(
            "every exact critical step size lies between the paper's bounds",
            all(row.lower - 3 * row.stderr <= row.exact <= row.upper + 3 * row.stderr for row in rows),
            ", ".join(f"{row.method} {row.lower:.3g} <= {row.exact:.3g} <= {row.upper:.3g}" for row in rows),
        ),
        Claim(
            f"the second moment decays at {BELOW} of it and grows at {ABOVE}",
            all(row.below.rate < 1 < row.above.rate for row in rows),
            ", ".join(f"{row.method} {row.below.rate:.4f} and {row.above.rate:.4f} a step" for row in rows),
        ),
        Claim(
            "no simulation contradicts that, by more than two standard errors",
            all(row.below.simulated < 1 + 2 * row.below.stderr for row in rows)
            and all(row.above.simulated > 1 - 2 * row.above.stderr for row in rows),
            ", ".join(f"{row.method} {row.below} and {row.above}" for row in rows),
        ),
        Claim(
            "momentum of 0.9 raises the critical step size of GD and lowers that of ZO-GD",
            gain > 1 > loss,
            f"by factors of {gain:.3g} and {loss:.3g}",
        ),
    ]


def _row(method: Method, measured: MeasuredSpectrum) -> Row:
    exact = measured.estimate(lambda s: critical_step_size(s, method, negative="clip"))
    positive = measured.treat_negatives("clip")
    lower, upper = (
        step_size_bounds(positive.trace, positive.lambda_max, method) if method.zeroth_order else (exact.value,) * 2
    )
    eigenvalues = _whole(positive)
    # By the eigenvalues that are simulated, which differ from the measured ones by what rounding of weights does.
    critical = critical_step_size(eigenvalues, method)
    below, above = (_growth(eigenvalues, method, share * critical) for share in (BELOW, ABOVE))
    return Row(method.name, exact.value, exact.stderr, lower, upper, below, above)


def _whole(spectrum: Spectrum) -> np.ndarray:
    """Positive eigenvalues, each as often as its rounded weight says."""
    weights = np.ones(len(spectrum.eigenvalues)) if spectrum.weights is None else spectrum.weights
    counts = np.maximum(np.rint(weights), 1).astype(int)
    return np.repeat(spectrum.eigenvalues, counts)[np.repeat(spectrum.eigenvalues > 0, counts)]


def _growth(eigenvalues: np.ndarray, method: Method, lr: float) -> Growth:
    """By the covariance operator, and by a simulation that starts where curvature is largest."""
    start = eigenvalues / np.linalg.norm(eigenvalues)
    found = simulate(eigenvalues, method, lr, _STEPS, replicas=_REPLICAS, start=start)
    middle = found.second_moment[_STEPS // 2]
    rate = BlockCovariance(eigenvalues, method).spectral_radius(lr)
    return Growth(rate, float(found.second_moment[-1] / middle), float(found.stderr[-1] / middle))
