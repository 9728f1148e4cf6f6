"""Random estimates: right on average, with standard errors that are honest."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.curvature.nets import Problem, Quadratic
from zoedge.curvature import HessianOperator, relative_commutator, spectral_density, spectrum, trace
from zoedge.theory import ZOGD, ZOGDM, Estimator, Spectrum, critical_step_size

REPEATS = 200
PROBLEM = Quadratic(200)
EXACT = Spectrum(PROBLEM.eigenvalues)
P = torch.linspace(0.5, 2.0, 200, dtype=torch.float64)


def operator(problem: Quadratic = PROBLEM) -> HessianOperator:
    return HessianOperator(problem, [problem.x])


def step_size(s: Spectrum) -> float:
    return critical_step_size(s, ZOGD(), negative="keep")


def momentum_sphere(s: Spectrum) -> float:
    return critical_step_size(s, ZOGDM(0.9), Estimator(directions="sphere", queries=3), negative="keep")


def commutator() -> float:
    A, D = PROBLEM.A, torch.diag(P)
    return float((A @ D - D @ A).norm() / (D @ A).norm())


ESTIMATES = {
    "trace": (lambda H, g: trace(H, 40, generator=g), EXACT.trace),
    "deflated trace": (lambda H, g: trace(H, 30, deflation=15, generator=g), EXACT.trace),
    "spectrum's trace": (lambda H, g: spectrum(H, 50, generator=g).estimate(lambda s: s.trace), EXACT.trace),
    "critical step size": (lambda H, g: spectrum(H, 50, generator=g).estimate(step_size), step_size(EXACT)),
    "momentum, sphere, queries": (
        lambda H, g: spectrum(H, 50, generator=g).estimate(momentum_sphere),
        momentum_sphere(EXACT),
    ),
    "commutator": (lambda H, g: relative_commutator(H, P, 40, generator=g), commutator()),
}


@pytest.mark.parametrize("name", ESTIMATES)
def test_standard_errors_are_honest(name):
    estimate, exact = ESTIMATES[name]
    H = operator()
    found = [estimate(H, torch.Generator().manual_seed(seed)) for seed in range(REPEATS)]
    values, errors = np.array([e.value for e in found]), np.array([e.stderr for e in found])
    within = np.mean(np.abs(values - exact) <= 2 * errors)
    assert 0.90 <= within <= 0.99, f"{within:.3f} of the estimates are within two standard errors"
    # Right on average, to what so many repeats can tell; a small bias of second order is allowed.
    assert abs(values.mean() - exact) <= 4 * values.std() / REPEATS**0.5 + 0.002 * abs(exact)
    assert len({e.products for e in found}) == 1


def test_deflation_beats_the_paper_s_recipe():
    H = operator()
    errors = [
        [float(estimate) - EXACT.trace for estimate in estimates]
        for estimates in zip(
            *(
                (
                    trace(H, 500, generator=torch.Generator().manual_seed(seed)),
                    trace(H, 20, deflation=20, generator=torch.Generator().manual_seed(seed)),
                )
                for seed in range(20)
            ),
            strict=True,
        )
    ]
    plain, deflated = np.square(errors).mean(1) ** 0.5
    assert deflated < plain


def test_the_spectrum_has_the_dimension_top_and_moments_of_the_operator():
    H = operator()
    found = spectrum(H, 60)
    assert found.dimension == pytest.approx(200)
    assert abs(found.lambda_max - EXACT.lambda_max) <= found.top.stderr
    assert found.lambda_min == pytest.approx(EXACT.lambda_min, abs=1e-6)
    assert found.products == found.top.products == H.products == 60
    squares = found.estimate(lambda s: s.sum(s.eigenvalues**2))
    assert abs(squares.value - EXACT.sum(EXACT.eigenvalues**2)) <= 4 * squares.stderr
    assert found.positive_trace > found.trace


def test_a_small_operator_is_known_exactly():
    problem = Quadratic(20)
    found = spectrum(HessianOperator(problem, [problem.x]), 60)
    np.testing.assert_allclose(np.sort(found.eigenvalues)[::-1], problem.eigenvalues, atol=1e-9)
    assert found.products == 20
    exact = found.estimate(lambda s: s.trace)
    assert (exact.stderr, exact.value) == (0.0, pytest.approx(problem.eigenvalues.sum()))
    assert trace(HessianOperator(problem, [problem.x]), 5, deflation=20).stderr == 0


def test_an_operator_that_is_zero_or_the_identity():
    weights = nn.Parameter(torch.zeros(300))
    zero = spectrum(HessianOperator(lambda: weights.sum(), [weights]), 20)
    assert (zero.trace, zero.lambda_max, zero.dimension) == (0.0, 0.0, 300.0)
    flat = spectrum(HessianOperator(lambda: 0.5 * weights.square().sum(), [weights]), 20)
    estimate = flat.estimate(step_size)
    assert abs(estimate.value - 2 / 302) <= 4 * estimate.stderr


class Diagonal:
    """A rotated spectrum of any kind, as an operator."""

    def __init__(self, eigenvalues: np.ndarray, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        Q, _ = np.linalg.qr(random.standard_normal((len(eigenvalues), len(eigenvalues))))
        A = torch.from_numpy((Q * eigenvalues) @ Q.T)
        x = nn.Parameter(torch.zeros(len(eigenvalues), dtype=torch.float64))
        self.H = HessianOperator(lambda: 0.5 * x @ A @ x, [x])
        self.exact = Spectrum(eigenvalues)


@pytest.mark.parametrize(
    "eigenvalues",
    [
        np.concatenate([[0.5, 0.4, 0.3], np.linspace(-2, 0, 397)]),
        np.concatenate([[1.0], np.full(300, 1e-3), np.linspace(-8, -3, 99)]),
        np.concatenate([[5.0], np.linspace(-0.3, 0.4, 399)]),
        np.linspace(0, 1, 400),
        np.linspace(0.5, 1, 400),
    ],
    ids=["mostly negative", "negative outliers", "one outlier", "even", "flat"],
)
@pytest.mark.parametrize("budget", [40, 120])
def test_spectra_of_every_kind(eigenvalues, budget):
    """No node beyond the spectrum, and the critical step size within its error and what third order may be off."""
    problem = Diagonal(eigenvalues)
    found = spectrum(problem.H, budget)
    assert found.lambda_max == pytest.approx(found.top.value)
    assert found.lambda_min >= min(problem.exact.lambda_min, 0) - 1e-9  # zeros fill up the dimension
    estimate, exact = found.estimate(step_size), step_size(problem.exact)
    assert abs(estimate.value - exact) <= 4 * estimate.stderr + 0.02 * exact


def test_a_negative_definite_operator_has_no_critical_step_size():
    found = spectrum(Diagonal(np.linspace(-2, -1, 200)).H, 40)
    assert found.top.value == pytest.approx(-1, abs=0.05)
    assert found.lambda_max <= 0
    assert step_size(found) == np.inf


def test_the_coupling_of_the_krylov_space_counts():
    """After a few steps of an even spectrum beta is large; without it the sum of squares would be too small."""
    problem = Diagonal(np.linspace(0, 1, 60))
    exact = problem.exact.sum(problem.exact.eigenvalues**2)
    found = [
        spectrum(problem.H, 24, generator=torch.Generator().manual_seed(seed)).estimate(
            lambda s: s.sum(s.eigenvalues**2)
        )
        for seed in range(100)
    ]
    values = np.array([e.value for e in found])
    assert abs(values.mean() - exact) <= 4 * values.std() / 10


@pytest.mark.parametrize("memory", [8 * 200 * 12, 8 * 200 * 30, 1 << 30])
def test_chunks_do_not_change_the_probes(memory):
    H = operator()
    a, b = (trace(H, 40, generator=torch.Generator().manual_seed(1), memory=size) for size in (memory, 1 << 20))
    assert a.value == pytest.approx(b.value, rel=1e-12)
    assert spectrum(H, 40, memory=memory).estimate(step_size).value == pytest.approx(step_size(EXACT), rel=0.2)


def test_a_warm_start_measures_the_same():
    H = operator()
    cold = spectrum(H, 30)
    warm = spectrum(H, 30, start=cold.vectors, generator=torch.Generator().manual_seed(5))
    estimate = warm.estimate(step_size)
    assert abs(estimate.value - step_size(EXACT)) <= 4 * estimate.stderr
    assert abs(warm.top.value - EXACT.lambda_max) <= warm.top.stderr


def test_progress_counts_products():
    H = operator()
    for call, total in (
        (lambda p: trace(H, 70, deflation=10, progress=p), 80),
        (lambda p: spectrum(H, 50, progress=p), 50),
        (lambda p: relative_commutator(H, P, 40, progress=p), 80),
        (lambda p: spectral_density(H, 2, 30, progress=p), 60),
    ):
        calls = []
        call(lambda done, of, calls=calls: calls.append((done, of)))
        assert calls[-1] == (total, total)
        assert calls == sorted(calls)
        assert len(calls) > 1


def test_commutators_at_the_ends():
    H = operator()
    assert relative_commutator(H, torch.full((200,), 3.0), 5).value == pytest.approx(0, abs=1e-12)
    weights = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    swap = HessianOperator(lambda: weights[0] * weights[1], [weights])
    # P H - H P for P = diag(1, 3) and H the exchange of two entries.
    assert relative_commutator(swap, torch.tensor([1.0, 3.0]), 5).value == pytest.approx((8 / 10) ** 0.5)
    zero = HessianOperator(lambda: weights.sum(), [weights])
    with pytest.raises(ValueError, match="Hessian is zero"):
        relative_commutator(zero, torch.ones(2))


def test_density_integrates_to_the_moments():
    H = operator()
    found = spectral_density(H, 20, 60, points=4000)
    integral = np.trapezoid(found.values, found.eigenvalues)
    assert integral == pytest.approx(1, abs=1e-3)
    mean = np.trapezoid(found.values * found.eigenvalues, found.eigenvalues)
    assert mean == pytest.approx(EXACT.trace / 200, rel=0.5)
    smoothed = np.exp(-0.5 * ((found.eigenvalues[:, None] - PROBLEM.eigenvalues) / found.width) ** 2).mean(1)
    smoothed /= found.width * (2 * np.pi) ** 0.5
    assert np.mean(np.abs(found.values - smoothed) <= 4 * found.stderr + 1e-3) > 0.95
    assert found.products == 1200


def test_a_network_against_its_dense_hessian():
    problem = Problem("attention")
    eigenvalues = np.linalg.eigvalsh(problem.dense().numpy())
    found = spectrum(HessianOperator(problem, problem.params), 160)
    estimate = found.estimate(step_size)
    exact = step_size(Spectrum(eigenvalues))
    assert abs(estimate.value - exact) <= 4 * estimate.stderr
    assert estimate.value == pytest.approx(exact, rel=0.01)
