"""The covariance operators against each other, against dense eigenvalues and against the paper's formulas."""

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from zoedge.theory import (
    GD,
    GDM,
    ZOGD,
    ZOGDM,
    Adam,
    BlockCovariance,
    Estimator,
    MatrixCovariance,
    MiniBatch,
    Spectrum,
    ZOAdam,
    critical_step_size,
)

from .strategies import eigenvalues, isotropic, zeroth_order

METHODS = [ZOGD(), ZOGDM(0.5), ZOGDM(0.9), ZOAdam(0.9)]
ROTATION = scipy.stats.ortho_group.rvs(6, random_state=3)
VALUES = np.array([5.0, 2.0, 1.5, 0.7, 0.3, 0.1])
ROTATED = ROTATION @ np.diag(VALUES) @ ROTATION.T


def dense(operator: BlockCovariance, lr: float) -> np.ndarray:
    size = 3 * len(operator._eigenvalues)
    return np.stack([operator.apply(row.reshape(3, -1), lr).ravel() for row in np.eye(size)], axis=1)


def paper_step(W, values, lr, beta):
    """Lemma 1 of the paper as printed, W of shape (d, 2, 2)."""
    Q = np.array([[1, -1], [-1, 1]])
    total = sum(value**2 * block[0, 0] for value, block in zip(values, W, strict=True))
    result = np.empty_like(W)
    for i, value in enumerate(values):
        A = np.array([[1 - lr * value, -beta], [lr * value, beta]])
        result[i] = A @ W[i] @ A.T + lr**2 * (value**2 * W[i][0, 0] + total) * Q
    return result


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_blocks_are_those_of_the_papers_lemma(beta):
    rng = np.random.default_rng(0)
    roots = rng.standard_normal((6, 2, 2))
    W = roots @ roots.transpose(0, 2, 1)
    expected = paper_step(W, VALUES, 0.1, beta)
    state = BlockCovariance(VALUES, ZOGDM(beta)).apply(np.stack([W[:, 0, 0], W[:, 0, 1], W[:, 1, 1]]), 0.1)
    assert state == pytest.approx(np.stack([expected[:, 0, 0], expected[:, 0, 1], expected[:, 1, 1]]))


@given(eigenvalues, zeroth_order, isotropic)
def test_radius_is_one_at_the_critical_step_size(values, method, estimator):
    lr = critical_step_size(values, method, estimator)

    def radius(factor):
        return BlockCovariance(values, method, estimator).spectral_radius(factor * lr)

    assert radius(1.0) == pytest.approx(1, abs=1e-8)
    assert radius(0.97) < 1
    assert radius(1.03) > 1


@settings(max_examples=50)
@given(eigenvalues, zeroth_order, isotropic, st.floats(0.05, 3))
def test_radius_is_that_of_the_dense_matrix(values, method, estimator, factor):
    assume(len(values) > 1 or estimator.directions == "gaussian")
    sigma = np.linspace(0.5, 3, len(values))
    lr = factor * critical_step_size(values, method, estimator)
    operator = BlockCovariance(values, method, estimator, sigma)
    expected = np.abs(np.linalg.eigvals(dense(operator, lr))).max()
    # Eigenvalues of a defective matrix are only good to the root of the rounding.
    assert operator.spectral_radius(lr) == pytest.approx(expected, rel=1e-6)


@settings(max_examples=100)
@given(
    st.lists(st.one_of(st.just(0.0), st.floats(-12, 12).map(lambda e: 10.0**e)), min_size=1, max_size=12).filter(max),
    zeroth_order,
    st.builds(Estimator, directions=st.sampled_from(["gaussian", "sphere"]), queries=st.sampled_from([1, 3, 10**6])),
)
def test_radius_over_24_decades(values, method, estimator):
    operator = BlockCovariance(values, method, estimator)
    lr = critical_step_size(values, method, estimator)
    assert operator.spectral_radius(lr) == pytest.approx(1, abs=1e-8)
    # A direction of curvature 1e-24 decays by 1e-24 per step, so "below 1" can only be "not above".
    assert operator.spectral_radius(0.9 * lr) <= 1 < operator.spectral_radius(1.1 * lr)


def test_radius_of_a_gram_matrix_with_rounding():
    roots = np.random.default_rng(0).standard_normal((20, 60))
    spectrum = Spectrum.from_matrix(roots.T @ roots).treat_negatives("clip")
    lr = critical_step_size(spectrum, ZOGD())
    for factor in (0.1, 1.0, 3.0):
        assert (BlockCovariance(spectrum, ZOGD()).spectral_radius(factor * lr) > 1 + 1e-9) == (factor > 1)


