"""Every mistake gets an error that says what to do."""

import pytest
import torch
from torch import nn

from tests.curvature.nets import Problem, Quadratic
from zoedge.curvature import (
    HessianOperator,
    measure,
    relative_commutator,
    spectral_density,
    spectrum,
    top_eigenvalues,
    trace,
)
from zoedge.optim import ZOSGD


def test_a_loss_that_does_not_depend_on_a_parameter():
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
    with pytest.raises(ValueError, match=r"does not depend on parameter 1, of shape \(3,\).*requires_grad_\(False\)"):
        HessianOperator(lambda: used.square().sum(), [used, unused])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite(value):
    weights = nn.Parameter(torch.ones(2))
    with pytest.raises(ArithmeticError, match=f"the loss is {value}.*diverged"):
        HessianOperator(lambda: weights.sum() * value, [weights])


def test_a_product_that_is_not_finite():
    weights = nn.Parameter(torch.zeros(2))
    with pytest.raises(ArithmeticError, match="not finite though the loss is: look for the square root"):
        HessianOperator(lambda: weights.abs().pow(1.5).sum(), [weights]).matvec(torch.ones(2))


def test_dropout():
    model = nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), nn.Linear(50, 1))
    with pytest.raises(ValueError, match=r"not deterministic.*dropout \(call model.eval\(\)\)"):
        HessianOperator(lambda: model(torch.ones(4, 3)).square().mean(), model.parameters())
    model.eval()
    HessianOperator(lambda: model(torch.ones(4, 3)).square().mean(), model.parameters())


def test_a_new_batch_in_every_call():
    weights, batches = nn.Parameter(torch.ones(3)), iter(torch.randn(10, 3))
    with pytest.raises(ValueError, match=r"not deterministic.*a new mini-batch in every call"):
        HessianOperator(lambda: (weights * next(batches)).square().sum(), [weights])


@pytest.mark.parametrize("how", ["in place", "data", "new data", "optimizer"])
@pytest.mark.parametrize("keep", [True, False])
def test_use_after_the_parameters_have_changed(how, keep):
    problem = Quadratic(20)
    H = HessianOperator(problem, [problem.x], keep=keep)
    H.matvec(torch.ones(20, dtype=torch.float64))
    if how == "in place":
        with torch.no_grad():
            problem.x.add_(1)
    elif how == "data":
        problem.x.data.add_(1)
    elif how == "new data":
        problem.x.data = problem.x.data + 1
    else:
        with torch.no_grad():
            problem.x.add_(1)
        H = HessianOperator(problem, [problem.x], keep=keep)
        ZOSGD([problem.x], lr=1e-3).step(problem)
    with pytest.raises(RuntimeError, match=r"parameters have changed since.*build a new one"):
        H.matvec(torch.ones(20, dtype=torch.float64))


def test_a_closure_that_calls_backward():
    model = nn.Linear(2, 1)

    def closure():
        loss = model(torch.ones(3, 2)).square().mean()
        loss.backward()
        return loss

    with pytest.raises(RuntimeError, match=r"calls backward\(\).*Return the loss only"):
        HessianOperator(closure, model.parameters())
    assert all(p.grad is None for p in model.parameters())


def test_losses_that_are_none():
    weights = nn.Parameter(torch.ones(2))
    for loss, error, message in (
        (lambda: weights.sum().item(), TypeError, "got float.*not loss.item"),
        (lambda: None, TypeError, "got NoneType"),
        (lambda: weights.square(), TypeError, r"one number, got shape \(2,\)"),
        (lambda: weights.detach().sum(), ValueError, "does not depend on the parameters by differentiable"),
        (3.0, TypeError, "closure must be a function"),
    ):
        with pytest.raises(error, match=message):
            HessianOperator(loss, [weights])  # pyright: ignore[reportArgumentType]

    def step():
        with torch.no_grad():
            weights.add_(1)
        return weights.sum()

    with pytest.raises(RuntimeError, match="closure changes the parameters"):
        HessianOperator(step, [weights])


def test_parameters_that_are_none():
    weights = nn.Parameter(torch.ones(2))
    for params, error, message in (
        (weights, TypeError, r"pass \[tensor\]"),
        ([], ValueError, "no parameter requires grad"),
        (["w"], TypeError, "must be tensors, got str"),
        ([weights * 2], TypeError, "leaf tensors"),
        ([weights.detach()], ValueError, "no parameter requires grad"),
    ):
        with pytest.raises(error, match=message):
            HessianOperator(lambda: weights.sum(), params)  # pyright: ignore[reportArgumentType]


