import warnings

import pytest
import torch
from torch import nn

from tests.monitor.test_suggest import network, quadratic
from zoedge.curvature import measure
from zoedge.monitor import EdgeMonitor
from zoedge.optim import ZOSGD, ZOAdam


def watched(opt, closure, steps: int, window: int = 64) -> EdgeMonitor:
    monitor = EdgeMonitor(opt, window)
    for _ in range(steps):
        opt.step(closure)
        monitor.update()
    return monitor


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"queries": 4}, {"directions": "sphere"}], ids=str)
def test_agrees_with_hessian_vector_products(settings):
    model, closure = network(torch.float64)
    opt = ZOSGD(model.parameters(), lr=1e-7, probe_every=1, mu=1e-3, **settings)
    reading = watched(opt, closure, 400, window=400).reading
    assert reading is not None
    band = measure(opt, closure)
    queries = settings.get("queries", 1)
    assert reading.trace == pytest.approx(queries * band.lower, abs=3 * reading.trace_stderr)
    assert reading.edge_ratio == pytest.approx(
        band.edge_ratio, abs=3 * reading.edge_ratio_stderr + 0.03 * band.edge_ratio
    )
    assert reading.probes == 400


def test_agrees_for_adam():
    model, closure = network(torch.float64)
    opt = ZOAdam(model.parameters(), lr=1e-7, probe_every=1)
    reading = watched(opt, closure, 600, window=300).reading
    assert reading is not None
    band = measure(opt, closure)
    assert reading.trace == pytest.approx(band.lower, abs=3 * reading.trace_stderr + 0.05 * band.lower)
    assert reading.edge_ratio == pytest.approx(band.edge_ratio, rel=0.15)


@pytest.mark.parametrize(("share", "verdict"), [(0.3, "well inside"), (1.0, "at the edge"), (2.0, "beyond")])
def test_verdicts(share, verdict):
    x, closure = quadratic()
    opt = ZOSGD([x], lr=share * 2 / 400, probe_every=1, momentum=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reading = watched(opt, closure, 64).reading
    assert reading is not None
    assert reading.verdict == verdict
    assert reading.sureness > 0.6
    assert verdict in str(reading)


def test_one_warning():
    x, closure = quadratic()
    opt = ZOSGD([x], lr=2.5 * 2 / 400, probe_every=1)
    with pytest.warns(UserWarning, match="stays beyond the edge") as caught:
        watched(opt, closure, 120)
    assert len(caught) == 1


def test_goes_on_from_a_state():
    x, closure = quadratic()
    opt = ZOSGD([x], lr=1e-3, probe_every=2)
    monitor = watched(opt, closure, 30)
    again = EdgeMonitor(opt)
    again.load_state_dict(monitor.state_dict())
    assert again.reading == monitor.reading
    monitor.update()  # the same record counts once
    assert again.reading == monitor.reading


def test_bad_input():
    x = nn.Parameter(torch.ones(2))
    with pytest.raises(ValueError, match="pass it probe_every=10"):
        EdgeMonitor(ZOSGD([x]))
    monitor = EdgeMonitor(ZOSGD([x], probe_every=1))
    assert monitor.reading is None
    with pytest.raises(RuntimeError, match="before the first step"):
        monitor.update()