@pytest.mark.parametrize("method", [GD(), GDM(0.9), Adam(0.5)], ids=repr)
def test_first_order_radius(method):
    lr = critical_step_size(VALUES, method)
    assert BlockCovariance(VALUES, method).spectral_radius(lr) == pytest.approx(1, abs=1e-12)
    assert BlockCovariance(VALUES, method).spectral_radius(0.9 * lr) < 1 - 1e-3
    assert BlockCovariance(VALUES, method).spectral_radius(1.1 * lr) > 1 + 1e-3


def test_flat_directions_are_left_out():
    with_zeros = BlockCovariance([2.0, 1.0, 0.0], ZOGD()).spectral_radius(0.1)
    assert with_zeros == BlockCovariance([2.0, 1.0], ZOGD()).spectral_radius(0.1) < 1
    with pytest.raises(ValueError, match="nothing moves"):
        BlockCovariance([0.0], ZOGD())


def test_radius_of_many_eigenvalues():
    values = Spectrum.power_law(100_000).eigenvalues
    lr = critical_step_size(values, ZOGDM(0.9))
    assert BlockCovariance(values, ZOGDM(0.9)).spectral_radius(lr) == pytest.approx(1, abs=1e-8)


def test_weights_stand_for_repeated_eigenvalues():
    weighted = BlockCovariance(Spectrum([3.0, 1.0], [2, 4]), ZOGDM(0.5))
    repeated = BlockCovariance([3.0, 3.0, 1.0, 1.0, 1.0, 1.0], ZOGDM(0.5))
    assert weighted.spectral_radius(0.1) == pytest.approx(repeated.spectral_radius(0.1), rel=1e-12)
    assert weighted.trajectory(0.1, 20) == pytest.approx(repeated.trajectory(0.1, 20))


def test_growth_of_the_trajectory_is_the_radius():
    operator = BlockCovariance(VALUES, ZOGDM(0.9))
    path = operator.trajectory(0.02, 3000)
    assert path[-1] / path[-2] == pytest.approx(operator.spectral_radius(0.02), rel=1e-6)


def test_start_of_a_trajectory():
    operator = BlockCovariance([2.0, 0.0, 1.0], ZOGD())
    assert operator.trajectory(0.1, 0, start=[1.0, 5.0, 2.0]) == pytest.approx([3.0])
    with pytest.raises(ValueError, match="a variance for each of the 3 eigenvalues"):
        operator.trajectory(0.1, 1, start=[1.0])
    assert operator.trajectory(5.0, 2000)[-1] == np.inf


@pytest.mark.parametrize("lr", [1e200, 1e-200])
def test_step_sizes_beyond_floating_point(lr):
    with pytest.raises(ValueError, match="beyond what can be computed"):
        BlockCovariance(VALUES, ZOGD()).spectral_radius(lr)


def test_sigma_must_fit():
    with pytest.raises(ValueError, match="sigma must hold one positive number"):
        BlockCovariance(VALUES, ZOAdam(0.9), sigma=[1.0])


