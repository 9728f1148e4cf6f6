import math

import pytest
import torch

from zoedge.monitor.stretch import Stretch
from zoedge.optim import ZOSGD


def moved(momentum=0.5):
    """A stretch of three steps on 1/2 |x|^2."""
    x = torch.nn.Parameter(torch.ones(6))
    opt = ZOSGD([x], lr=0.01, momentum=momentum)
    opt.step(lambda: 0.5 * x.square().sum())
    stretch = Stretch(opt)
    start = x.detach().clone()
    for _ in range(3):
        opt.step(lambda: 0.5 * x.square().sum())
        stretch.add(0.01, 0.5)
    return x, opt, stretch, start


def test_slope_along_the_way():
    x, _, stretch, start = moved()
    way = x.detach() - start
    assert stretch.slope(lambda: 0.5 * x.square().sum()) == pytest.approx(float(x.detach() @ way), rel=1e-3)
    assert stretch.length() == pytest.approx(float(way.norm()))
    assert stretch.size == pytest.approx(float(start.norm()))
    assert (stretch.steps, stretch.decrease) == (3, 1.5)
    assert stretch.lr_squares == pytest.approx(3e-4)


def test_measuring_leaves_no_trace():
    x, _, stretch, _ = moved()
    before, state, seen = x.detach().clone(), torch.get_rng_state(), []

    def closure():
        seen.append((x.detach().clone(), torch.rand(())))
        return 0.5 * x.square().sum()

    stretch.slope(closure)
    assert torch.equal(x, before)
    assert torch.equal(torch.get_rng_state(), state)
    (first, noise), (second, same) = seen
    assert not torch.equal(first, second)
    assert noise == same


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_a_closure_that_raises_leaves_the_parameters(error):
    x, _, stretch, _ = moved()
    before = x.detach().clone()

    def closure():
        raise error

    with pytest.raises(error):
        stretch.slope(closure)
    assert torch.equal(x, before)


def test_a_loss_that_is_not_finite():
    _, _, stretch, _ = moved()
    assert math.isnan(stretch.slope(lambda: math.inf))


def test_undo():
    x, opt, stretch, start = moved()
    stretch.undo()
    assert torch.equal(x, start)
    assert opt.state[x]["updates"] == 1
    assert stretch.steps == 0
    opt.step(lambda: 0.5 * x.square().sum())
    stretch.undo()  # what was put back is not what was changed since
    assert torch.equal(x, start)
    assert opt.state[x]["updates"] == 1
