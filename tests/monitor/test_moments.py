import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zoedge.monitor.moments import critical, moments
from zoedge.monitor.noise import balanced_smoothing, rounding_noise, third_derivative
from zoedge.theory import ZOGD, ZOGDM, Estimator, Spectrum, ZOAdam, critical_step_size

METHODS = [ZOGD(), ZOGDM(0.9), ZOAdam(0.9)]
SPECTRA = {
    "equal": np.ones(50),
    "outlier": np.concatenate([[30.0], np.ones(200)]),
    "power law": 20 / np.arange(1.0, 300.0),
    "indefinite": np.concatenate([[25.0, 15.0], np.linspace(-1, 2, 300)]),
}


def samples_of(spectrum: np.ndarray, count: int, seed: int) -> np.ndarray:
    u = np.random.default_rng(seed).standard_normal((count, len(spectrum)))
    return (u * u) @ spectrum


@pytest.mark.parametrize("name", SPECTRA)
def test_moments_are_those_of_the_spectrum(name):
    values = SPECTRA[name]
    found = moments(list(samples_of(values, 100_000, 0)))
    assert found.trace == pytest.approx(values.sum(), abs=5 * found.trace_stderr)
    assert found.square == pytest.approx((values**2).sum(), rel=0.05)
    assert found.rms == pytest.approx(math.sqrt(np.square(samples_of(values, 100_000, 1)).mean()), rel=0.05)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
@pytest.mark.parametrize("name", SPECTRA)
def test_two_moments_nearly_give_the_critical_step_size(name, method):
    values = SPECTRA[name]
    exact = critical_step_size(values, method, negative="keep")
    found = critical(list(samples_of(values, 100_000, 0)), method)
    assert found.value == pytest.approx(exact, rel=0.05)
    assert found.lower * 0.99 <= exact <= found.upper * 1.01


@given(
    st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=20),
    st.sampled_from(METHODS),
    st.sampled_from([Estimator(), Estimator(queries=4)]),
)
def test_equal_eigenvalues_are_the_best_case(values, method, estimator):
    array = np.array(values)
    trace, square = array.sum(), (array**2).sum()
    model = Spectrum([square / trace], [trace**2 / square])
    exact = critical_step_size(array, method, estimator)
    assert exact <= critical_step_size(model, method, estimator) * (1 + 1e-9)


def test_standard_errors_cover():
    values = SPECTRA["outlier"]
    exact = critical_step_size(values, ZOGD())
    found = [critical(list(samples_of(values, 64, seed)), ZOGD()) for seed in range(300)]
    biased = np.mean([f.value for f in found])
    assert biased == pytest.approx(exact, rel=0.05)
    inside = np.mean([abs(f.value - biased) < 2 * f.stderr for f in found])
    assert 0.88 <= inside <= 0.99


def test_where_there_is_no_edge():
    assert critical([-1.0, -2.0, -1.5, -0.5], ZOGD()).value == math.inf
    with pytest.raises(ValueError, match="two samples"):
        moments([1.0])
    assert not moments([1.0, -1.0, 2.0, -2.0]).positive


@pytest.mark.parametrize("noise", [1e-9, 1e-6, 1e-3])
def test_noise_of_a_smooth_function(noise):
    random = np.random.default_rng(0)
    t = 1 + np.arange(8) / 8
    lines = [np.exp(0.01 * t) + 3 * np.sin(0.02 * t) + noise * random.standard_normal(8) for _ in range(8)]
    assert rounding_noise(lines) == pytest.approx(noise, rel=0.5)


def test_the_smoothing_balances_noise_and_truncation():
    noise, third = 1e-8, 50.0
    errors = {mu: math.hypot(noise / (math.sqrt(2) * mu), mu**2 * third / 6) for mu in np.geomspace(1e-6, 1e-1, 2001)}
    best = min(errors, key=lambda mu: errors[mu])
    assert balanced_smoothing(noise, third, 1e-6, 1e-1) == pytest.approx(best, rel=0.02)
    assert balanced_smoothing(noise, 0.0, 1e-6, 1e-1) == 1e-1


def test_a_third_derivative_is_found_where_it_stands_out():
    def slope(mu: float) -> float:
        return 2.0 + 50.0 * mu**2 / 6

    assert third_derivative(slope, 1e-5, 1e-9, 0.1)[0] == pytest.approx(50.0, rel=1e-3)
    assert third_derivative(lambda mu: 2.0, 1e-3, 1e-9, 0.1) == (0.0, 0.1)