class TestMatrices:
    @pytest.mark.parametrize("estimator", [Estimator(), Estimator(directions="sphere", queries=3)], ids=repr)
    @pytest.mark.parametrize("method", METHODS, ids=repr)
    def test_isotropic_directions_agree_with_the_blocks(self, method, estimator):
        operator = MatrixCovariance(ROTATED, method, estimator)
        lr = critical_step_size(VALUES, method, estimator)
        assert operator.critical_step_size() == pytest.approx(lr, rel=1e-9)
        for factor in (0.5, 1.0, 1.5):
            blocks = BlockCovariance(VALUES, method, estimator).spectral_radius(factor * lr)
            assert operator.spectral_radius(factor * lr) == pytest.approx(blocks, rel=1e-9)

    def test_commuting_preconditioner_agrees_with_its_spectrum(self):
        sigma = np.array([1.0, 3.0, 0.2, 1.0, 2.0, 0.5])
        P = ROTATION @ np.diag(sigma) @ ROTATION.T
        lr = critical_step_size(Spectrum.from_matrix(ROTATED, P), ZOAdam(0.9))
        assert MatrixCovariance(ROTATED, ZOAdam(0.9), preconditioner=P).critical_step_size() == pytest.approx(lr)

    @pytest.mark.parametrize("directions", ["gaussian", "rademacher"])
    @pytest.mark.parametrize("method", METHODS, ids=repr)
    def test_radius_is_one_at_the_critical_step_size(self, method, directions):
        P = np.array([0.3, 1.0, 2.0, 0.5, 3.0, 1.0])
        operator = MatrixCovariance(ROTATED, method, Estimator(directions=directions, queries=2), P)
        lr = operator.critical_step_size()
        assert operator.spectral_radius(lr) == pytest.approx(1, abs=1e-8)
        assert operator.spectral_radius(0.97 * lr) < 1 < operator.spectral_radius(1.03 * lr)
        assert operator.gain(0.9 * lr) < 1 < operator.gain(1.05 * lr)

    def test_a_step_of_gradient_descent_with_a_preconditioner(self):
        """The recursion of E[x x^T] from its definition, with E[u u^T A u u^T] = 2 A + Tr(A) I."""
        P = np.array([0.3, 1.0, 2.0, 0.5, 3.0, 1.0])
        lr, inverse = 0.07, np.diag(1 / P)
        operator = MatrixCovariance(ROTATED, ZOGD(), preconditioner=P)

        def step(vector):
            X = vector.reshape(6, 6)
            A = ROTATED @ X @ ROTATED
            M = lr * inverse @ ROTATED
            noise = inverse @ (2 * A + np.trace(A) * np.eye(6)) @ inverse
            return (X - M @ X - X @ M.T + lr**2 * noise).ravel()

        matrix = np.stack([step(((e + e.T) / 2).ravel()) for e in np.eye(36).reshape(36, 6, 6)], axis=1)
        assert operator.spectral_radius(lr) == pytest.approx(np.abs(np.linalg.eigvals(matrix)).max(), rel=1e-9)

    def test_rademacher_on_a_diagonal_hessian_is_two_over_the_trace(self):
        operator = MatrixCovariance(np.diag(VALUES), ZOGD(), Estimator(directions="rademacher"))
        assert operator.critical_step_size() == pytest.approx(2 / VALUES.sum(), rel=1e-9)

    def test_rademacher_on_a_rotated_hessian_lies_between(self):
        rotated = MatrixCovariance(ROTATED, ZOGD(), Estimator(directions="rademacher")).critical_step_size()
        assert critical_step_size(VALUES, ZOGD()) < rotated < 2 / VALUES.sum()

    def test_one_dimension_without_noise_is_first_order(self):
        operator = MatrixCovariance([[3.0]], ZOGDM(0.5), Estimator(directions="rademacher"))
        assert operator.critical_step_size() == pytest.approx(2 * 1.5 / 3)

    @pytest.mark.parametrize("method", [GD(), GDM(0.9)], ids=repr)
    def test_first_order_in_many_dimensions(self, method):
        operator = MatrixCovariance(np.diag(np.linspace(0.1, 1, 30)), method)
        blocks = BlockCovariance(np.linspace(0.1, 1, 30), method)
        assert operator.critical_step_size() == pytest.approx(2 * (1 + method.momentum))
        assert operator.spectral_radius(0.1) == pytest.approx(blocks.spectral_radius(0.1), abs=1e-6)

    def test_radius_from_the_recursion_itself(self):
        """The growth of E|x|^2 under ``apply``, which knows nothing of the gain."""
        P = np.array([0.3, 1.0, 2.0, 0.5, 3.0, 1.0])
        operator = MatrixCovariance(ROTATED, ZOGDM(0.7), Estimator(directions="rademacher"), P)
        lr = 1.2 * operator.critical_step_size()
        path = operator.trajectory(lr, 800)
        assert path[-1] / path[-2] == pytest.approx(operator.spectral_radius(lr), rel=1e-8)

    @pytest.mark.parametrize("lr", [0.0, -1.0, np.nan])
    def test_bad_step_size(self, lr):
        for method in ("gain", "spectral_radius"):
            with pytest.raises(ValueError, match="lr must be"):
                getattr(MatrixCovariance(ROTATED, ZOGD()), method)(lr)

    def test_first_order(self):
        assert MatrixCovariance(ROTATED, GDM(0.5)).critical_step_size() == pytest.approx(2 * 1.5 / 5)

    def test_flat_directions_are_left_out(self):
        flat = np.zeros((7, 7))
        flat[:6, :6] = ROTATED
        expected = MatrixCovariance(ROTATED, ZOGDM(0.5)).critical_step_size()
        assert MatrixCovariance(flat, ZOGDM(0.5)).critical_step_size() == pytest.approx(expected)

    def test_large_matrices_use_arnoldi(self):
        values = Spectrum.power_law(40).eigenvalues
        operator = MatrixCovariance(np.diag(values), ZOGDM(0.5))
        lr = critical_step_size(values, ZOGDM(0.5))
        assert operator.critical_step_size() == pytest.approx(lr, rel=1e-9)
        assert operator.spectral_radius(1.2 * lr) == pytest.approx(
            BlockCovariance(values, ZOGDM(0.5)).spectral_radius(1.2 * lr), rel=1e-9
        )

    @pytest.mark.parametrize(
        ("H", "match"),
        [(-np.eye(2), "no positive eigenvalue"), (np.diag([1.0, -1.0]), "negative eigenvalues")],
    )
    def test_refuses(self, H, match):
        with pytest.raises(ValueError, match=match):
            MatrixCovariance(H, ZOGD())


