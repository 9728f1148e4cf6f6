"""What must not go wrong: exceptions, Ctrl-C, losses that are not finite, closures that are wrong."""

import math
import os
import pickle
import signal
import threading

import pytest
import torch
from torch import nn

from zoedge.optim import ZOSGD, NonFiniteLossError, ZOAdam
from zoedge.optim.interrupts import Interrupts

STORES = [True, False]


def model_and_weights():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Dropout(0.5), nn.Linear(4, 1))
    return model, [p.detach().clone() for p in model.parameters()]


def unchanged(model, before):
    return all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("form", ["two-point", "forward"])
@pytest.mark.parametrize("call", [1, 2, 3])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_exception_leaves_the_parameters(store, form, call, error):
    model, before = model_and_weights()
    opt = ZOSGD(model.parameters(), lr=1e-2, momentum=0.9, form=form, queries=3, store_direction=store)
    calls = []

    def closure():
        calls.append(None)
        if len(calls) == call:
            raise error("stop")
        return model(torch.ones(2, 5)).sum()

    with pytest.raises(error):
        opt.step(closure)
    assert unchanged(model, before)
    assert opt.step_count == 0
    assert not any(opt.state[p].get("updates") or opt.state[p]["momentum_buffer"].any() for p in model.parameters())


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("phase", ["move", "update"])
def test_ctrl_c_while_parameters_change_waits(store, phase, monkeypatch):
    """A SIGINT on the way undoes the step; inside the update it comes after a whole step."""
    from zoedge.optim import moves

    cls = moves.Copied if store else moves.Replayed
    original = getattr(cls, phase)

    def interrupted(self, *arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return original(self, *arguments)

    reference, before = model_and_weights()
    ZOSGD(reference.parameters(), lr=1e-2, momentum=0.9).step(lambda: reference(torch.ones(2, 5)).sum())
    model, _ = model_and_weights()
    opt = ZOSGD(model.parameters(), lr=1e-2, momentum=0.9, store_direction=store)
    torch.manual_seed(0)
    model_and_weights()
    monkeypatch.setattr(cls, phase, interrupted)
    with pytest.raises(KeyboardInterrupt):
        opt.step(lambda: model(torch.ones(2, 5)).sum())
    if phase != "update":
        assert unchanged(model, before)
        assert opt.step_count == 0
    else:
        assert unchanged(model, list(reference.parameters()))
        assert opt.step_count == 1
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_steps_in_another_thread():
    model, before = model_and_weights()
    opt = ZOSGD(model.parameters(), lr=1e-2)
    thread = threading.Thread(target=lambda: opt.step(lambda: model(torch.ones(2, 5)).sum()))
    thread.start()
    thread.join()
    assert opt.step_count == 1
    assert not unchanged(model, before)


def test_an_ignored_interrupt_stays_ignored():
    previous = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            os.kill(os.getpid(), signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, previous)


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_raises(store, bad):
    model, before = model_and_weights()
    opt = ZOSGD(model.parameters(), lr=0.125, store_direction=store)
    opt.step(lambda: 3.5)
    assert unchanged(model, before)
    values = iter([2.0, bad])
    with pytest.raises(NonFiniteLossError, match=r"in step 1 at lr 0.125; the last finite loss was 3.5") as info:
        opt.step(lambda: next(values))
    assert unchanged(model, before)
    assert (info.value.step, info.value.lr, info.value.last_finite_loss) == (1, (0.125,), 3.5)
    assert str(pickle.loads(pickle.dumps(info.value))) == str(info.value)


def test_skipping_counts_and_goes_on():
    model, before = model_and_weights()
    opt = ZOAdam(model.parameters(), lr=1e-2, on_nonfinite="skip")
    loss = opt.step(lambda: torch.tensor(math.nan))
    assert math.isnan(loss)
    assert opt.last.skipped
    assert unchanged(model, before)
    assert (opt.step_count, opt.skipped_count) == (1, 1)
    first = opt.direction(0).dense(0)
    assert not torch.equal(opt.direction().dense(0), first), "the next step must try another direction"
    opt.step(lambda: model(torch.ones(2, 5)).sum())
    assert not opt.last.skipped
    assert (opt.step_count, opt.skipped_count) == (2, 1)
    resumed = ZOAdam(model.parameters(), lr=1e-2)
    resumed.load_state_dict(opt.state_dict())
    assert (resumed.step_count, resumed.skipped_count) == (2, 1)


def test_dropout_is_the_same_in_a_pair_and_new_in_every_step():
    masks = []
    p = nn.Parameter(torch.zeros(3))
    opt = ZOSGD([p], lr=1e-2, queries=2)

    def closure():
        masks.append(torch.nn.functional.dropout(torch.ones(64), 0.5))
        return masks[-1].sum() + p.sum()

    for _ in range(2):
        opt.step(closure)
    first, second = masks[:4], masks[4:]
    assert all(torch.equal(mask, first[0]) for mask in first)
    assert all(torch.equal(mask, second[0]) for mask in second)
    assert not torch.equal(first[0], second[0])


def test_the_global_generator_is_left_as_it_was():
    model, _ = model_and_weights()
    model.eval()
    torch.manual_seed(11)
    before = torch.get_rng_state()
    ZOSGD(model.parameters(), lr=1e-2, directions="rademacher").step(lambda: model(torch.ones(2, 5)).sum())
    assert torch.equal(torch.get_rng_state(), before)


def test_no_closure():
    model, _ = model_and_weights()
    with pytest.raises(TypeError, match=r"def closure\(\):\n\s+return loss_function"):
        ZOSGD(model.parameters(), lr=1e-2).step()


def closures_with_backward(model):
    def plain():
        loss = model(torch.ones(2, 5)).sum()
        loss.backward()
        return loss

    def enabled():
        with torch.enable_grad():
            return plain()

    return [plain, enabled]


@pytest.mark.parametrize("which", [0, 1], ids=["no grad", "enable_grad"])
def test_a_closure_that_calls_backward(which):
    model, before = model_and_weights()
    opt = ZOSGD(model.parameters(), lr=1e-2)
    with pytest.raises(RuntimeError, match=r"calls backward\(\)"):
        opt.step(closures_with_backward(model)[which])
    assert unchanged(model, before)


def test_errors_of_the_closure_itself_come_through():
    model, _ = model_and_weights()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        ZOSGD(model.parameters(), lr=1e-2).step(lambda: model(torch.ones(2, 7)).sum())


@pytest.mark.parametrize(
    ("value", "match"),
    [
        (torch.ones(3), r"one number, the loss, got a tensor of shape \(3,\)"),
        (None, "does it end with 'return loss'"),
        ("3 apples", "got str"),
    ],
)
def test_closures_that_do_not_return_a_number(value, match):
    model, before = model_and_weights()
    with pytest.raises(TypeError, match=match):
        ZOSGD(model.parameters(), lr=1e-2).step(lambda: value)
    assert unchanged(model, before)


@pytest.mark.parametrize("value", [2, 2.0, torch.tensor([[2.0]]), torch.tensor(2.0, dtype=torch.bfloat16)])
def test_kinds_of_numbers(value):
    model, _ = model_and_weights()
    loss = ZOSGD(model.parameters(), lr=1e-2).step(lambda: value)
    assert (loss.item(), loss.ndim) == (2.0, 0)


@pytest.mark.parametrize("store", STORES)
def test_a_second_ctrl_c_waits_until_the_way_back_is_done(store, monkeypatch):
    """The closure is interrupted; while the parameters go back another interrupt comes."""
    from zoedge.optim import moves

    cls = moves.Copied if store else moves.Replayed
    original = cls.back

    def interrupted(self):
        os.kill(os.getpid(), signal.SIGINT)
        original(self)

    monkeypatch.setattr(cls, "back", interrupted)
    model, before = model_and_weights()

    def closure():
        os.kill(os.getpid(), signal.SIGINT)
        return model(torch.ones(2, 5)).sum()

    with pytest.raises(KeyboardInterrupt):
        ZOSGD(model.parameters(), lr=1e-2, store_direction=store).step(closure)
    assert unchanged(model, before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("call", [1, 2, 3])
def test_running_out_of_memory_in_a_move(store, call, monkeypatch):
    from zoedge.optim import moves

    model, before = model_and_weights()
    transposed = nn.Parameter(torch.randn(600, 500).t())
    old = transposed.detach().clone()
    calls = []
    name = "_differing" if not store else None
    original = moves._differing if name else torch.empty_like

    def failing(*arguments, **settings):
        calls.append(None)
        if len(calls) == call:
            raise MemoryError("full")
        return original(*arguments, **settings)

    monkeypatch.setattr(moves if name else torch, name or "empty_like", failing)
    opt = ZOSGD([transposed, *model.parameters()], lr=1e-2, store_direction=store)
    with pytest.raises(MemoryError):
        opt.step(lambda: model(torch.ones(2, 5)).sum())
    assert unchanged(model, before)
    assert torch.equal(transposed, old)


@pytest.mark.parametrize("cls", [ZOSGD, ZOAdam])
def test_finite_losses_with_a_slope_beyond_float32(cls):
    model, before = model_and_weights()
    opt = cls(model.parameters(), lr=1e-2)
    opt.step(lambda: 1.0)
    values = iter([1e20, -1e20])
    with pytest.raises(NonFiniteLossError, match=r"loss is 1e.20"):
        opt.step(lambda: next(values))
    assert unchanged(model, before)
    assert {opt.state[p]["updates"] for p in model.parameters()} == {1}


def test_generators_are_put_back_after_an_exception():
    p = nn.Parameter(torch.zeros(3))
    torch.manual_seed(4)
    before = torch.get_rng_state()

    def closure():
        torch.rand(5)
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        ZOSGD([p], lr=1e-2).step(closure)
    assert torch.equal(torch.get_rng_state(), before)


def test_zero_grad_in_the_closure_is_harmless():
    p = nn.Parameter(torch.zeros(3))
    p.grad = torch.ones(3)
    opt = ZOSGD([p], lr=1e-2)

    def closure():
        opt.zero_grad()
        return p.sum()

    opt.step(closure)
    assert opt.step_count == 1


def test_a_closure_that_changes_a_parameter():
    p = nn.Parameter(torch.ones(3))

    def closure():
        with torch.no_grad():
            p.mul_(0.5)
        return p.sum()

    with pytest.raises(RuntimeError, match="changes a parameter"):
        ZOSGD([p], lr=1e-2).step(closure)


def test_parameters_that_share_memory():
    a = nn.Parameter(torch.ones(4))
    with pytest.raises(ValueError, match="share their memory"):
        ZOSGD([a, nn.Parameter(a.data)], lr=0.0).step(lambda: 0.0)


def test_inside_inference_mode():
    model, before = model_and_weights()
    opt = ZOSGD(model.parameters(), lr=1e-2, momentum=0.9)
    with torch.inference_mode():
        opt.step(lambda: model(torch.ones(2, 5)).sum())
    opt.step(lambda: model(torch.ones(2, 5)).sum())
    assert opt.step_count == 2
    assert not unchanged(model, before)
