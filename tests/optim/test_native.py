"""At home in PyTorch: groups, schedulers, hooks, states, frozen, tied and compiled models."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from zoedge.optim import ZOSGD, ZOAdam

X = torch.randn(32, 10, generator=torch.Generator().manual_seed(0))
Y = torch.randn(32, 2, generator=torch.Generator().manual_seed(1))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(10, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.second(nn.functional.gelu(self.first(x)))


def network(dtype=torch.float32, seed=3) -> Network:
    torch.manual_seed(seed)
    return Network().to(dtype)


def closure_of(model):
    dtype = next(model.parameters()).dtype
    return lambda: nn.functional.mse_loss(model(X.to(dtype)).float(), Y)


def weights(model):
    return torch.cat([p.detach().double().reshape(-1) for p in model.parameters()])


CASES = [
    pytest.param(ZOSGD, {"lr": 1e-2}, id="sgd"),
    pytest.param(ZOSGD, {"lr": 1e-3, "momentum": 0.9, "dampening": 0.5, "queries": 2}, id="momentum"),
    pytest.param(ZOAdam, {"lr": 1e-3}, id="adam"),
]
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


@pytest.mark.parametrize(
    ("cls", "settings"),
    [(ZOSGD, {"lr": 2e-2}), (ZOSGD, {"lr": 2e-3, "momentum": 0.9}), (ZOAdam, {"lr": 3e-3})],
)
def test_it_trains(cls, settings):
    model = network()
    closure = closure_of(model)
    opt = cls(model.parameters(), **settings)
    with torch.no_grad():
        start = float(closure())
        losses = [float(opt.step(closure)) for _ in range(400)]
        assert losses[-1] < 0.9 * start
        assert float(closure()) == pytest.approx(losses[-1], rel=0.1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("cls", "settings"), CASES)
def test_copied_and_replayed_give_the_same_bits(cls, settings, dtype):
    results = []
    for store in (True, False):
        model = network(dtype)
        opt = cls(model.parameters(), store_direction=store, probe_every=2, **settings)
        for _ in range(20):
            opt.step(closure_of(model))
        results.append(weights(model))
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("cls", "settings"), CASES)
def test_resume_goes_on_bit_for_bit(cls, settings, dtype):
    model = network(dtype)
    opt = cls(model.parameters(), seed=5, **settings)
    for _ in range(10):
        opt.step(closure_of(model))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    for _ in range(10):
        opt.step(closure_of(model))

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = network(dtype, seed=99)
    other.load_state_dict(saved["model"])
    resumed = cls(other.parameters(), **settings)
    resumed.load_state_dict(saved["opt"])
    for _ in range(10):
        resumed.step(closure_of(other))
    assert torch.equal(weights(model), weights(other))
    assert resumed.step_count == 20


def test_a_loaded_state_is_not_shared():
    model = network()
    opt = ZOSGD(model.parameters(), lr=1e-2, momentum=0.9)
    opt.step(closure_of(model))
    state = opt.state_dict()
    kept = state["state"][0]["momentum_buffer"].clone()
    other = ZOSGD(network().parameters(), lr=1e-2, momentum=0.9)
    other.load_state_dict(state)
    opt.step(closure_of(model))
    assert torch.equal(other.state_dict()["state"][0]["momentum_buffer"], kept)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))])
def test_copies_and_pickles_go_on_by_themselves(duplicate):
    model = network()
    opt = ZOAdam(model.parameters(), lr=1e-3, probe_every=1)
    for _ in range(3):
        opt.step(closure_of(model))
    model2, opt2 = duplicate((model, opt))
    with pytest.raises(RuntimeError, match="before the first step"):
        _ = opt2.last
    for _ in range(3):
        opt.step(closure_of(model))
        opt2.step(closure_of(model2))
    assert torch.equal(weights(model), weights(model2))


def test_param_groups_have_their_own_step_size():
    model = network()
    opt = ZOSGD([{"params": model.first.parameters(), "lr": 0.0}, {"params": model.second.parameters()}], lr=1e-2)
    before = [p.detach().clone() for p in model.parameters()]
    opt.step(closure_of(model))
    changed = [not torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True)]
    assert changed == [False, False, True, True]
    assert opt.last.lr == (0.0, 1e-2)


def test_add_param_group():
    model = network()
    opt = ZOAdam(model.first.parameters(), lr=1e-3)
    opt.step(closure_of(model))
    opt.add_param_group({"params": model.second.parameters(), "lr": 1e-2})
    before = model.second.weight.detach().clone()
    opt.step(closure_of(model))
    assert not torch.equal(model.second.weight, before)
    assert opt.step_count == 2
    # Bias correction counts the updates of each parameter: the first one moves by about lr.
    assert (model.second.weight.detach() - before).abs().mean().item() == pytest.approx(1e-2, rel=0.05)


def test_the_estimate_is_one_for_all_groups():
    model = network()
    with pytest.raises(ValueError, match=r"mu is 0\.001 in parameter group 0 and 0\.1 in group 1"):
        ZOSGD([{"params": model.first.parameters()}, {"params": model.second.parameters(), "mu": 0.1}], lr=1e-2)
    opt = ZOSGD([{"params": model.first.parameters()}, {"params": model.second.parameters()}], lr=1e-2)
    opt.param_groups[1]["seed"] = 4
    with pytest.raises(ValueError, match="seed is 0 in parameter group 0 and 4 in group 1"):
        opt.step(closure_of(model))


def test_schedulers():
    model = network()
    opt = ZOSGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.1)
    rates = []
    for _ in range(3):
        opt.step(lambda: 1.0)
        rates.append(opt.last.lr[0])
        scheduler.step()
    assert rates == pytest.approx([1.0, 0.1, 0.01])


def test_hooks_and_zero_grad():
    model = network()
    opt = ZOSGD(model.parameters(), lr=1e-2)
    calls = []
    opt.register_step_pre_hook(lambda *_: calls.append("before"))
    opt.register_step_post_hook(lambda *_: calls.append("after"))
    opt.zero_grad()
    opt.step(closure_of(model))
    assert calls == ["before", "after"]
    assert all(p.grad is None for p in model.parameters())


def test_frozen_parameters_stay_and_leave_the_noise_of_the_others():
    free, frozen = network(), network()
    frozen.first.requires_grad_(False)
    opts = [ZOSGD(m.parameters(), lr=1e-2) for m in (free, frozen)]
    before = frozen.first.weight.detach().clone()
    for _ in range(2):
        opts[1].step(closure_of(frozen))
    assert torch.equal(frozen.first.weight, before)
    assert torch.equal(opts[0].direction(0).dense(3), opts[1].direction(0).dense(3))
    frozen.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        opts[1].step(closure_of(frozen))


def test_tied_weights_move_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(10, 10, bias=False, dtype=torch.float64)
            self.b = nn.Linear(10, 10, bias=False, dtype=torch.float64)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    model = Tied()
    opt = ZOSGD(model.parameters(), lr=1e-3)
    before = model.a.weight.detach().clone()
    opt.step(lambda: model(X.double()).square().mean())
    assert model.b.weight is model.a.weight
    expected = before - 1e-3 * opt.last.slopes[0] * opt.direction(0).dense(0).double().view(10, 10)
    assert torch.allclose(model.a.weight, expected, rtol=1e-14)


def test_channels_last_parameters_keep_their_layout_and_noise():
    results = []
    for layout in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        model = nn.Conv2d(3, 8, 3).to(memory_format=layout)  # pyright: ignore[reportCallIssue]
        opt = ZOSGD(model.parameters(), lr=1e-2)
        images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
        for _ in range(3):
            opt.step(lambda model=model, images=images: model(images).square().mean())
        assert model.weight.is_contiguous(memory_format=layout)
        results.append(weights(model))
    assert torch.allclose(*results, atol=1e-5)


def test_compiled_models():
    model = network()
    eager, opt = network(), ZOSGD(model.parameters(), lr=1e-2)
    opt_eager = ZOSGD(eager.parameters(), lr=1e-2)
    compiled = torch.compile(model, backend="aot_eager")
    for _ in range(3):
        opt.step(lambda: nn.functional.mse_loss(compiled(X), Y))
        opt_eager.step(closure_of(eager))
    assert torch.allclose(weights(model), weights(eager), atol=1e-6)


def test_a_model_that_changes_dtype_between_steps():
    model = network()
    opt = ZOSGD(model.parameters(), lr=1e-2)
    opt.step(closure_of(model))
    model.double()
    opt.step(closure_of(model))
    assert model.first.weight.dtype == torch.float64


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"lr": -1.0}, "lr must not be negative"),
        ({"lr": float("nan")}, "lr must be"),
        ({"momentum": 1.0}, r"momentum must lie in \[0, 1\)"),
        ({"mu": 0.0}, "mu must be positive"),
        ({"queries": 0}, "queries must be at least 1"),
        ({"directions": "cube"}, "directions must be one of"),
        ({"form": "central"}, "form must be one of"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"seed": 1 << 32}, "seed must be below"),
        ({"probe_every": -1}, "probe_every must be at least 0"),
        ({"on_nonfinite": "ignore"}, "on_nonfinite must be one of"),
        ({"store_direction": "yes"}, "store_direction must be True, False or 'auto'"),
    ],
)
def test_bad_settings(settings, match):
    with pytest.raises(ValueError, match=match):
        ZOSGD(network().parameters(), **settings)


def test_bad_adam_settings():
    with pytest.raises(ValueError, match=r"betas\[1\] must lie in"):
        ZOAdam(network().parameters(), betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="eps must be positive"):
        ZOAdam(network().parameters(), eps=0.0)


def test_parameters_that_are_no_real_numbers():
    with pytest.raises(TypeError, match="floating-point"):
        ZOSGD([nn.Parameter(torch.zeros(2, dtype=torch.complex64))], lr=1e-2).step(lambda: 0.0)


def test_parameters_on_two_devices():
    opt = ZOSGD([nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(2, device="meta"))], lr=1e-2)
    with pytest.raises(ValueError, match="on one device, these are on cpu, meta"):
        opt.step(lambda: 0.0)


def test_more_than_a_million_parameters():
    """Directions from a pool, several pieces: copied, replayed and resumed runs agree bit for bit."""
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        for store in (True, False):
            generator = torch.Generator().manual_seed(0)
            params = [nn.Parameter(torch.randn(n, generator=generator).to(dtype)) for n in (700_000, 600_001)]
            opt = ZOSGD(params, lr=1e-6, momentum=0.9, queries=2, mu=1e-2, store_direction=store)
            for step in range(4):
                if step == 2:
                    state = opt.state_dict()
                    opt = ZOSGD(params, lr=1.0, momentum=0.9, store_direction=store)
                    opt.load_state_dict(state)
                opt.step(lambda params=params: sum(p.float().square().mean() for p in params))
            results.append(torch.cat([p.detach() for p in params]))
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[2], results[3])


def test_states_of_other_optimizers_are_refused():
    model = network()
    with pytest.raises(ValueError, match="no state of ZOSGD: it lacks"):
        ZOSGD(model.parameters(), lr=1e-2).load_state_dict(torch.optim.SGD(model.parameters(), lr=0.1).state_dict())


def test_hooks_of_load_state_dict_are_respected():
    model = network()
    opt = ZOSGD(model.parameters(), lr=1e-2, momentum=0.9)
    opt.step(closure_of(model))

    def zeroed(_, state):
        for entry in state["state"].values():
            entry["momentum_buffer"] = torch.zeros_like(entry["momentum_buffer"])
        return state

    opt.register_load_state_dict_pre_hook(zeroed)
    opt.load_state_dict(copy.deepcopy(opt.state_dict()))
    assert not any(opt.state[p]["momentum_buffer"].any() for p in model.parameters())


def test_how_a_process_runs_is_not_part_of_a_checkpoint():
    model = network()
    state = ZOSGD(model.parameters(), lr=1e-2).state_dict()
    opt = ZOSGD(model.parameters(), lr=1e-2, on_nonfinite="skip")
    opt.load_state_dict(state)
    opt.step(lambda: float("nan"))
    assert opt.skipped_count == 1


def test_a_group_that_does_not_fit_is_not_added():
    model = network()
    opt = ZOSGD(model.first.parameters(), lr=1e-2)
    with pytest.raises(ValueError, match="mu is"):
        opt.add_param_group({"params": model.second.parameters(), "mu": 0.1})
    assert len(opt.param_groups) == 1


def test_adding_parameters_leaves_the_noise_of_the_others():
    model = network()
    opt = ZOSGD(model.first.parameters(), lr=1e-2)
    before = opt.direction(0).dense(0)
    opt.add_param_group({"params": model.second.parameters()})
    assert torch.equal(opt.direction(0).dense(0), before)


def test_dampening_starts_with_momentum_as_in_torch():
    """Momentum switched on after two steps: the first gradient with momentum is not dampened."""
    p = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    opt = ZOSGD([p], lr=1.0, dampening=0.5)
    for _ in range(2):
        opt.step(lambda: p.sum())
    opt.param_groups[0]["momentum"] = 0.9
    opt.step(lambda: p.sum())
    expected = opt.last.slopes[0] * opt.direction(2).dense(0)
    assert torch.allclose(opt.state[p]["momentum_buffer"], expected)
