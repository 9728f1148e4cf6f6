"""Monte-Carlo of the linearised dynamics: what single runs do, beside what their second moment does.

The second moment is dominated by rare large excursions, so it can explode while almost every single run decays:
the growth rate of a single run, the top Lyapunov exponent, turns positive at a larger step size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zoedge.theory import checks
from zoedge.theory.estimator import Estimator, noise_moments
from zoedge.theory.methods import Method
from zoedge.theory.minibatch import MiniBatch
from zoedge.theory.spectrum import Spectrum, as_spectrum

Rows = NDArray[np.float64]
Map = Callable[[Rows], Rows]


@dataclass(frozen=True, eq=False)
class Simulation:
    """What many replicas of one run did, in the directions in which H is not flat.

    Attributes:
        second_moment: the mean over replicas of \\|x_t\\|^2 for t = 0..steps. Heavy-tailed: trust it where its
            standard error is small beside it. Infinite where it overflows.
        stderr: its standard error.
        lyapunov: the top Lyapunov exponent, the growth rate of log\\|state\\| per step of a single run over the
            second half: below 0, almost every run decays. With forward differences it cannot stay below 0 once the
            floor is reached. Minus infinity if every replica has hit zero exactly.
        lyapunov_stderr: its standard error over the replicas.
    """

    second_moment: NDArray[np.float64]
    stderr: NDArray[np.float64]
    lyapunov: float
    lyapunov_stderr: float


@dataclass(frozen=True)
class _Quadratic:
    """The loss 0.5 x^T H x: a draw of its Hessian as a map on rows, and the projection onto where it is not flat."""

    dimension: int
    draw: Callable[[], Map]
    project: Map


def simulate(
    H: Spectrum | ArrayLike | MiniBatch,
    method: Method,
    lr: float,
    steps: int,
    estimator: Estimator | None = None,
    replicas: int = 1000,
    preconditioner: ArrayLike | None = None,
    start: ArrayLike | None = None,
    seed: int = 0,
) -> Simulation:
    """Run ``replicas`` independent copies of a method on the quadratic 0.5 x^T H x.

    Args:
        H: a spectrum or its eigenvalues (a diagonal Hessian), a symmetric matrix, or mini-batches of examples.
        method: the recursion; Adam and ZO-Adam run with the frozen ``preconditioner``.
        lr: the step size.
        steps: how many.
        estimator: of the gradient; by default Gaussian, two-point, one query.
        replicas: how many copies.
        preconditioner: P, its diagonal or a matrix; needs a matrix H or mini-batches.
        start: x_0 of every replica, shape (d,); by default all entries equal, of norm 1.
        seed: of the directions and batches.
    """
    estimator = estimator or Estimator()
    noise_moments(method, estimator if estimator.isotropic else None, 1)
    generator = np.random.default_rng(checks.count("seed", seed, at_least=0))
    replicas, steps = checks.count("replicas", replicas, at_least=2), checks.count("steps", steps)
    quadratic = _quadratic(H, replicas, generator, preconditioner is not None)
    rate = method.scale * checks.positive("lr", lr)
    precondition = _preconditioning(preconditioner, quadratic.dimension)

    x = quadratic.project(np.tile(_start(start, quadratic.dimension), (replicas, 1)))
    z = np.zeros_like(x)
    # Each replica is x * exp(log_scale): kept near norm 1, it neither overflows nor dies out.
    log_scale = np.zeros(replicas)
    moments, errors = np.empty(steps + 1), np.empty(steps + 1)
    alive, growth_start = np.ones(replicas, bool), log_scale

    for t in range(steps + 1):
        squares = _squares(x)
        norm = np.sqrt(squares + _squares(z))
        if not np.isfinite(norm).all():
            raise ValueError(f"lr {lr:.3g} overflows within one step: it is far beyond the critical step size")
        moments[t], errors[t] = _mean_of_scaled(squares, 2 * log_scale)
        alive = norm > 0
        scale = np.where(alive, norm, 1.0)
        x, z = x / scale[:, None], z / scale[:, None]
        log_scale = np.where(alive, log_scale + np.log(scale), 0.0)
        if t == steps // 2:
            growth_start = log_scale
        if t == steps:
            break
        hessian = quadratic.draw()
        g = hessian(x)
        if method.zeroth_order:
            g = _estimate(g, hessian, estimator, log_scale, generator)
        with np.errstate(over="ignore", invalid="ignore"):
            z = method.momentum * z + rate * precondition(g)
            x = quadratic.project(x - z)

    rates = ((log_scale - growth_start) / (steps - steps // 2))[alive]
    if len(rates) < 2:
        return Simulation(moments, errors, -np.inf, np.nan)
    return Simulation(moments, errors, float(rates.mean()), float(rates.std(ddof=1) / len(rates) ** 0.5))


def _estimate(
    gradients: Rows, hessian: Map, estimator: Estimator, log_scale: NDArray[np.float64], generator: np.random.Generator
) -> Rows:
    """The estimate of each row's gradient, in units of the row's scale."""
    total = np.zeros_like(gradients)
    for _ in range(estimator.queries):
        u = _directions(gradients.shape, estimator, generator)
        slope = np.sum(u * gradients, axis=1)
        if estimator.form == "forward":
            slope += 0.5 * estimator.mu * np.exp(-log_scale) * np.sum(u * hessian(u), axis=1)
        total += slope[:, None] * u
    return total / estimator.queries


def _directions(shape: tuple[int, ...], estimator: Estimator, generator: np.random.Generator) -> Rows:
    if estimator.directions == "rademacher":
        return generator.choice((-1.0, 1.0), size=shape)
    u = generator.standard_normal(shape)
    if estimator.directions == "sphere":
        u *= shape[1] ** 0.5 / np.linalg.norm(u, axis=1, keepdims=True)
    return u


def _quadratic(
    H: Spectrum | ArrayLike | MiniBatch, replicas: int, generator: np.random.Generator, preconditioned: bool
) -> _Quadratic:
    if isinstance(H, Spectrum) or (not isinstance(H, MiniBatch) and np.ndim(H) == 1):
        if preconditioned:
            raise ValueError("a preconditioner needs the matrix H, not its eigenvalues: pass np.diag(eigenvalues)")
        values = _repeated(as_spectrum(H))
        moving = values != 0
        return _Quadratic(len(values), lambda: lambda x: x * values, lambda x: x * moving)
    matrix = H.mean if isinstance(H, MiniBatch) else checks.symmetric_matrix("H", H)
    values, V = np.linalg.eigh(matrix)
    moving = np.abs(values) > checks.rounding(matrix, len(values)) * np.abs(values).max()
    projector = V[:, moving] @ V[:, moving].T
    project = (lambda x: x) if moving.all() else (lambda x: x @ projector)
    if isinstance(H, MiniBatch):
        return _Quadratic(len(matrix), lambda: H.sample(replicas, generator), project)
    return _Quadratic(len(matrix), lambda: lambda x: x @ matrix, project)


def _repeated(spectrum: Spectrum) -> NDArray[np.float64]:
    """Every eigenvalue as often as its weight says."""
    if spectrum.weights is None:
        return spectrum.eigenvalues
    counts = np.rint(spectrum.weights)
    if not np.allclose(counts, spectrum.weights, rtol=1e-9) or counts.sum() > 1e7:
        raise ValueError("H has weights that are not whole numbers, or too many: a simulation needs eigenvalues")
    return np.repeat(spectrum.eigenvalues, counts.astype(int))


def _start(start: ArrayLike | None, dimension: int) -> NDArray[np.float64]:
    if start is None:
        return np.full(dimension, dimension**-0.5)
    x0 = checks.finite_array("start", start, ndim=1)
    if x0.shape != (dimension,):
        raise ValueError(f"start must have shape ({dimension},), got {x0.shape}")
    return x0


def _preconditioning(preconditioner: ArrayLike | None, dimension: int) -> Map:
    if preconditioner is None:
        return lambda g: g
    inverse = np.linalg.inv(checks.preconditioner(preconditioner, dimension))
    return lambda g: g @ inverse


def _squares(rows: Rows) -> NDArray[np.float64]:
    with np.errstate(over="ignore", invalid="ignore"):
        return np.sum(rows * rows, axis=1)


def _mean_of_scaled(values: NDArray[np.float64], log_scale: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard error of values * exp(log_scale), without overflow inside."""
    top = log_scale.max()
    scaled = values * np.exp(log_scale - top)
    with np.errstate(over="ignore"):
        factor = np.exp(top)
        return float(scaled.mean() * factor), float(scaled.std(ddof=1) / len(scaled) ** 0.5 * factor)
