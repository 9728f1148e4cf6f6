import numpy as np
import pytest
import scipy.sparse.linalg
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.curvature.nets import NETS, Problem, Quadratic
from zoedge.curvature import HessianOperator


@pytest.mark.parametrize("name", NETS)
def test_products_are_those_of_the_dense_hessian(name):
    problem = Problem(name)
    H = HessianOperator(problem, problem.params)
    dense = problem.dense()
    matrix = H.matmat(torch.eye(len(dense), dtype=torch.float64))
    torch.testing.assert_close(matrix, dense, rtol=0, atol=1e-8)
    torch.testing.assert_close(matrix, matrix.T, rtol=0, atol=1e-13 * float(dense.abs().max()) * len(dense))


@pytest.mark.parametrize("name", NETS)
def test_float32_products_are_symmetric_to_rounding(name):
    problem = Problem(name, torch.float32)
    H = HessianOperator(problem, problem.params)
    matrix = H.matmat(torch.eye(H.shape[0]))
    assert matrix.dtype == torch.float32
    torch.testing.assert_close(matrix, matrix.T, rtol=0, atol=2e-5 * float(matrix.abs().max()))


def test_a_preconditioner_makes_it_the_symmetric_form_of_its_inverse_times_h():
    problem = Problem("convolution")
    P = [torch.rand_like(p) + 0.5 for p in problem.params]
    H = HessianOperator(problem, problem.params, P)
    flat = torch.cat([part.reshape(-1) for part in P])
    expected = problem.dense() / (flat[:, None] * flat).sqrt()
    torch.testing.assert_close(H.matmat(torch.eye(len(flat), dtype=torch.float64)), expected, rtol=0, atol=1e-8)
    same = HessianOperator(problem, problem.params, flat)
    v = torch.randn(len(flat), dtype=torch.float64)
    torch.testing.assert_close(same @ v, H @ v)


@pytest.mark.parametrize("name", NETS)
def test_scipy_finds_its_eigenvalues(name):
    problem = Problem(name)
    exact = np.linalg.eigvalsh(problem.dense().numpy())
    H = HessianOperator(problem, problem.params)
    for operator in (H.to_scipy(), scipy.sparse.linalg.aslinearoperator(H)):
        found = scipy.sparse.linalg.eigsh(operator, k=3, which="LA", return_eigenvectors=False)
        np.testing.assert_allclose(np.sort(found), exact[-3:], rtol=1e-8)


def test_it_speaks_numpy_and_torch():
    problem = Problem("lstm", torch.float32)
    H = HessianOperator(problem, problem.params)
    v = np.random.default_rng(0).standard_normal((H.shape[0], 2))
    from_numpy = H.matmat(v)
    assert isinstance(from_numpy, np.ndarray)
    assert from_numpy.dtype == np.float64
    assert H.dtype == np.float32
    np.testing.assert_allclose(from_numpy, H.matmat(torch.from_numpy(v)).numpy(), rtol=1e-6)
    np.testing.assert_allclose((H @ v[:, 0]), from_numpy[:, 0], rtol=1e-6)
    np.testing.assert_allclose(H.to_scipy().matmat(v), from_numpy, rtol=1e-6)
    assert H.matvec(torch.ones(H.shape[0])).shape == (H.shape[0],)


@pytest.mark.parametrize("keep", [True, False])
def test_batches_count_by_their_size(keep):
    problem = Problem("attention")
    cuts = (5, 7, 12)
    batches = [(problem.x[a:b], problem.y[a:b]) for a, b in zip((0, *cuts), cuts, strict=False)]
    H = HessianOperator(problem.batch, problem.params, batches=batches, keep=keep)
    whole = HessianOperator(problem, problem.params)
    V = torch.randn(H.shape[0], 3, dtype=torch.float64)
    torch.testing.assert_close(H @ V, whole @ V)
    torch.testing.assert_close(H.gradient, whole.gradient)
    assert H.loss == pytest.approx(whole.loss)
    assert H.products == 3


def test_batches_may_be_a_loader_or_dictionaries():
    problem = Problem("scan")
    data = torch.utils.data.TensorDataset(problem.x, problem.y)
    loader = torch.utils.data.DataLoader(data, batch_size=5)
    dictionaries = [{"x": problem.x[:3], "y": problem.y[:3]}, {"x": problem.x[3:], "y": problem.y[3:]}]
    v = torch.randn(sum(p.numel() for p in problem.params), dtype=torch.float64)
    expected = HessianOperator(problem, problem.params) @ v
    torch.testing.assert_close(HessianOperator(problem.batch, problem.params, batches=loader) @ v, expected)
    by_name = HessianOperator(lambda b: problem.batch((b["x"], b["y"])), problem.params, batches=dictionaries)
    torch.testing.assert_close(by_name @ v, expected)


