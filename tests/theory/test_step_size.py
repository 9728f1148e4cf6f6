import math

import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from zoedge.theory import (
    GD,
    GDM,
    ZOGD,
    ZOGDM,
    Adam,
    Estimator,
    Spectrum,
    ZOAdam,
    critical_step_size,
    mean_critical_step_size,
    step_size_bounds,
)

from .strategies import betas, eigenvalues, first_order, isotropic, zeroth_order


def paper_sum(values, method, lr):
    """The left sides of Theorems 1, 2 and 3, as printed in the paper."""
    values = [mpmath.mpf(float(v)) for v in values]
    if isinstance(method, ZOGD):
        return mpmath.fsum(lr * v / (2 * (1 - lr * v)) for v in values)
    if isinstance(method, ZOGDM):
        beta = mpmath.mpf(method.beta)
        return mpmath.fsum(lr * v / (2 * (1 - beta) * (1 - lr * v / (1 - beta**2))) for v in values)
    beta = mpmath.mpf(method.beta1)
    return mpmath.fsum(lr * v / (2 * (1 - lr * v / (1 + beta))) for v in values)


def exact_root(values, method):
    """The root of the paper's equation in 60 digits, by bisection."""
    with mpmath.workdps(60):
        pole = {
            ZOGD: lambda: 1,
            ZOGDM: lambda: 1 - mpmath.mpf(method.beta) ** 2,
            ZOAdam: lambda: 1 + method.beta1,
        }
        low, high = mpmath.mpf(0), pole[type(method)]() / mpmath.mpf(float(max(values)))
        for _ in range(140):
            middle = (low + high) / 2
            low, high = (middle, high) if paper_sum(values, method, middle) < 1 else (low, middle)
        return low


@pytest.mark.parametrize("method", [ZOGD(), ZOGDM(0.5), ZOGDM(0.99), ZOAdam(0.9)], ids=repr)
@pytest.mark.parametrize(
    "values",
    [
        [1.0],
        [3.0, 3.0, 3.0, 1.0],
        np.logspace(-12, 12, 60),
        np.r_[np.zeros(20), 1e-12, 1e12],
        np.r_[np.full(50, 1e-12), 1e12],
        np.full(100, 1e-12),
        np.random.default_rng(0).lognormal(sigma=4, size=200),
    ],
    ids=["one", "repeated", "range", "zeros", "outlier", "tiny", "lognormal"],
)
def test_root_of_the_papers_equation_to_1e_10(values, method):
    expected = exact_root(values, method)
    assert abs(critical_step_size(values, method) / expected - 1) < 1e-10


@given(eigenvalues, zeroth_order, isotropic)
def test_bounds_hold(values, method, estimator):
    lower, upper = step_size_bounds(values.sum(), values.max(), method, estimator, dimension=len(values))
    critical = critical_step_size(values, method, estimator)
    assert lower * (1 - 1e-12) <= critical <= upper * (1 + 1e-12)


@given(eigenvalues, first_order)
def test_first_order_bounds_meet(values, method):
    bounds = step_size_bounds(values.sum(), values.max(), method)
    assert bounds == pytest.approx((critical_step_size(values, method),) * 2)


@given(eigenvalues, betas)
def test_bounds_are_those_of_table_1(values, beta):
    trace, top = values.sum(), values.max()
    assert step_size_bounds(trace, top, ZOGD()) == pytest.approx((2 / (trace + 2 * top), 2 / trace))
    assert step_size_bounds(trace, top, ZOGDM(beta)) == pytest.approx(
        (2 * (1 - beta) / (trace + 2 * top / (1 + beta)), 2 * (1 - beta) / trace)
    )
    assert step_size_bounds(trace, top, ZOAdam(beta)) == pytest.approx((2 / (trace + 2 * top / (1 + beta)), 2 / trace))


def test_first_order_rows_of_table_1():
    assert critical_step_size([4, 1], GD()) == 2 / 4
    assert critical_step_size([4, 1], GDM(0.9)) == pytest.approx(2 * 1.9 / 4)
    assert critical_step_size([4, 1], Adam(0.9)) == pytest.approx(2 * 1.9 / (0.1 * 4))


@given(eigenvalues, zeroth_order, st.sampled_from(["gaussian", "sphere"]))
def test_many_queries_give_the_first_order_limit(values, method, directions):
    estimator = Estimator(directions=directions, queries=10**13)
    assert critical_step_size(values, method, estimator) == pytest.approx(
        mean_critical_step_size(values, method), rel=1e-9
    )


