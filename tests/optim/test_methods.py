"""The optimizers against a plain float64 transcription of the paper's equations, and against the theory."""

import numpy as np
import pytest
import scipy.stats
import torch

from zoedge.optim import ZOSGD, ZOAdam
from zoedge.theory import ZOGD, ZOGDM, Estimator, MatrixCovariance
from zoedge.theory import ZOAdam as ZOAdamMethod

ESTIMATORS = [
    pytest.param(form, directions, queries, id=f"{form}-{directions}-{queries}")
    for form in ("two-point", "forward")
    for directions in ("gaussian", "sphere", "rademacher")
    for queries in (1, 3)
]
METHODS = {
    "zo-gd": (ZOSGD, {"lr": 0.02}),
    "zo-gdm": (ZOSGD, {"lr": 0.004, "momentum": 0.9}),
    "zo-sgd, all": (
        ZOSGD,
        {"lr": 0.01, "momentum": 0.5, "dampening": 0.3, "weight_decay": 0.1, "maximize": True},
    ),
    "zo-adam": (ZOAdam, {"lr": 0.01, "betas": (0.9, 0.99)}),
    "zo-adam, all": (ZOAdam, {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1, "maximize": True}),
}


def make_loss():
    """A smooth function of two parameters that is no quadratic."""
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    return lambda a, b: torch.logsumexp(A @ a.reshape(-1), 0) + (torch.sin(b) ** 2).sum() + 0.1 * (a**2).sum()


def transcription(f, x, u_of, cls, settings, form, mu, steps):
    """The paper's section 3 in plain NumPy-like float64, on the flat parameter vector."""
    beta = settings.get("momentum", 0.0)
    beta1, beta2 = settings.get("betas", (0.9, 0.999))
    sign = -1 if settings.get("maximize") else 1
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    for t in range(steps):
        directions = u_of(t)
        g = torch.zeros_like(x)
        for u in directions:
            if form == "two-point":
                g += (f(x + mu * u) - f(x - mu * u)) / (2 * mu) * u / len(directions)
            else:
                g += (f(x + mu * u) - f(x)) / mu * u / len(directions)
        g = sign * g + settings.get("weight_decay", 0.0) * x
        if cls is ZOSGD:
            m = beta * m + (1 - (settings.get("dampening", 0.0) if t else 0.0)) * g
            x = x - settings["lr"] * m
        else:
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            P = (1 - beta1 ** (t + 1)) * (torch.sqrt(v / (1 - beta2 ** (t + 1))) + settings.get("eps", 1e-8))
            x = x - settings["lr"] * m / P
    return x


@pytest.mark.parametrize("store", [True, False], ids=["copied", "replayed"])
@pytest.mark.parametrize(("form", "directions", "queries"), ESTIMATORS)
@pytest.mark.parametrize("method", METHODS)
def test_200_steps_of_the_papers_equations(method, form, directions, queries, store):
    cls, settings = METHODS[method]
    loss = make_loss()
    a = torch.nn.Parameter(torch.linspace(-0.5, 0.5, 4, dtype=torch.float64).view(2, 2))
    b = torch.nn.Parameter(torch.tensor([0.3, -0.2, 0.9], dtype=torch.float64))
    start = torch.cat([a.detach().reshape(-1), b.detach()])
    opt = cls([a, b], mu=1e-3, queries=queries, directions=directions, form=form, store_direction=store, **settings)

    def u_of(step):
        drawn = [opt.direction(step, query) for query in range(queries)]
        return [torch.cat([u.dense(0), u.dense(1)]).double() for u in drawn]

    expected = transcription(lambda x: loss(x[:4], x[4:]), start, u_of, cls, settings, form, 1e-3, 200)
    for _ in range(200):
        opt.step(lambda: loss(a, b))
    found = torch.cat([a.detach().reshape(-1), b.detach()])
    assert (found - start).abs().max() > 1e-2
    assert (found - expected).abs().max() < 1e-10


def test_frozen_zo_adam_and_its_preconditioner():
    loss = make_loss()
    a = torch.nn.Parameter(torch.full((4,), 0.2, dtype=torch.float64))
    b = torch.nn.Parameter(torch.full((3,), 0.4, dtype=torch.float64))
    opt = ZOAdam([a, b], lr=1e-2, betas=(0.5, 0.9), eps=1e-3)
    with pytest.raises(RuntimeError, match="before the first step"):
        opt.preconditioner()
    for _ in range(5):
        opt.step(lambda: loss(a, b))
    state = opt.state[a]
    expected = (1 - 0.5**5) * ((state["exp_avg_sq"] / (1 - 0.9**5)).sqrt() + 1e-3)
    assert torch.allclose(opt.preconditioner()[0], expected, rtol=1e-14)

    opt.freeze_preconditioner()
    P, m, x = opt.preconditioner(), state["exp_avg"].clone(), a.detach().clone()
    for step in range(5, 15):
        opt.step(lambda: loss(a, b))
        g = opt.last.slopes[0] * opt.direction(step).dense(0).double()
        m = 0.5 * m + 0.5 * g
        x = x - 1e-2 * m / P[0]
    assert torch.allclose(a.detach(), x, rtol=1e-12)
    assert all(torch.equal(now, then) for now, then in zip(opt.preconditioner(), P, strict=True))