def test_preconditioners_and_vectors_of_the_wrong_kind():
    problem = Quadratic(20)
    for P, message in (
        (torch.ones(3), "3 entries, but the parameters have 20"),
        (torch.zeros(20), "finite and positive"),
        (torch.full((20,), torch.nan), "finite and positive"),
        ([torch.ones(10), torch.ones(10)], "shapes of the parameters"),
    ):
        with pytest.raises(ValueError, match=message):
            HessianOperator(problem, [problem.x], P)
    H = HessianOperator(problem, [problem.x])
    with pytest.raises(ValueError, match="vectors must have 20 entries, got rows of shape"):
        H.matvec(torch.ones(3))
    with pytest.raises(ValueError, match="without it"):
        relative_commutator(HessianOperator(problem, [problem.x], torch.ones(20)), torch.ones(20))


def test_a_model_whose_second_derivative_is_wrong():
    """PyTorch's weight_norm has a backward that is not symmetric."""
    torch.manual_seed(0)
    model = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3))
    x = torch.randn(10, 4)
    H = HessianOperator(lambda: model(x).square().mean(), model.parameters())
    with pytest.raises(ArithmeticError, match=r"not symmetric.*weight_norm is known for it"):
        top_eigenvalues(H, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_little_dropout_is_found(dtype):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.02), nn.GELU(), nn.Linear(16, 1)).to(dtype)
    x = torch.randn(64, 8, dtype=dtype)
    with pytest.raises(ValueError, match="not deterministic"):
        HessianOperator(lambda: model(x).square().mean(), model.parameters())


def test_weight_decay_does_not_hide_what_is_wrong():
    weights = nn.Parameter(torch.ones(2))
    opt = torch.optim.SGD([weights], lr=0.1, weight_decay=1e-3)
    with pytest.raises(TypeError, match=r"not loss.item\(\)"):
        measure(opt, lambda: weights.sum().item())
    with pytest.raises(ValueError, match="differentiable operations"):
        measure(opt, lambda: weights.detach().sum())
    with pytest.raises(TypeError, match="does it end with 'return loss'"):
        measure(opt, lambda: None)


def test_data_that_change_when_graphs_are_not_kept():
    weights, z = nn.Parameter(torch.ones(3)), torch.ones(3)
    H = HessianOperator(lambda: (z * weights).square().sum(), [weights], keep=False)
    H.matvec(torch.ones(3))
    z.mul_(2)
    with pytest.raises(RuntimeError, match="the loss has changed since"):
        H.matvec(torch.ones(3))


def test_vectors_that_are_not_numbers():
    problem = Quadratic(20)
    H = HessianOperator(problem, [problem.x])
    with pytest.raises(ValueError, match="vectors must be finite"):
        H.matvec(torch.full((20,), torch.nan))
    with pytest.raises(TypeError, match="vectors must be real"):
        H.matvec(torch.ones(20, dtype=torch.complex64))
    assert torch.equal(H.matvec(torch.ones(20, dtype=torch.int64)), H.matvec(torch.ones(20, dtype=torch.float64)))
    with pytest.raises(ValueError, match="sum is not zero"):
        top_eigenvalues(H, start=torch.zeros(2, 20))


def test_batches_of_the_wrong_kind():
    problem = Problem("lstm")
    for batches, error, message in (
        (iter([(problem.x, problem.y)]), TypeError, "iterable more than once"),
        ([], ValueError, "at least one example"),
        ([3.0], TypeError, "length of its first tensor"),
    ):
        with pytest.raises(error, match=message):
            HessianOperator(problem.batch, problem.params, batches=batches)


def test_numbers_of_the_wrong_kind():
    problem = Quadratic(20)
    H = HessianOperator(problem, [problem.x])
    for call, error, message in (
        (lambda: top_eigenvalues(H, 21), ValueError, "k must be at most the dimension 20"),
        (lambda: top_eigenvalues(H, 0), ValueError, "k must be at least 1"),
        (lambda: top_eigenvalues(H, 2, memory=8 * 20 * 3), ValueError, "raise memory or lower k"),
        (lambda: top_eigenvalues(H, start=torch.ones(3)), ValueError, "start must be vectors of 20 entries"),
        (lambda: top_eigenvalues(H, 5, max_products=4), ValueError, "max_products must be at least 5"),
        (lambda: trace(H, 0), ValueError, "probes must be at least 1"),
        (lambda: trace(H, 5, generator=0), TypeError, r"torch.Generator\(\).manual_seed"),  # pyright: ignore
        (lambda: spectrum(H, 2), ValueError, "budget must be at least 4"),
        (lambda: spectrum(H, memory=8), ValueError, "holds 0 vectors.*give it 3360 for 20"),
        (lambda: spectral_density(H, memory=8), ValueError, "raise memory or lower steps"),
    ):
        with pytest.raises(error, match=message):
            call()