@given(eigenvalues, zeroth_order, isotropic)
def test_more_queries_allow_larger_steps(values, method, estimator):
    assume(len(values) > 1)
    more = Estimator(directions=estimator.directions, queries=2 * estimator.queries)
    assert critical_step_size(values, method, more) > critical_step_size(values, method, estimator)


@given(eigenvalues, betas, st.floats(0.01, 0.5))
def test_momentum_moves_first_and_zeroth_order_in_opposite_ways(values, beta, factor):
    more = beta + factor * (1 - beta)
    assert critical_step_size(values, GDM(more)) > critical_step_size(values, GDM(beta))
    assert critical_step_size(values, ZOGDM(more)) < critical_step_size(values, ZOGDM(beta))


@given(eigenvalues, betas, betas)
def test_upper_bound_of_zo_adam_does_not_depend_on_beta1(values, beta, other):
    bounds = [step_size_bounds(values.sum(), values.max(), ZOAdam(b))[1] for b in (beta, other)]
    assert bounds[0] == pytest.approx(bounds[1])


def test_equal_lambda_max_and_different_traces():
    thin, wide = [4.0, 0.1, 0.1, 0.1], [4.0, 3.0, 3.0, 3.0]
    assert critical_step_size(thin, GD()) == critical_step_size(wide, GD())
    assert critical_step_size(thin, ZOGD()) > 1.5 * critical_step_size(wide, ZOGD())


def test_one_dimension_on_the_sphere_is_first_order():
    # u = +1 or -1, so u u^T = 1: no noise at all, although kappa < 0 makes c negative at beta > 0.5.
    for beta in (0.0, 0.4, 0.9):
        sphere = Estimator(directions="sphere")
        assert critical_step_size([3.0], ZOGDM(beta), sphere) == pytest.approx(2 * (1 + beta) / 3)


@given(eigenvalues, zeroth_order, isotropic, st.floats(1e-6, 1e6))
def test_scaling_the_hessian_scales_the_step(values, method, estimator, factor):
    scaled = critical_step_size(factor * values, method, estimator)
    assert scaled == pytest.approx(critical_step_size(values, method, estimator) / factor)


@given(eigenvalues, st.integers(1, 5), zeroth_order, isotropic)
def test_weights_count_eigenvalues(values, weight, method, estimator):
    weighted = Spectrum(values, np.full(len(values), weight))
    assert critical_step_size(weighted, method, estimator) == pytest.approx(
        critical_step_size(np.repeat(values, weight), method, estimator)
    )


def test_zeros_do_not_matter():
    assert critical_step_size([2, 1, 0, 0, 0], ZOGD()) == pytest.approx(critical_step_size([2, 1], ZOGD()))
    assert critical_step_size(np.zeros(3), ZOGD()) == math.inf


def test_many_eigenvalues():
    values = np.random.default_rng(1).lognormal(sigma=3, size=1_000_000)
    # Terms of equal eigenvalues sum to their number times one of them: an independent way to 1e6 eigenvalues.
    few = np.logspace(-12, 12, 100)
    repeated = critical_step_size(np.repeat(few, 10_000), ZOGDM(0.9))
    assert repeated == pytest.approx(critical_step_size(Spectrum(few, np.full(100, 1e4)), ZOGDM(0.9)), rel=1e-12)
    lr = critical_step_size(values, ZOGD())
    assert math.fsum(lr * values / (2 * (1 - lr * values))) == pytest.approx(1, rel=1e-10)


