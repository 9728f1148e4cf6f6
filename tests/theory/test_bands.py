import math

import numpy as np
import pytest
from hypothesis import given

from zoedge.theory import GD, GDM, ZOGD, ZOGDM, Adam, ZOAdam, band, critical_step_size, spectrum_band, threshold

from .strategies import eigenvalues, isotropic, zeroth_order


def test_thresholds_of_the_paper():
    assert threshold(ZOGD(), 1e-3) == pytest.approx(2000)
    assert threshold(ZOGDM(0.9), 1e-4) == pytest.approx(2000)
    assert threshold(ZOAdam(0.9), 1e-3) == pytest.approx(2000)
    assert threshold(GD(), 1e-3) == pytest.approx(2000)
    assert threshold(GDM(0.9), 1e-3) == pytest.approx(3800)
    assert threshold(Adam(0.9), 1e-3) == pytest.approx(38000)


@pytest.mark.parametrize(("method", "factor"), [(ZOGD(), 2), (ZOGDM(0.9), 2 / 1.9), (ZOAdam(0.5), 2 / 1.5)])
def test_band_terms_of_the_paper(method, factor):
    reading = band(700.0, 50.0, method, lr=1e-3, step=10)
    assert reading.lower == pytest.approx(700)
    assert reading.upper == pytest.approx(700 + factor * 50)
    assert reading.step == 10
    assert math.isnan(reading.edge_ratio)


def test_first_order_band_is_lambda_max():
    reading = band(700.0, 50.0, GDM(0.9), lr=1e-3)
    assert reading.lower == reading.upper == 50


def test_negative_trace_is_taken_as_it_is():
    reading = band(-3.0, 1.0, ZOGD(), lr=0.1)
    assert (reading.lower, reading.upper) == (-3, -1)


@given(eigenvalues, zeroth_order, isotropic)
def test_at_the_critical_step_size_the_threshold_is_inside(values, method, estimator):
    lr = critical_step_size(values, method, estimator)
    reading = spectrum_band(values, method, lr, estimator, step=3)
    assert reading.step == 3
    assert reading.exact == pytest.approx(reading.threshold)
    assert reading.edge_ratio == pytest.approx(1)
    slack = 1e-9 * reading.threshold
    assert reading.lower - slack <= reading.threshold <= reading.upper + slack


@pytest.mark.parametrize("lr", [0, -1, float("nan")])
def test_bad_step_size(lr):
    with pytest.raises(ValueError, match="lr must be"):
        threshold(ZOGD(), lr)


def test_bad_trace():
    with pytest.raises(ValueError, match="trace must be finite"):
        band(np.nan, 1.0, ZOGD(), 1e-3)