def test_nothing_is_touched():
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.GELU(), nn.Linear(4, 1))
    x = torch.randn(10, 3)

    def loss():
        torch.rand(1)
        return model(x).square().mean()

    loss().backward()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    objects = {name: id(value) for name, value in model.named_buffers()}
    gradients = [(p.grad, p.grad.clone(), p._version) for p in model.parameters() if p.grad is not None]
    generator = torch.get_rng_state()
    H = HessianOperator(loss, model.parameters())
    H.matvec(torch.randn(H.shape[0], generator=torch.Generator().manual_seed(0)))
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    assert {name: id(value) for name, value in model.named_buffers()} == objects
    for p, (grad, copy, version) in zip(model.parameters(), gradients, strict=True):
        assert p.grad is grad
        assert torch.equal(grad, copy)
        assert p._version == version
    assert torch.equal(torch.get_rng_state(), generator)
    assert not torch.nn.modules.module._global_forward_pre_hooks
    # Not even the hooks, if the loss fails.
    with pytest.raises(ZeroDivisionError):
        HessianOperator(lambda: model(x).sum() / (1 // 0), model.parameters())
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert all(p.grad is grad for p, (grad, *_) in zip(model.parameters(), gradients, strict=True))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_it_works_where_gradients_are_off(context):
    problem = Quadratic(20)
    with context():
        H = HessianOperator(problem, [problem.x])
        v = torch.randn(20, dtype=torch.float64)
        torch.testing.assert_close(H @ v, problem.A @ v)


def test_parameters_that_do_not_train_are_left_out():
    problem = Problem("convolution")
    problem.params[0].requires_grad_(False)
    H = HessianOperator(problem, problem.params)
    size = problem.params[0].numel()
    assert H.shape[0] == sum(p.numel() for p in problem.params) - size
    for p in problem.params:
        p.requires_grad_(True)
    identity = torch.eye(H.shape[0], dtype=torch.float64)
    torch.testing.assert_close(H @ identity, problem.dense()[size:, size:], rtol=0, atol=1e-8)


def test_a_loss_that_is_linear_has_the_hessian_zero():
    weights, other = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    v = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    assert torch.equal(HessianOperator(lambda: weights.sum() + other.sum(), [weights, other]) @ v, torch.zeros(5))
    mixed = HessianOperator(lambda: weights.sum() + other.square().sum(), [weights, other])
    assert torch.equal(mixed @ v, torch.tensor([0.0, 0.0, 0.0, 8.0, 10.0]))


@pytest.mark.parametrize("keep", [True, False])
def test_a_loss_that_holds_derivatives_itself(keep):
    """Third derivatives of the activation are needed, which the shortcut for GELU does not have."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 4), nn.GELU(), nn.Linear(4, 1)).double()
    x = torch.randn(6, 1, dtype=torch.float64, requires_grad=True)
    params = list(model.parameters())

    def loss():
        (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return slope.square().mean() + model(x).square().mean()

    H = HessianOperator(loss, params, keep=keep)
    step, v = 1e-5, torch.randn(H.shape[0], dtype=torch.float64)
    product = H @ v
    gradients = []
    for sign in (1, -1):
        with torch.no_grad():
            for p, part in zip(params, v.split([p.numel() for p in params]), strict=True):
                p += sign * step * part.view_as(p) * (1 if sign == 1 else 2)
        gradients.append(torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss(), params)]))
    torch.testing.assert_close(product, (gradients[0] - gradients[1]) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", ["checkpoint", "vmap", "second derivative", "tied"])
def test_losses_of_other_kinds(name):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.SiLU(), nn.Linear(5, 1)).double()
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)

    def loss():
        if name == "checkpoint":
            return checkpoint(model, x, use_reentrant=False).square().mean()
        if name == "vmap":
            return torch.func.vmap(lambda row: model(row).square())(x).mean()
        if name == "second derivative":
            (first,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
            return (second + x).square().mean() + model(x).square().mean()
        return model(x).square().mean()

    params = list(model.parameters())
    H = HessianOperator(loss, params * 2 if name == "tied" else params)
    gradients = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss(), params, create_graph=True)])
    rows = [torch.autograd.grad(g, params, retain_graph=True, materialize_grads=True) for g in gradients]
    dense = torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])
    torch.testing.assert_close(H @ torch.eye(len(dense), dtype=torch.float64), dense, rtol=0, atol=1e-10)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loader_leaves_the_generator_alone(shuffle):
    problem = Problem("scan")
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(problem.x, problem.y), 5, shuffle=shuffle)
    state, count = torch.get_rng_state(), sum(p.numel() for p in problem.params)
    HessianOperator(problem.batch, problem.params, batches=loader).matvec(torch.ones(count, dtype=torch.float64))
    assert torch.equal(torch.get_rng_state(), state)


def test_16_bit_parameters_give_float32_products():
    problem = Problem("convolution", torch.bfloat16)
    H = HessianOperator(problem, problem.params)
    assert H.dtype == np.float32
    same = Problem("convolution", torch.float32)
    same.x, same.y = problem.x.float(), problem.y.float()
    for p, rounded in zip(same.params, problem.params, strict=True):
        p.data.copy_(rounded.data)
    v = torch.randn(H.shape[0], generator=torch.Generator().manual_seed(0))
    product, exact = H @ v, HessianOperator(same, same.params) @ v
    assert float((product - exact).norm() / exact.norm()) < 0.05
