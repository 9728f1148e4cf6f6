from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.curvature.nets import Problem
from zoedge.curvature import measure
from zoedge.optim import ZOSGD, ZOAdam
from zoedge.theory import GD, GDM, ZOGD, ZOGDM, Estimator, Spectrum, spectrum_band
from zoedge.theory import ZOAdam as ZOAdamMethod

LR = 1e-2


@pytest.fixture
def problem():
    return Problem("convolution")


def check(reading, exact, sigmas=4.0):
    """A reading agrees with the band of the exact spectrum within its errors, which are small."""
    assert reading.threshold == pytest.approx(exact.threshold)
    for name in ("lower", "upper", "exact"):
        error = getattr(reading, f"{name}_stderr")
        assert abs(getattr(reading, name) - getattr(exact, name)) <= sigmas * error + 1e-6 * exact.threshold, name
        assert error < 0.1 * abs(exact.upper)
    assert reading.edge_ratio == pytest.approx(reading.exact / reading.threshold)
    assert reading.edge_ratio_stderr == pytest.approx(reading.exact_stderr / reading.threshold)


@pytest.mark.parametrize(
    ("settings", "method", "estimator", "lr"),
    [
        ({}, ZOGD(), Estimator(), LR),
        ({"momentum": 0.9}, ZOGDM(0.9), Estimator(), LR),
        ({"momentum": 0.9, "dampening": 0.9}, ZOGDM(0.9), Estimator(), 0.1 * LR),
        ({"directions": "sphere", "queries": 4}, ZOGD(), Estimator(directions="sphere", queries=4), LR),
        ({"form": "forward", "weight_decay": 0.1}, ZOGD(), Estimator("forward"), LR),
        ({"directions": "rademacher"}, ZOGD(), Estimator(), LR),
    ],
)
def test_zeroth_order_bands(problem, settings, method, estimator, lr):
    opt = ZOSGD(problem.params, lr=LR, **settings)
    exact = spectrum_band(np.linalg.eigvalsh(problem.dense().numpy()), method, lr, estimator)
    reading = measure(opt, problem, 200)
    check(reading, exact)
    assert reading.products == 200
    assert reading.step == 0


def test_zo_adam_reads_its_preconditioner(problem):
    opt = ZOAdam(problem.params, lr=LR)
    with pytest.raises(RuntimeError, match="no preconditioner before the first step"):
        measure(opt, problem)
    for _ in range(5):
        opt.step(problem)
    P = torch.cat([part.reshape(-1) for part in opt.preconditioner()]).numpy()
    exact = spectrum_band(Spectrum.from_matrix(problem.dense().numpy(), P), ZOAdamMethod(0.9), LR)
    reading = measure(opt, problem, 200)
    check(reading, exact)
    assert reading.step == 5


def test_groups_with_step_sizes_of_their_own(problem):
    groups = [{"params": problem.params[:2]}, {"params": problem.params[2:4], "lr": 3 * LR}]
    with pytest.raises(ValueError, match="different step sizes"):
        measure(ZOSGD(groups, lr=LR), problem)
    opt = torch.optim.SGD([*groups, {"params": problem.params[4:], "lr": 0.0}], lr=LR)
    sizes = [p.numel() for p in problem.params]
    first, moving = sum(sizes[:2]), sum(sizes[:4])
    P = np.where(np.arange(moving) < first, 1.0, 1 / 3)
    exact = Spectrum.from_matrix(problem.dense().numpy()[:moving, :moving], P).lambda_max
    assert measure(opt, problem).exact == pytest.approx(exact, rel=1e-5)


def test_maximizing_turns_the_hessian_around(problem):
    eigenvalues = -np.linalg.eigvalsh(problem.dense().numpy())
    check(measure(ZOSGD(problem.params, lr=LR, maximize=True), problem, 200), spectrum_band(eigenvalues, ZOGD(), LR))


