import numpy as np
import pytest
import torch
from torch import nn

from tests.curvature.nets import NETS, Problem, Quadratic
from zoedge.curvature import HessianOperator, power_iteration, top_eigenvalues


@pytest.fixture
def problem():
    return Quadratic()


@pytest.fixture
def H(problem):
    return HessianOperator(problem, [problem.x])


@pytest.mark.parametrize("name", NETS)
def test_top_eigenvalues_of_networks(name):
    problem = Problem(name)
    exact = np.linalg.eigvalsh(problem.dense().numpy())[::-1][:4]
    found = top_eigenvalues(HessianOperator(problem, problem.params), 4, tolerance=1e-6)
    assert found.converged
    np.testing.assert_allclose(found.values, exact, atol=1e-8 * exact[0])


def test_values_vectors_residuals_and_errors_agree(H, problem):
    found = top_eigenvalues(H, 4)
    exact = problem.eigenvalues[:4]
    assert len(found) == 4
    assert np.all(np.abs(found.values - exact) <= found.errors)
    assert found.errors.max() < 1e-3 * exact[0]
    residuals = (found.vectors @ problem.A - torch.from_numpy(found.values)[:, None] * found.vectors).norm(dim=1)
    np.testing.assert_allclose(residuals, found.residuals, atol=1e-12)
    torch.testing.assert_close(found.vectors @ found.vectors.T, torch.eye(4, dtype=torch.float64))
    assert (found[1].value, found[1].products) == (found.values[1], found.products)


def slow() -> HessianOperator:
    """Eigenvalues that are hard to tell from each other."""
    weights = nn.Parameter(torch.zeros(400, dtype=torch.float64))
    scales = torch.linspace(0, 1, 400, dtype=torch.float64)
    return HessianOperator(lambda: 0.5 * (scales * weights.square()).sum(), [weights])


def test_the_stop_is_by_residuals():
    H = slow()
    loose, tight = top_eigenvalues(H, 3, tolerance=1e-2), top_eigenvalues(H, 3, tolerance=1e-8)
    assert loose.products < tight.products
    assert tight.residuals.max() <= 1e-8 * tight.values[0]
    given_up = top_eigenvalues(H, 3, tolerance=1e-12, max_products=5)
    assert not given_up.converged
    assert given_up.products == 5


def test_a_warm_start_saves_products():
    cold = top_eigenvalues(slow(), 3, tolerance=1e-4)
    weights = nn.Parameter(torch.zeros(400, dtype=torch.float64))
    scales = torch.linspace(0, 1, 400, dtype=torch.float64)
    noise = torch.randn(400, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    A = torch.diag(scales) + 1e-4 * noise @ noise.T
    nearby = HessianOperator(lambda: 0.5 * weights @ A @ weights, [weights])
    warm = top_eigenvalues(nearby, 3, tolerance=1e-4, start=cold.vectors)
    assert warm.products < 0.9 * cold.products
    np.testing.assert_allclose(warm.values, np.linalg.eigvalsh(A.numpy())[::-1][:3], rtol=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_a_warm_start_finds_a_newcomer(seed):
    """What was the top vector is the second one now."""
    d = 20_000
    weights = nn.Parameter(torch.zeros(d))
    scales = torch.cat([torch.tensor([1.0, 1.2]), torch.linspace(0, 0.5, d - 2)])
    H = HessianOperator(lambda: 0.5 * (scales * weights.square()).sum(), [weights])
    former = torch.zeros(1, d)
    former[0, 0] = 1.0
    found = top_eigenvalues(H, start=former, generator=torch.Generator().manual_seed(seed))
    assert found.values[0] == pytest.approx(1.2, abs=1e-3)


def test_little_memory_is_enough(H, problem):
    found = top_eigenvalues(H, 3, tolerance=1e-5, memory=8 * 300 * 10)
    assert found.converged
    np.testing.assert_allclose(found.values, problem.eigenvalues[:3], rtol=1e-8)


def test_repeated_eigenvalues_and_the_whole_spectrum():
    weights = nn.Parameter(torch.zeros(6, dtype=torch.float64))
    scales = torch.tensor([5.0, 5.0, 5.0, 2.0, 2.0, -1.0], dtype=torch.float64)
    H = HessianOperator(lambda: 0.5 * (scales * weights.square()).sum(), [weights])
    found = top_eigenvalues(H, 6)
    np.testing.assert_allclose(found.values, scales.numpy(), atol=1e-12)
    assert found.converged
    single = nn.Parameter(torch.zeros(1))
    one = top_eigenvalues(HessianOperator(lambda: single.square().sum(), [single]))
    assert one.values == pytest.approx([2.0])


def test_the_largest_not_the_largest_in_size():
    weights = nn.Parameter(torch.zeros(40, dtype=torch.float64))
    scales = torch.linspace(-10, 3, 40, dtype=torch.float64)
    H = HessianOperator(lambda: 0.5 * (scales * weights.square()).sum(), [weights])
    assert top_eigenvalues(H).values[0] == pytest.approx(3.0, abs=1e-4)
    power = power_iteration(H, 300)
    assert power.value == pytest.approx(-10.0, abs=0.05)


def test_power_iteration_as_in_the_paper(H, problem):
    found = power_iteration(H)
    assert found.products == H.products == 50
    assert found.value == pytest.approx(problem.eigenvalues[0], rel=1e-6)
    early = power_iteration(H, 3)
    assert np.abs(problem.eigenvalues - early.value).min() <= early.stderr
    flat = nn.Parameter(torch.zeros(3))
    assert power_iteration(HessianOperator(lambda: flat.sum(), [flat])).value == 0


def test_a_float32_basis_of_a_large_problem_is_orthonormal():
    d = 600_000
    weights = nn.Parameter(torch.zeros(d))
    scales = torch.linspace(0, 1, d)
    scales[:3] = torch.tensor([11.0, 7.0, 3.0])
    H = HessianOperator(lambda: 0.5 * (scales * weights.square()).sum(), [weights])
    found = top_eigenvalues(H, 3, tolerance=1e-5)
    gram = found.vectors.double() @ found.vectors.double().T
    assert float((gram - torch.eye(3)).abs().max()) < 1e-5
    assert np.all(np.abs(found.values - [11.0, 7.0, 3.0]) <= found.errors)


def test_errors_before_convergence():
    """On an even spectrum nothing has converged after ten steps, and the errors say so."""
    exact, within = 1.0, []
    for seed in range(40):
        found = top_eigenvalues(slow(), max_products=10, generator=torch.Generator().manual_seed(seed))
        within.append(abs(found.values[0] - exact) <= found.errors[0])
        assert found.errors[0] > 1e-4
    assert np.mean(within) > 0.6


def test_progress_and_generators(H):
    calls = []
    found = top_eigenvalues(H, 2, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (found.products, 300)
    power_iteration(H, 7, progress=lambda done, total: calls.append((done, total)))
    assert calls[-1] == (7, 7)
    state = torch.get_rng_state()
    a, b = (top_eigenvalues(H, 2, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(a.vectors, b.vectors)
    assert torch.equal(state, torch.get_rng_state())
