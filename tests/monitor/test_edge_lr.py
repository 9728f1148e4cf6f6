import math
import warnings
from dataclasses import replace

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from zoedge.curvature import measure
from zoedge.models import MLP
from zoedge.monitor import EdgeLR
from zoedge.optim import ZOSGD, NonFiniteLossError, ZOAdam
from zoedge.tasks import LOSSES, digits
from zoedge.theory import Spectrum, critical_step_size


def quadratic(curvatures, noise=0.0, seed=0):
    """Parameters, and closures of batches: 1/2 sum h x^2, plus a random slope of its own in each batch."""
    h = torch.as_tensor(curvatures, dtype=torch.float64)
    x = torch.nn.Parameter(torch.ones_like(h))
    generator = torch.Generator().manual_seed(seed)

    def batch():
        slope = noise * torch.randn(len(h), generator=generator, dtype=torch.float64)
        return lambda: 0.5 * (h * x * x).sum() + slope @ x

    return x, batch


def train(opt, schedule, batch, steps, others=()):
    for _ in range(steps):
        opt.step(batch())
        schedule.step()
        for other in others:
            other.step()
    return opt.last


def learner(seed=0, loss="squared"):
    task = digits(per_class=5)
    torch.manual_seed(seed)
    model = MLP(task.inputs.shape[1:], task.classes, width=16, depth=2)

    def closure():
        with torch.no_grad():
            return LOSSES[loss](model(task.inputs), task.targets)

    return model, closure


class TestFullBatch:
    @pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"queries": 4}, {"directions": "rademacher"}], ids=str)
    def test_settles_at_the_share_of_the_critical_step_size(self, settings):
        curvatures = [1.0] * 60 + [3.0] * 10
        x, batch = quadratic(curvatures)
        opt = ZOSGD([x], mu=1e-4, **settings)
        schedule = EdgeLR(opt, target=0.5, window=256, walk=1e3)
        train(opt, schedule, batch, 700)
        # Rademacher directions are stable where Gaussian ones are, and a little further.
        estimator = replace(opt.estimator, directions="gaussian")
        exact = critical_step_size(Spectrum(curvatures), opt.method, estimator)
        assert not schedule.mini_batch
        assert schedule.signal_fraction == 1
        # By at most a few percent below: it counts with the root mean square, and with the last samples alone.
        assert 0.3 * exact < schedule.last_lr < 0.55 * exact

    def test_agrees_with_hessian_vector_products(self):
        """The reading that the optimizer's records give, and that of the Hessian, at the step size that was chosen."""
        model, closure = learner()
        schedule = EdgeLR(opt := ZOSGD(model.parameters(), mu=1e-4), window=64)
        train(opt, schedule, lambda: closure, 400)
        task = digits(per_class=5)
        band = measure(opt, lambda: LOSSES["squared"](model(task.inputs), task.targets))
        reading = schedule.monitor.reading
        assert reading is not None
        assert band.threshold == pytest.approx(2 / schedule.last_lr)
        assert reading.trace == pytest.approx(band.lower, rel=0.3)
        assert 0.4 < band.edge_ratio < 1

    def test_nothing_moves_in_the_warmup_and_little_at_first(self):
        x, batch = quadratic([1.0] * 50)
        schedule = EdgeLR(opt := ZOSGD([x], mu=1e-4))
        train(opt, schedule, batch, 15)
        assert schedule.last_lr == 0
        assert torch.equal(x, torch.ones_like(x))
        train(opt, schedule, batch, 2)
        assert 0 < schedule.last_lr < 1e-3

    def test_learns_without_being_told_a_step_size(self):
        model, closure = learner()
        first = float(closure())
        opt = ZOSGD(model.parameters())
        schedule = EdgeLR(opt)
        train(opt, schedule, lambda: closure, 1500)
        assert float(closure()) < 0.5 * first

    def test_adam(self):
        model, closure = learner(loss="cross-entropy")
        opt = ZOAdam(model.parameters())
        schedule = EdgeLR(opt)
        train(opt, schedule, lambda: closure, 800)
        assert float(closure()) < 1.5
        ratio = schedule.monitor.reading
        assert ratio is not None
        assert 0.1 < ratio.edge_ratio < 1.1


