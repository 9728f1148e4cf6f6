"""Monte-Carlo of the dynamics against the theory, and the floor of forward differences."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from zoedge.theory import (
    GD,
    GDM,
    ZOGD,
    ZOGDM,
    BlockCovariance,
    Estimator,
    MatrixCovariance,
    MiniBatch,
    Spectrum,
    ZOAdam,
    critical_step_size,
    forward_floor,
    simulate,
)

METHODS = [ZOGD(), ZOGDM(0.6), ZOAdam(0.6)]
ESTIMATORS = [
    Estimator(),
    Estimator(directions="sphere"),
    Estimator(queries=3),
    Estimator(directions="sphere", queries=2),
]
# High effective rank: there the sample mean of the heavy-tailed |x|^2 can be trusted.
WIDE = np.linspace(0.5, 1.5, 60)
ROTATION = scipy.stats.ortho_group.rvs(8, random_state=1)
NARROW = ROTATION @ np.diag(np.linspace(0.2, 2, 8)) @ ROTATION.T


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_second_moment_follows_the_operator(method, estimator):
    lr = critical_step_size(WIDE, method, estimator)
    for factor in (0.9, 1.15):
        run = simulate(WIDE, method, factor * lr, 120, estimator, replicas=1500)
        exact = BlockCovariance(WIDE, method, estimator).trajectory(factor * lr, 120)
        assert run.second_moment[0] == pytest.approx(1)
        assert (np.abs(run.second_moment - exact) <= 5 * run.stderr + 1e-12).all()


@pytest.mark.parametrize("method", METHODS, ids=repr)
def test_decays_below_and_grows_above(method):
    lr = critical_step_size(WIDE, method)
    below, above = (simulate(WIDE, method, factor * lr, 800, replicas=300) for factor in (0.9, 1.15))
    assert below.second_moment[-1] < 0.3 * below.second_moment[200]
    assert above.second_moment[-1] > 5 * above.second_moment[200]
    assert below.lyapunov < 0 < above.lyapunov


def test_rademacher_follows_its_operator():
    estimator = Estimator(directions="rademacher")
    operator = MatrixCovariance(NARROW, ZOGDM(0.5), estimator)
    lr = 0.8 * operator.critical_step_size()
    run = simulate(NARROW, ZOGDM(0.5), lr, 60, estimator, replicas=20_000)
    assert_follows(run, operator.trajectory(lr, 60))


def test_a_preconditioner_that_does_not_commute():
    P = np.array([0.5, 1.0, 2.0, 0.3, 1.5, 1.0, 0.7, 3.0])
    operator = MatrixCovariance(NARROW, ZOAdam(0.5), preconditioner=P)
    lr = 0.8 * operator.critical_step_size()
    run = simulate(NARROW, ZOAdam(0.5), lr, 60, replicas=20_000, preconditioner=P)
    assert_follows(run, operator.trajectory(lr, 60))


def test_sigma_of_the_blocks_is_a_preconditioner():
    sigma = np.array([0.5, 1.0, 2.0, 0.3, 1.5, 1.0, 0.7, 3.0])
    values = np.linspace(0.2, 2, 8)
    operator = BlockCovariance(values / sigma, ZOAdam(0.5), sigma=sigma)
    lr = 0.8 * critical_step_size(values / sigma, ZOAdam(0.5))
    run = simulate(np.diag(values), ZOAdam(0.5), lr, 60, replicas=20_000, preconditioner=sigma)
    assert_follows(run, operator.trajectory(lr, 60))


def test_forward_differences_see_the_curvature_of_their_batch():
    """At the minimum one step gives x = -(lr mu / 2) (u^T H_B u) u; its second moment by direct sampling."""
    generator = np.random.default_rng(3)
    gradients = generator.standard_normal((6, 4))
    run = simulate(
        MiniBatch.from_gradients(gradients, 1),
        ZOGD(),
        0.1,
        1,
        Estimator("forward", mu=0.5),
        replicas=200_000,
        start=np.zeros(4),
    )
    u, chosen = generator.standard_normal((200_000, 4)), gradients[generator.integers(0, 6, 200_000)]
    squares = (0.1 * 0.25 * np.sum(u * chosen, axis=1) ** 2) ** 2 * np.sum(u * u, axis=1)
    error = np.hypot(run.stderr[1], squares.std() / 200_000**0.5)
    assert abs(run.second_moment[1] - squares.mean()) < 5 * error


def test_flat_directions_do_not_count():
    lr = 0.9 * critical_step_size(WIDE, ZOGD())
    run = simulate(np.r_[WIDE, 0.0], ZOGD(), lr, 400, replicas=200, start=np.r_[np.full(60, 60**-0.5), 7.0])
    assert run.second_moment[0] == pytest.approx(1)
    assert run.lyapunov < -10 * run.lyapunov_stderr


def test_mini_batches_follow_their_operator():
    data = MiniBatch.from_gradients(np.random.default_rng(2).standard_normal((20, 8)), 4)
    operator = MatrixCovariance(data, ZOGDM(0.5))
    lr = 0.6 * operator.critical_step_size()
    run = simulate(data, ZOGDM(0.5), lr, 60, replicas=20_000)
    assert_follows(run, operator.trajectory(lr, 60))


def assert_follows(run, exact):
    assert (np.abs(run.second_moment - exact) <= 5 * run.stderr + 1e-12).all()


def test_first_order_is_deterministic():
    run = simulate([2.0, 1.0], GD(), 0.5, 3, replicas=2, start=[1.0, 1.0])
    assert run.second_moment == pytest.approx([2, 0.25, 0.0625, 0.015625])
    assert run.stderr == pytest.approx(0, abs=1e-15)
    heavy = simulate([2.0], GDM(0.5), 0.1, 2, replicas=2, start=[1.0])
    # x1 = 1 - 0.2, x2 = x1 - (0.5 * 0.2 + 0.2 * x1)
    assert heavy.second_moment == pytest.approx([1, 0.64, 0.54**2])


def test_single_runs_survive_where_the_second_moment_explodes():
    """One dimension: E log|1 - x u^2| is a known integral, and negative beyond the mean-square edge x = 2/3."""
    x = 0.9
    integral = 2 * sum(
        scipy.integrate.quad(lambda u: np.log(abs(1 - x * u * u)) * scipy.stats.norm.pdf(u), *ends, limit=200)[0]
        for ends in ((0, x**-0.5), (x**-0.5, 12))
    )
    run = simulate([1.0], ZOGD(), x, 2000, replicas=500)
    assert critical_step_size([1.0], ZOGD()) == pytest.approx(2 / 3)
    assert integral < -0.05
    assert abs(run.lyapunov - integral) < 5 * run.lyapunov_stderr
    assert BlockCovariance([1.0], ZOGD()).spectral_radius(x) > 1


def test_overflow_and_underflow_are_no_obstacle():
    far = simulate([1.0, 1.0], ZOGD(), 5.0, 3000, replicas=20)
    assert np.isinf(far.second_moment[-1])
    assert 0.5 < far.lyapunov < 3
    dead = simulate([1.0], GD(), 1.0, 5, replicas=2)
    assert dead.second_moment[-1] == 0
    assert dead.lyapunov == -np.inf


def test_seeds_repeat_and_differ():
    one, same, other = (simulate(WIDE, ZOGD(), 0.01, 20, replicas=5, seed=seed) for seed in (1, 1, 2))
    assert (one.second_moment == same.second_moment).all()
    assert (one.second_moment[1:] != other.second_moment[1:]).all()


def test_simulation_refuses():
    with pytest.raises(ValueError, match="weights that are not whole"):
        simulate(Spectrum([1.0], [1.5]), ZOGD(), 0.1, 1)
    with pytest.raises(ValueError, match="start must have shape"):
        simulate([1.0], ZOGD(), 0.1, 1, start=[1.0, 2.0])
    with pytest.raises(ValueError, match="lr must be positive"):
        simulate([1.0], ZOGD(), 0, 1)
    with pytest.raises(ValueError, match="overflows within one step"):
        simulate([1.0], ZOGD(), 1e200, 10)
    with pytest.raises(ValueError, match="preconditioner needs the matrix"):
        simulate([1.0], ZOAdam(0.9), 0.1, 1, preconditioner=[2.0])
    with pytest.raises(TypeError, match="method must be one such as ZOGD"):
        simulate([1.0], ZOGD, 0.1, 1)  # pyright: ignore[reportArgumentType]
    assert simulate(Spectrum([2.0, 1.0], [1, 3]), ZOGD(), 0.1, 1, replicas=2).second_moment[0] == pytest.approx(1)


class TestForwardFloor:
    @pytest.mark.parametrize("directions", ["gaussian", "sphere", "rademacher"])
    @pytest.mark.parametrize("method", [ZOGD(), ZOGDM(0.5)], ids=repr)
    def test_runs_settle_at_the_floor(self, method, directions):
        estimator = Estimator("forward", directions, queries=2, mu=0.3)
        lr = 0.5 * MatrixCovariance(NARROW, method, estimator).critical_step_size()
        floor = forward_floor(NARROW, method, lr, estimator)
        run = simulate(NARROW, method, lr, 500, estimator, replicas=4000)
        assert abs(run.second_moment[-1] - np.trace(floor.covariance)) < 5 * run.stderr[-1]
        assert floor.loss == pytest.approx(0.5 * np.trace(NARROW @ floor.covariance))

    def test_it_is_a_fixed_point_of_the_papers_recursion(self):
        """Sigma = T(Sigma) + lr^2 mu^2 Q with Q = E[(u^T H u)^2 u u^T] / 4 by Isserlis' theorem."""
        H, mu, lr = NARROW, 0.1, 0.03
        S = forward_floor(H, ZOGD(), lr, Estimator("forward", mu=mu)).covariance
        A = H @ S @ H
        T = S - lr * (H @ S + S @ H) + lr**2 * (2 * A + np.trace(A) * np.eye(8))
        t = np.trace(H)
        Q = ((t**2 + 2 * np.trace(H @ H)) * np.eye(8) + 4 * t * H + 8 * H @ H) / 4
        assert T + lr**2 * mu**2 * Q == pytest.approx(S, rel=1e-8)

    @pytest.mark.parametrize("directions", ["gaussian", "sphere"])
    @pytest.mark.parametrize("method", [ZOGD(), ZOGDM(0.8), ZOAdam(0.5)], ids=repr)
    def test_closed_form_from_the_spectrum(self, method, directions):
        estimator = Estimator("forward", directions, queries=3, mu=0.2)
        values = np.r_[np.linspace(0.2, 2, 8), 0.0]
        lr = 0.7 * critical_step_size(values, method, estimator)
        closed = forward_floor(values, method, lr, estimator)
        dense = forward_floor(np.diag(values), method, lr, estimator)
        assert closed.loss == pytest.approx(dense.loss, rel=1e-8)
        assert closed.covariance == pytest.approx(np.diag(dense.covariance), rel=1e-8, abs=1e-12)

    def test_it_is_of_order_mu_squared(self):
        floors = [forward_floor([2.0, 1.0], ZOGD(), 0.1, Estimator("forward", mu=mu)).loss for mu in (1e-3, 1e-2)]
        assert floors[1] == pytest.approx(100 * floors[0])

    def test_two_point_has_none(self):
        assert forward_floor([2.0, 1.0], ZOGD(), 0.1, Estimator()).loss == 0

    def test_beyond_the_edge_there_is_none(self):
        for H in ([2.0, 1.0], np.diag([2.0, 1.0])):
            with pytest.raises(ValueError, match="not below the critical step size"):
                forward_floor(H, ZOGD(), 0.6, Estimator("forward"))
        with pytest.raises(ValueError, match="lr must be positive"):
            forward_floor([2.0, 1.0], ZOGD(), -0.1, Estimator("forward"))