@pytest.mark.parametrize(
    ("settings", "method", "lr", "decay"),
    [
        ({}, GD(), LR, 0.0),
        ({"momentum": 0.9}, GDM(0.9), LR, 0.0),
        ({"momentum": 0.5, "dampening": 0.5}, GDM(0.5), 0.5 * LR, 0.0),
        ({"momentum": 0.9, "nesterov": True}, GDM(0.9), 2.8 * LR, 0.0),
        ({"weight_decay": 0.3}, GD(), LR, 0.3),
    ],
)
def test_first_order_sgd(problem, settings, method, lr, decay):
    opt = torch.optim.SGD(problem.params, lr=LR, **settings)
    top = np.linalg.eigvalsh(problem.dense().numpy())[-1] + decay
    reading = measure(opt, problem)
    assert reading.threshold == pytest.approx(2 * (1 + method.momentum) / lr)
    for value in (reading.lower, reading.upper, reading.exact):
        assert value == pytest.approx(top, rel=1e-5)
    assert reading.products < 50


def test_the_first_order_conditions_are_where_quadratics_diverge():
    """Not only read off: the recursions themselves blow up just above the threshold, and not below."""
    kinds: list[dict[str, Any]] = [{"momentum": 0.9, "nesterov": True}, {"momentum": 0.5, "dampening": 0.2}]
    for settings in kinds:
        for factor, diverges in ((0.97, False), (1.03, True)):
            x = nn.Parameter(torch.ones(1, dtype=torch.float64))
            threshold = measure(torch.optim.SGD([x], lr=1.0, **settings), lambda x=x: 0.5 * x.square().sum()).threshold
            opt = torch.optim.SGD([x], lr=threshold * factor, **settings)
            for _ in range(2000):
                opt.zero_grad()
                (0.5 * x.square().sum()).backward()
                opt.step()
            assert (float(x.detach().abs()) > 1) == diverges, (settings, factor)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_first_order_adam(problem, kind, amsgrad):
    opt = kind(problem.params, lr=LR, weight_decay=0.1, amsgrad=amsgrad)
    with pytest.raises(RuntimeError, match="no preconditioner before the first step"):
        measure(opt, problem)
    for _ in range(3):
        opt.zero_grad()
        problem().backward()
        opt.step()
    key = "max_exp_avg_sq" if amsgrad else "exp_avg_sq"
    v = torch.cat([opt.state[p][key].reshape(-1) for p in problem.params]).numpy()
    P = (1 - 0.9**3) * (np.sqrt(v / (1 - 0.999**3)) + 1e-8)
    H = problem.dense().numpy() + (0.1 if kind is torch.optim.Adam else 0) * np.eye(len(P))
    reading = measure(opt, problem)
    assert reading.exact == pytest.approx(Spectrum.from_matrix(H, P).lambda_max, rel=1e-5)
    assert reading.threshold == pytest.approx(2 * 1.9 / (0.1 * LR))


def test_optimizers_tell_their_method():
    weights = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2))]
    assert ZOSGD(weights).method == ZOGD()
    assert ZOSGD(weights, momentum=0.5).method == ZOGDM(0.5)
    assert ZOAdam(weights, betas=(0.8, 0.99)).method == ZOAdamMethod(0.8)
    mixed = ZOSGD([{"params": weights[:1]}, {"params": weights[1:], "momentum": 0.9}])
    with pytest.raises(ValueError, match="different momenta"):
        _ = mixed.method


def test_batches(problem):
    halves = [(problem.x[:4], problem.y[:4]), (problem.x[4:], problem.y[4:])]
    opt = ZOSGD(problem.params, lr=LR)
    whole = measure(opt, problem, 40)
    parts = measure(opt, problem.batch, 40, batches=halves)
    assert parts.exact == pytest.approx(whole.exact, rel=1e-6)


def test_optimizers_that_are_not_known(problem):
    opt = torch.optim.RMSprop(problem.params)
    with pytest.raises(TypeError, match="stability of RMSprop is not known here"):
        measure(opt, problem)
    with pytest.raises(TypeError, match="expected an optimizer"):
        measure(problem, problem)
    with pytest.raises(ValueError, match="nothing moves"):
        measure(torch.optim.SGD(problem.params, lr=0.0), problem)
    two = [{"params": problem.params[:1]}, {"params": problem.params[1:], "momentum": 0.9}]
    with pytest.raises(ValueError, match="momentum differs between parameter groups"):
        measure(torch.optim.SGD(two, lr=LR), problem)