class TestMiniBatch:
    def test_signal_fraction_is_that_of_the_gradients(self):
        """With a linear loss of known gradient g and batch noise: s = |g|^2 / (|g|^2 + E|noise|^2)."""
        d, noise = 400, 0.5
        g = torch.full((d,), 0.5, dtype=torch.float64)
        x = torch.nn.Parameter(torch.ones(d, dtype=torch.float64))
        generator = torch.Generator().manual_seed(0)
        opt = ZOSGD([x], mu=1e-3)
        schedule = EdgeLR(opt, walk=1e-3)
        found = []
        for _ in range(2500):
            slope = g + noise * torch.randn(d, generator=generator, dtype=torch.float64)
            opt.step(lambda slope=slope: slope @ x + 5e-4 * x.square().sum())
            schedule.step()
            found.append(schedule.signal_fraction)
        assert schedule.mini_batch
        assert sum(found[-1500:]) / 1500 == pytest.approx(0.5, abs=0.12)

    def test_noise_alone_makes_steps_small(self):
        x, batch = quadratic([1.0] * 100, noise=3.0)
        with torch.no_grad():
            x.zero_()
        schedule = EdgeLR(opt := ZOSGD([x], mu=1e-3))
        train(opt, schedule, batch, 1500)
        assert schedule.signal_fraction < 0.1
        assert schedule.last_lr < 0.1 * 0.7 * critical_step_size(Spectrum([1.0] * 100), opt.method)

    def test_steps_are_not_longer_than_the_walk_allows(self):
        x, batch = quadratic([1e-4] * 200, noise=1.0)
        schedule = EdgeLR(opt := ZOSGD([x], mu=1e-3), walk=0.01)
        train(opt, schedule, batch, 400)
        lengths = []
        for _ in range(100):
            before = x.detach().clone()
            train(opt, schedule, batch, 1)
            lengths.append(float((x.detach() - before).norm() ** 2))
        assert math.sqrt(sum(lengths) / 100) == pytest.approx(0.01 * float(x.detach().norm()), rel=0.4)


class TestGoingBack:
    def test_a_loss_that_is_not_finite_undoes_the_stretch(self):
        x, batch = quadratic([1.0] * 50)
        schedule = EdgeLR(opt := ZOSGD([x], momentum=0.5, mu=1e-4))
        train(opt, schedule, batch, 316)  # a snapshot is taken after 16 + 3 * 100 steps
        lr = schedule.last_lr
        before = [x.detach().clone(), opt.state[x]["momentum_buffer"].clone()]
        train(opt, schedule, batch, 10)
        opt.step(lambda: torch.tensor(math.nan))
        schedule.step()
        assert torch.equal(x, before[0])
        assert torch.equal(opt.state[x]["momentum_buffer"], before[1])
        assert schedule.last_lr < 0.6 * lr

    def test_a_loss_that_leaves_its_range_too(self):
        x, batch = quadratic([1.0] * 50)
        schedule = EdgeLR(opt := ZOSGD([x], mu=1e-4))
        train(opt, schedule, batch, 120)
        with torch.no_grad():
            x.mul_(100)
        train(opt, schedule, batch, 3)
        assert float(x.detach().norm()) < 10

    def test_one_large_batch_loss_is_no_reason(self):
        x, batch = quadratic([1.0] * 50)
        schedule = EdgeLR(opt := ZOSGD([x], mu=1e-4))
        train(opt, schedule, batch, 120)
        lr = schedule.last_lr
        opt.step(lambda: 100 + 0.5 * x.square().sum())
        schedule.step()
        assert schedule.last_lr >= 0.9 * lr

    def test_gives_up_where_no_step_is_finite(self):
        x, batch = quadratic([1.0] * 50)
        schedule = EdgeLR(opt := ZOSGD([x], mu=1e-4))
        train(opt, schedule, batch, 30)
        with pytest.raises(NonFiniteLossError, match="loss is nan"):
            train(opt, schedule, lambda: lambda: torch.tensor(math.nan), 30)