class TestMiniBatch:
    gradients = np.random.default_rng(5).standard_normal((12, 5))

    def test_full_batch_is_the_mean_hessian(self):
        data = MiniBatch.from_gradients(self.gradients, 12)
        values = np.linalg.eigvalsh(data.mean)
        assert MatrixCovariance(data, ZOGD()).critical_step_size() == pytest.approx(critical_step_size(values, ZOGD()))

    @pytest.mark.parametrize("batch_size", [1, 2, 5])
    def test_second_moment_over_all_batches(self, batch_size):
        from itertools import combinations

        X = ROTATED[:5, :5]
        hessians = np.einsum("ki,kj->kij", self.gradients, self.gradients)
        batches = [hessians[list(c)].mean(axis=0) for c in combinations(range(12), batch_size)]
        expected = np.mean([B @ X @ B for B in batches], axis=0)
        for data in (MiniBatch.from_gradients(self.gradients, batch_size), MiniBatch(hessians, batch_size)):
            assert data.second_moment(X) == pytest.approx(expected)

    def test_critical_step_size_rises_with_the_batch_and_has_radius_one(self):
        steps = []
        for batch_size in (1, 2, 4, 12):
            operator = MatrixCovariance(MiniBatch.from_gradients(self.gradients, batch_size), ZOGDM(0.5))
            steps.append(operator.critical_step_size())
            assert operator.spectral_radius(steps[-1]) == pytest.approx(1, abs=1e-8)
        assert steps == sorted(steps)

    def test_first_order_sgd_on_one_example_each(self):
        # Two orthogonal examples, batches of one: each direction is hit half of the time by twice its mean curvature,
        # so E x'^2 = (1/2)(1 - 2 lr h)^2 x^2 + (1/2) x^2, bounded up to 2 lr h = 2.
        data = MiniBatch.from_gradients(np.sqrt([[6.0, 0.0], [0.0, 2.0]]), 1)
        assert MatrixCovariance(data, GD()).critical_step_size() == pytest.approx(2 / 6)

    @settings(max_examples=40)
    @given(st.integers(0, 10**6), st.integers(2, 8), st.integers(1, 5), st.data())
    def test_conjectured_bounds_hold(self, seed, examples, dimension, draw):
        rng = np.random.default_rng(seed)
        rank = draw.draw(st.integers(1, 3))
        roots = rng.standard_normal((examples, dimension, rank)) * rng.lognormal(size=(examples, 1, 1))
        data = MiniBatch(roots @ roots.transpose(0, 2, 1), draw.draw(st.integers(1, examples)))
        lower, upper = data.conjectured_bounds()
        critical = MatrixCovariance(data, ZOGD()).critical_step_size()
        assert lower * (1 - 1e-6) <= critical <= upper * (1 + 1e-6)

    @pytest.mark.parametrize(
        ("hessians", "batch_size", "match"),
        [
            (np.ones(3), 1, r"hessians must have 3 dimension"),
            (np.zeros((2, 2, 2)), 1, "no curvature"),
            (np.ones((3, 2, 2)), 4, "batch_size 4 is larger than the number of examples 3"),
            (np.ones((3, 2, 2)), 0, "batch_size must be at least 1"),
            (-np.ones((1, 2, 2)), 1, r"hessians\[0\] has the negative eigenvalue"),
            ([[[1.0, 2.0], [0.0, 1.0]]], 1, r"hessians\[0\] must be symmetric"),
        ],
    )
    def test_refuses(self, hessians, batch_size, match):
        with pytest.raises(ValueError, match=match):
            MiniBatch(hessians, batch_size)
