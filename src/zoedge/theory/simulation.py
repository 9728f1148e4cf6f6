"""Monte-Carlo of the linearised dynamics: what single runs do, beside what their second moment does.

The second moment is dominated by rare large excursions, so it can explode while almost every single run decays:
the growth rate of a single run, the top Lyapunov exponent, turns positive at a larger step size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from zoedge.theory import checks
from zoedge.theory.estimator import Estimator
from zoedge.theory.methods import Method
from zoedge.theory.minibatch import MiniBatch
from zoedge.theory.spectrum import Spectrum

Rows = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Simulation:
    """What many replicas of one run did.

    Attributes:
        second_moment: the mean over replicas of \\|x_t\\|^2 for t = 0..steps. Heavy-tailed: trust it where its
            standard error is small beside it.
        stderr: its standard error.
        lyapunov: the top Lyapunov exponent, the growth rate of log\\|state\\| per step of a single run over the
            second half: below 0, almost every run decays. With forward differences it cannot fall below 0 once the
            floor is reached.
        lyapunov_stderr: its standard error over the replicas.
    """

    second_moment: NDArray[np.float64]
    stderr: NDArray[np.float64]
    lyapunov: float
    lyapunov_stderr: float


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
        preconditioner: P, its diagonal or a matrix. With a spectrum only the diagonal.
        start: x_0 of every replica, shape (d,); by default all entries equal, of norm 1.
        seed: of the directions and batches.
    """
    estimator = estimator or Estimator()
    generator = np.random.default_rng(checks.count("seed", seed, at_least=0))
    gradient, curvature, dimension = _quadratic(H, generator)
    replicas, steps = checks.count("replicas", replicas, at_least=2), checks.count("steps", steps)
    rate = method.scale * checks.positive("lr", lr)
    precondition = _preconditioning(preconditioner, dimension)

    x0 = np.full(dimension, dimension**-0.5) if start is None else checks.finite_array("start", start, ndim=1)
    if x0.shape != (dimension,):
        raise ValueError(f"start must have shape ({dimension},), got {x0.shape}")
    x = np.tile(x0, (replicas, 1))
    z = np.zeros_like(x)
    # Each replica is x * exp(log_scale): kept near norm 1, it neither overflows nor dies out.
    log_scale = np.zeros(replicas)
    moments, errors = np.empty(steps + 1), np.empty(steps + 1)
    dead, growth_start = np.zeros(replicas, bool), log_scale

    for t in range(steps + 1):
        squares = np.sum(x * x, axis=1)
        moments[t], errors[t] = _mean_of_scaled(squares, 2 * log_scale)
        norm = np.sqrt(squares + np.sum(z * z, axis=1))
        dead = norm == 0
        scale = np.where(dead, 1.0, norm)
        x, z = x / scale[:, None], z / scale[:, None]
        log_scale = np.where(dead, 0.0, log_scale + np.log(scale))
        if t == steps // 2:
            growth_start = log_scale
        if t == steps:
            break
        g = gradient(x)
        if method.zeroth_order:
            g = _estimate(g, curvature, estimator, log_scale, generator)
        z = method.momentum * z + rate * precondition(g)
        x = x - z

    if dead.any():
        return Simulation(moments, errors, -np.inf, np.nan)
    rates = (log_scale - growth_start) / (steps - steps // 2)
    return Simulation(moments, errors, float(rates.mean()), float(rates.std(ddof=1) / replicas**0.5))


def _estimate(
    gradients: Rows,
    curvature: Callable[[Rows], Rows],
    estimator: Estimator,
    log_scale: NDArray[np.float64],
    generator: np.random.Generator,
) -> Rows:
    """The estimate of each row's gradient, in units of the row's scale."""
    total = np.zeros_like(gradients)
    for _ in range(estimator.queries):
        u = _directions(gradients.shape, estimator, generator)
        slope = np.sum(u * gradients, axis=1)
        if estimator.form == "forward":
            slope += 0.5 * estimator.mu * np.exp(-log_scale) * np.sum(u * curvature(u), axis=1)
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
    H: Spectrum | ArrayLike | MiniBatch, generator: np.random.Generator
) -> tuple[Callable[[Rows], Rows], Callable[[Rows], Rows], int]:
    """The map x -> H x of each row (H_B x for batches), the full-batch one, and the dimension."""
    if isinstance(H, MiniBatch):
        mean = H.mean
        return (lambda x: H.product(x, generator)), (lambda u: u @ mean), len(mean)
    if isinstance(H, Spectrum) or np.ndim(H) == 1:
        spectrum = H if isinstance(H, Spectrum) else Spectrum(H)
        values = spectrum.eigenvalues
        if spectrum.weights is not None:
            counts = np.rint(spectrum.weights).astype(int)
            if not np.allclose(counts, spectrum.weights):
                raise ValueError("H has weights that are not whole numbers: a simulation needs eigenvalues")
            values = np.repeat(values, counts)
        return (lambda x: x * values), (lambda u: u * values), len(values)
    matrix = checks.symmetric_matrix("H", H)
    return (lambda x: x @ matrix), (lambda u: u @ matrix), len(matrix)


def _preconditioning(preconditioner: ArrayLike | None, dimension: int) -> Callable[[Rows], Rows]:
    if preconditioner is None:
        return lambda g: g
    inverse = np.linalg.inv(checks.preconditioner(preconditioner, dimension))
    return lambda g: g @ inverse


def _mean_of_scaled(values: NDArray[np.float64], log_scale: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard error of values * exp(log_scale), without overflow inside."""
    top = log_scale.max()
    scaled = values * np.exp(log_scale - top)
    with np.errstate(over="ignore"):
        factor = np.exp(top)
        return float(scaled.mean() * factor), float(scaled.std(ddof=1) / len(scaled) ** 0.5 * factor)