class TestAsAScheduler:
    def test_multiplies_with_others(self):
        x, batch = quadratic([1.0] * 50)
        schedule = EdgeLR(opt := ZOSGD([x], mu=1e-4))
        half = LambdaLR(opt, lambda step: 0.5)
        train(opt, schedule, batch, 200, [half])
        assert opt.param_groups[0]["lr"] == 0.5
        assert schedule.get_last_lr() == [0.5 * schedule.last_lr]
        lr = schedule.last_lr
        assert train(opt, schedule, batch, 1, [half]).lr == (0.5 * lr,)

    def test_cosine_ends_at_zero(self):
        x, batch = quadratic([1.0] * 50)
        schedule = EdgeLR(opt := ZOSGD([x], mu=1e-4))
        cosine = CosineAnnealingLR(opt, 200)
        train(opt, schedule, batch, 200, [cosine])
        assert schedule.get_last_lr()[0] < 1e-12 < schedule.last_lr

    def test_groups_keep_their_ratio(self):
        x, batch = quadratic([1.0] * 50)
        y = torch.nn.Parameter(torch.ones(5, dtype=torch.float64))
        opt = ZOSGD([{"params": [x], "lr": 1e-2}, {"params": [y], "lr": 1e-3}], mu=1e-4)
        schedule = EdgeLR(opt)
        record = train(opt, schedule, batch, 100)
        assert record.lr[1] == pytest.approx(0.1 * record.lr[0])

    @pytest.mark.parametrize("at", [5, 60, 199, 430])
    @pytest.mark.parametrize("kind", [ZOSGD, ZOAdam])
    def test_resumes_exactly(self, at, kind, tmp_path):
        def begin():
            x, batch = quadratic([1.0] * 40, noise=0.3)
            opt = kind([x], mu=1e-3)
            return x, batch, opt, EdgeLR(opt)

        x, batch, opt, schedule = begin()
        train(opt, schedule, batch, 500)
        y, batch, opt, schedule = begin()
        train(opt, schedule, batch, at)
        torch.save({"x": y, "opt": opt.state_dict(), "schedule": schedule.state_dict()}, tmp_path / "state.pt")
        state = torch.load(tmp_path / "state.pt", weights_only=True)
        z, _, opt, schedule = begin()
        with torch.no_grad():
            z.copy_(state["x"])
        opt.load_state_dict(state["opt"])
        schedule.load_state_dict(state["schedule"])

        def batch_of_z():
            # The closures of the interrupted run, on the parameters of the resumed one.
            closure = batch()
            with torch.no_grad():
                return lambda: _on(closure, y, z)

        train(opt, schedule, batch_of_z, 500 - at)
        assert torch.equal(x, z)

    def test_says_if_it_is_not_called(self):
        x, batch = quadratic([1.0] * 50)
        EdgeLR(opt := ZOSGD([x]))
        opt.step(batch())
        with pytest.warns(UserWarning, match="call it after every"):
            opt.step(batch())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            opt.step(batch())


def _on(closure, y, z):
    with torch.no_grad():
        y.copy_(z)
    return closure()


class TestBadInput:
    def test_another_optimizer(self):
        with pytest.raises(TypeError, match="ZOSGD and ZOAdam, got SGD"):
            EdgeLR(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))]))  # pyright: ignore[reportArgumentType]

    def test_step_size_zero(self):
        with pytest.raises(ValueError, match="lr is 0"):
            EdgeLR(ZOSGD([torch.nn.Parameter(torch.ones(2))], lr=0.0))

    @pytest.mark.parametrize(
        "settings", [{"target": 0}, {"target": -1}, {"probe_every": 0}, {"walk": 0}, {"window": 4}]
    )
    def test_settings(self, settings):
        with pytest.raises(ValueError, match=next(iter(settings))):
            EdgeLR(ZOSGD([torch.nn.Parameter(torch.ones(2))]), **settings)

    def test_maximizing(self):
        with pytest.raises(ValueError, match="downhill"):
            EdgeLR(ZOSGD([torch.nn.Parameter(torch.ones(2))], maximize=True))

    def test_frozen_parameters(self):
        x = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        schedule = EdgeLR(opt := ZOSGD([x]))
        with pytest.raises(ValueError, match="nothing to train"):
            train(opt, schedule, lambda: lambda: x.sum(), 1)

    def test_a_state_of_other_parameters(self):
        x, batch = quadratic([1.0] * 50)
        schedule = EdgeLR(opt := ZOSGD([x]))
        train(opt, schedule, batch, 50)
        y, _ = quadratic([1.0] * 20)
        with pytest.raises(ValueError, match="other parameters"):
            EdgeLR(ZOSGD([y])).load_state_dict(schedule.state_dict())
