"""Search directions: their moments, where stability comes from, and what they are a function of."""

import numpy as np
import pytest
import torch

from zoedge.optim import directions as module
from zoedge.optim.directions import Direction

CPU = torch.device("cpu")
KINDS = ["gaussian", "sphere", "rademacher"]


def dense(kind, sizes, key=(0, 0, 0), active=None) -> np.ndarray:
    direction = Direction(kind, sizes, active or [True] * len(sizes), key, CPU)
    return torch.cat([direction.dense(i) for i in range(len(sizes))]).numpy()


def samples(kind, sizes, count) -> np.ndarray:
    return np.stack([dense(kind, sizes, (7, step, 0)) for step in range(count)])


@pytest.fixture
def small_pool(monkeypatch):
    """A pool of 32 in pieces of 8, so that small directions use it as large ones use the real one."""
    monkeypatch.setattr(module, "INDEPENDENT", 32)
    monkeypatch.setattr(module, "POOL", 32)
    monkeypatch.setattr(module, "PIECE", 8)


@pytest.mark.parametrize("kind", KINDS)
def test_unbiased_and_fourth_moment(kind):
    """E[u u^T] = I, and E[u u^T A u u^T] as the theory has it."""
    d, count = 6, 12_000
    u = samples(kind, [4, 2], count)
    outer = np.einsum("si,sj->sij", u, u)
    assert_mean(outer, np.eye(d))
    A = np.diag(np.arange(1.0, 7.0)) + 0.5
    trace = np.trace(A)
    expected = 2 * A + trace * np.eye(d)
    if kind == "sphere":
        expected *= d / (d + 2)
    elif kind == "rademacher":
        expected -= 2 * np.diag(np.diag(A))
    assert_mean(np.einsum("sij,jk,skl->sil", outer, A, outer, optimize=True), expected)
    assert_mean(u, np.zeros(d))


def assert_mean(values, expected):
    error = values.std(axis=0) / len(values) ** 0.5
    assert (np.abs(values.mean(axis=0) - expected) < 5 * error + 1e-5).all()


def test_a_million_normals():
    u = dense("gaussian", [1_000_000])
    assert abs(u.mean()) < 5e-3
    assert u.var() == pytest.approx(1, abs=5 * (2 / 1e6) ** 0.5)
    assert (u**4).mean() == pytest.approx(3, abs=5 * (96 / 1e6) ** 0.5)
    assert (u**6).mean() == pytest.approx(15, abs=5 * (10170 / 1e6) ** 0.5)
    assert np.abs(u).max() > 4.5
    for lag in (1, 2, 7, 64, 65536):
        assert abs(np.mean(u[:-lag] * u[lag:])) < 5e-3


def test_two_million_normals_from_a_pool():
    u = dense("gaussian", [1_500_000, 700_000])
    assert u.var() == pytest.approx(1, abs=5 * (2 / 2**19) ** 0.5)
    assert (u**4).mean() == pytest.approx(3, abs=5 * (96 / 2**19) ** 0.5)
    # Numbers stand several times, with a random sign and far apart.
    assert 400_000 < len(np.unique(np.abs(u))) <= 2**19


@pytest.mark.usefixtures("small_pool")
@pytest.mark.parametrize("kind", ["gaussian", "rademacher"])
def test_moments_from_a_pool(kind):
    """Entries are uncorrelated, and E[u_i^2 u_j^2] is 1 plus E[u^4] - 1 for the share of draws with a common source."""
    sizes, count = [40, 24], 12_000
    u = samples(kind, sizes, count)
    outer = u.T @ u / count
    assert np.abs(outer - np.eye(64)).max() < 6 * (3 / count) ** 0.5
    squares = u * u
    between = squares[:, :8].T @ squares[:, 8:] / count
    excess = 2.0 if kind == "gaussian" else 0.0
    assert between.mean() == pytest.approx(1 + excess / 32, abs=0.02)


@pytest.mark.usefixtures("small_pool")
def test_fourth_moment_of_a_pool_along_a_constant():
    """Windows that overlap share sizes, not signs: E[(v u)^4] stays 3 |v|^4 also for v that does not vary."""
    u = samples("gaussian", [40, 24], 12_000).sum(axis=1) / 8
    error = (u**4).std() / len(u) ** 0.5
    # With shared signs the excess would be about 4/3 PIECE/POOL of 3, that is 1; of the sizes alone it is 6/32 of 3/8.
    assert abs((u**4).mean() - 3) < 5 * error + 0.1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [[5, 3, 11], [300_000, 900_000, 7]])
def test_a_function_of_seed_step_and_query(kind, sizes):
    reference = dense(kind, sizes, (1, 2, 3))
    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert (dense(kind, sizes, (1, 2, 3)) == reference).all()
    assert torch.equal(torch.get_rng_state(), before)
    for key in ((0, 2, 3), (1, 3, 3), (1, 2, 0), (2, 1, 3)):
        other = dense(kind, sizes, key)
        assert abs(np.dot(other, reference)) < 6 * len(reference) ** 0.5


def test_freezing_leaves_the_noise_of_the_others():
    for sizes in ([5, 6], [700_000, 600_000]):
        all_active = Direction("gaussian", sizes, [True, True], (0, 0, 0), CPU)
        one_frozen = Direction("gaussian", sizes, [False, True], (0, 0, 0), CPU)
        assert torch.equal(all_active.dense(1), one_frozen.dense(1))


def test_the_sphere_has_radius_root_d_over_all_moving_parameters():
    for sizes in ([5, 6], [700_000, 600_000]):
        assert np.linalg.norm(dense("sphere", sizes)) == pytest.approx(sum(sizes) ** 0.5)
        part = Direction("sphere", sizes, [False, True], (0, 0, 0), CPU)
        assert float(part.dense(1).double().norm()) == pytest.approx(sizes[1] ** 0.5, rel=1e-6)


def test_rademacher_is_signs():
    u = dense("rademacher", [999, 1_200_000])
    assert set(np.unique(u)) == {-1.0, 1.0}
    assert abs(u.mean()) < 6 / 1e3


def test_empty_parameters():
    assert len(dense("gaussian", [0, 3, 0])) == 3