# High effective rank and few steps: there a hundred seeds make a trustworthy mean of the heavy-tailed |x|^2.
D = 24
ROTATION = scipy.stats.ortho_group.rvs(D, random_state=2)
HESSIAN = ROTATION @ np.diag(np.linspace(0.5, 1.5, D)) @ ROTATION.T
PRECONDITIONER = np.linspace(0.6, 1.4, D)


@pytest.mark.parametrize("directions", ["gaussian", "sphere", "rademacher"])
@pytest.mark.parametrize("form", ["two-point", "forward"])
@pytest.mark.parametrize("method", [ZOGD(), ZOGDM(0.6), ZOAdamMethod(0.6)], ids=lambda m: m.name)
def test_second_moment_over_seeds_is_that_of_the_theory(method, form, directions):
    """On a quadratic, on both sides of the critical step size; mu is too small for a floor of forward differences."""
    steps, seeds = 14, 100
    adam = isinstance(method, ZOAdamMethod)
    estimator = Estimator(form, directions, queries=2, mu=1e-7)
    operator = MatrixCovariance(HESSIAN, method, estimator, PRECONDITIONER if adam else None)
    H = torch.from_numpy(HESSIAN)
    for factor in (0.5, 1.4):
        lr = factor * operator.critical_step_size()
        expected = operator.trajectory(lr, steps)[-1]
        squares = np.array([quadratic_run(H, method, lr, estimator, steps, seed) for seed in range(seeds)])
        error = squares.std(ddof=1) / seeds**0.5
        assert abs(squares.mean() - expected) < 4.5 * error
        assert (expected > 1.5) if factor > 1 else (expected < 0.9)


def quadratic_run(H, method, lr, estimator, steps, seed) -> float:
    x = torch.nn.Parameter(torch.full((D,), D**-0.5, dtype=torch.float64))
    shared = {
        "mu": estimator.mu,
        "queries": 2,
        "directions": estimator.directions,
        "form": estimator.form,
        "seed": seed,
    }
    if isinstance(method, ZOAdamMethod):
        opt = ZOAdam([x], lr=lr, betas=(method.beta1, 0.999), eps=1e-12, **shared)
        opt.state[x]["preconditioner"] = torch.from_numpy(PRECONDITIONER)  # frozen from the start
    else:
        opt = ZOSGD([x], lr=lr, momentum=method.momentum, **shared)
    for _ in range(steps):
        opt.step(lambda: 0.5 * x @ H @ x)
    return float(x.detach().square().sum())


@pytest.mark.parametrize("store", [True, False])
def test_probes_of_adam_are_preconditioned(store):
    H = torch.from_numpy(HESSIAN)
    x = torch.nn.Parameter(torch.full((D,), D**-0.5, dtype=torch.float64))
    frozen = torch.nn.Parameter(torch.ones(3, dtype=torch.float64), requires_grad=False)
    opt = ZOAdam([frozen, x], lr=1e-3, mu=1e-3, queries=2, probe_every=2, store_direction=store)
    plain = torch.nn.Parameter(x.detach().clone())
    unprobed = ZOAdam([frozen, plain], lr=1e-3, mu=1e-3, queries=2)
    for step in range(7):
        P = opt.preconditioner()[0] if step else None
        calls = 0

        def closure():
            nonlocal calls
            calls += 1
            return 0.5 * x @ H @ x

        opt.step(closure)
        unprobed.step(lambda: 0.5 * plain @ H @ plain)
        assert torch.equal(x, plain)  # a probe changes nothing
        for query, curvature in enumerate(opt.last.curvatures):
            if step % 2 or P is None:
                assert np.isnan(curvature)
                assert calls == 4
            else:
                v = opt.direction(step, query).dense(1) * P.rsqrt()
                assert curvature == pytest.approx(float(v @ H @ v), rel=1e-5)
                assert calls == 9


def test_probes_measure_the_curvature_along_u():
    H = torch.from_numpy(HESSIAN)
    x = torch.nn.Parameter(torch.full((D,), D**-0.5, dtype=torch.float64))
    for form in ("two-point", "forward"):
        opt = ZOSGD([x], lr=1e-3, mu=1e-2, queries=2, probe_every=3, form=form)
        for step in range(7):
            before = x.detach().clone()
            opt.step(lambda: 0.5 * x @ H @ x)
            record = opt.last
            assert record.step == step
            for query in range(2):
                u = opt.direction(step, query).dense(0).double()
                if step % 3:
                    assert np.isnan(record.curvatures[query])
                else:
                    assert record.curvatures[query] == pytest.approx(float(u @ H @ u), rel=1e-6)
                    assert record.loss == pytest.approx(float(0.5 * before @ H @ before))
                slope = float(u @ H @ before) + (0.005 * float(u @ H @ u) if form == "forward" else 0)
                assert record.slopes[query] == pytest.approx(slope, rel=1e-6, abs=1e-9)