class TestNegativeEigenvalues:
    values = np.array([5.0, 1.0, -0.5, -2.0])

    def test_raise_by_default(self):
        with pytest.raises(ValueError, match="negative='keep'"):
            critical_step_size(self.values, ZOGD())

    def test_rounding_is_forgiven(self):
        assert critical_step_size([5.0, 1.0, -1e-16], ZOGD()) == critical_step_size([5.0, 1.0, 0.0], ZOGD())

    def test_keep_puts_them_into_the_sum(self):
        lr = critical_step_size(self.values, ZOGD(), negative="keep")
        x = lr * self.values
        assert x.max() < 1
        assert np.sum(x / (2 * (1 - x))) == pytest.approx(1, rel=1e-12)

    @settings(max_examples=200)
    @given(
        st.lists(st.floats(-100, 100), min_size=1, max_size=10).filter(lambda v: max(v) > 1e-3),
        zeroth_order,
        isotropic,
    )
    def test_keep_finds_the_root_whatever_the_signs(self, values, method, estimator):
        values = np.array(values)
        assume(len(values) > 1 or estimator.directions == "gaussian")
        lr = critical_step_size(values, method, estimator, negative="keep")
        kappa, b = estimator.moments(len(values))
        beta, x = method.momentum, method.scale * lr * values
        c = (1 - beta) + kappa * (1 + beta)
        poles = 2 * (1 - beta**2) - c * x
        assert poles.min() > 0
        # The sum may be ill-conditioned near a pole; the root is not: the sum crosses 1 within 1e-10 of it.
        low, high = (b * np.sum((1 + beta) * f * x / (2 * (1 - beta**2) - c * f * x)) for f in (1 - 1e-10, 1 + 1e-10))
        assert low <= 1 + 1e-9
        assert high >= 1 - 1e-9 or (2 * (1 - beta**2) - c * (1 + 1e-10) * x).min() <= 0

    def test_clip(self):
        assert critical_step_size(self.values, ZOGD(), negative="clip") == critical_step_size([5.0, 1.0], ZOGD())

    def test_all_negative(self):
        assert critical_step_size([-1.0, -2.0], ZOGD(), negative="keep") == math.inf

    def test_bounds(self):
        with pytest.raises(ValueError, match="negative eigenvalues"):
            step_size_bounds(1.0, 5.0, ZOGD())
        assert step_size_bounds(1.0, 5.0, ZOGD(), positive_trace=6.0) == pytest.approx((2 / 16, 2 / 5))
        assert step_size_bounds(-3.0, 1.0, ZOGD(), positive_trace=1.0) == pytest.approx((2 / 3, 2.0))

    @given(
        st.lists(st.floats(-100, 100), min_size=2, max_size=10).filter(lambda v: max(v) > 1e-3), zeroth_order, isotropic
    )
    def test_bounds_hold_with_the_positive_trace(self, values, method, estimator):
        values = np.array(values)
        critical = critical_step_size(values, method, estimator, negative="keep")
        lower, upper = step_size_bounds(
            values.sum(), values.max(), method, estimator, len(values), positive_trace=values[values > 0].sum()
        )
        assert lower * (1 - 1e-12) <= critical <= upper * (1 + 1e-12)

    def test_float32_rounding_is_forgiven(self):
        roots = np.random.default_rng(0).standard_normal((5, 20)).astype(np.float32)
        gram = Spectrum.from_matrix(roots.T @ roots)
        assert gram.lambda_min < 0
        expected = critical_step_size(np.linalg.eigvalsh((roots @ roots.T).astype(float)), ZOGD())
        assert critical_step_size(gram, ZOGD()) == pytest.approx(expected, rel=1e-5)

    def test_unknown_rule(self):
        with pytest.raises(ValueError, match="negative must be one of"):
            critical_step_size(self.values, ZOGD(), negative="ignore")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("queries", [1, 7, 10**17, 10**20])
def test_hard_corners(queries):
    estimator = Estimator(queries=queries)
    values = np.r_[np.full(1000, 1e-12), 1e12]
    lower, upper = step_size_bounds(values.sum(), values.max(), ZOGDM(0.9999), estimator)
    assert lower * (1 - 1e-12) <= critical_step_size(values, ZOGDM(0.9999), estimator) <= upper * (1 + 1e-12)
    sphere = Estimator(directions="sphere", queries=queries)
    assert critical_step_size([3.0], ZOGDM(1 - 1e-12), sphere) == pytest.approx(4 / 3)


def test_arguments_of_a_wrong_kind():
    with pytest.raises(TypeError, match=r"method must be one such as ZOGD\(\)"):
        critical_step_size([1.0], ZOGD)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TypeError, match="estimator must be an Estimator"):
        critical_step_size([1.0], ZOGD(), "sphere")  # pyright: ignore[reportArgumentType]


def test_impossible_dimension():
    with pytest.raises(ValueError, match=r"above dimension \* lambda_max"):
        step_size_bounds(9.0, 4.0, ZOGD(), dimension=1)
    with pytest.raises(ValueError, match="dimension must be 1, or at least 2"):
        critical_step_size(Spectrum([1.0, 2.0], [0.7, 0.7]), ZOGD(), Estimator(directions="sphere"))


def test_rademacher_needs_a_matrix():
    with pytest.raises(ValueError, match="MatrixCovariance"):
        critical_step_size([1.0], ZOGD(), Estimator(directions="rademacher"))


def test_sphere_bounds_need_the_dimension():
    with pytest.raises(ValueError, match="dimension is needed"):
        step_size_bounds(2.0, 1.0, ZOGD(), Estimator(directions="sphere"))
