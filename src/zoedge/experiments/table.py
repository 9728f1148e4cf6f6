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
from zoedge.theory import METHODS, Method, Spectrum, critical_step_size, simulate, step_size_bounds

# Hessian-vector products for a spectrum.
_BUDGET = 400
# Shares of the critical step size at which the second moment is simulated.
_BELOW, _ABOVE = 0.8, 1.25
_STEPS, _REPLICAS = 300, 200


@dataclass(frozen=True)
class Row:
    """A method's critical step size.

    Attributes:
        method: its name.
        exact: the critical step size.
        stderr: its standard error, from that of the spectrum.
        lower, upper: the paper's bounds from trace and largest eigenvalue.
        below, above: the factor by which E|x|^2 changes over the second half of a simulation at 0.8 and at 1.25 of it.
    """

    method: str
    exact: float
    stderr: float
    lower: float
    upper: float
    below: float
    above: float


def measured_spectrum(run: RunFolder) -> MeasuredSpectrum:
    """The spectrum of the Hessian, of P^-1 H for Adam, at the end of a run."""
    objective = Objective(run.settings)
    optimizer = build_optimizer(run.settings, objective)
    found, _ = checkpoint.load(run.path / "checkpoints", objective.model, optimizer)
    if found is None:
        raise FileNotFoundError(f"{run.path} has no checkpoint to measure")
    P = recursion(optimizer).preconditioner
    H = HessianOperator(objective.part, list(objective.model.parameters()), P, batches=objective.chunks(), keep=True)
    return spectrum(H, min(_BUDGET, H.shape[0]), generator=torch.Generator().manual_seed(0))


def stability_table(plain: MeasuredSpectrum, preconditioned: MeasuredSpectrum) -> list[Row]:
    """A row for every method, in the order of the paper's table."""
    return [
        _row(METHODS[name](), preconditioned if "adam" in name else plain)
        for name in ("gd", "gdm", "adam", "zo-gd", "zo-gdm", "zo-adam")
    ]


def table_claims(rows: Sequence[Row]) -> list[Claim]:
    """What the table must show."""
    by_name = {row.method: row for row in rows}
    within = all(row.lower - 3 * row.stderr <= row.exact <= row.upper + 3 * row.stderr for row in rows)
    growth = ", ".join(f"{row.method} {row.below:.2g} and {row.above:.2g}" for row in rows)
    gain = by_name["gdm"].exact / by_name["gd"].exact
    loss = by_name["zo-gdm"].exact / by_name["zo-gd"].exact
    return [
        Claim(
            "every exact critical step size lies between the paper's bounds",
            within,
            ", ".join(f"{row.method} {row.lower:.3g} <= {row.exact:.3g} <= {row.upper:.3g}" for row in rows),
        ),
        Claim(
            f"in simulation the second moment does not grow at {_BELOW} of it, and grows at {_ABOVE}",
            all(row.below < 1 < row.above for row in rows),
            growth,
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
    below, above = (_growth(eigenvalues, method, share * critical) for share in (_BELOW, _ABOVE))
    return Row(method.name, exact.value, exact.stderr, lower, upper, below, above)


def _whole(spectrum: Spectrum) -> np.ndarray:
    """Positive eigenvalues, each as often as its rounded weight says."""
    weights = np.ones(len(spectrum.eigenvalues)) if spectrum.weights is None else spectrum.weights
    counts = np.maximum(np.rint(weights), 1).astype(int)
    return np.repeat(spectrum.eigenvalues, counts)[np.repeat(spectrum.eigenvalues > 0, counts)]


def _growth(eigenvalues: np.ndarray, method: Method, lr: float) -> float:
    """The factor of the second moment over the second half of a simulation that starts where curvature is largest."""
    start = eigenvalues / np.linalg.norm(eigenvalues)
    moments = simulate(eigenvalues, method, lr, _STEPS, replicas=_REPLICAS, start=start).second_moment
    return float(moments[-1] / moments[_STEPS // 2])
