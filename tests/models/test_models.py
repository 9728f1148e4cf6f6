import pytest
import torch
from torch import nn

from zoedge.curvature import HessianOperator
from zoedge.models import CNN, IMAGE_MODELS, LSTM, MLP, TOKEN_MODELS, Mamba, ResNet20, ViT
from zoedge.models.mamba import scan
from zoedge.models.vit import sine_cosine


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_parameter_counts_of_the_paper_s_settings():
    image = (3, 32, 32)
    assert count(CNN(image, 4)) == 544_100
    # Stem; stages of six 3x3 convolutions, the first of the later ones from half the width; two 1x1 shortcuts.
    convolutions = 9 * (3 * 16 + 6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64) + 16 * 32 + 32 * 64
    norms = 2 * (16 * 7 + 32 * 6 + 64 * 6)
    assert count(ResNet20(image, 4)) == convolutions + norms + 64 * 4 + 4
    # patches; blocks of attention, MLP and two norms; norm; head
    block = 4 * (64 * 64 + 64) + 2 * 64 * 256 + 256 + 64 + 2 * 2 * 64
    assert count(ViT(image, 4)) == (48 * 64 + 64) + 3 * block + 2 * 64 + 64 * 4 + 4
    assert count(LSTM(4, 4)) == 4 * 48 + 2 * 4 * (2 * 48 * 48 + 2 * 48) + 48 * 4 + 4
    inner = 64 * 256 + 128 * 64 + 128 * 5 + 128 * 36 + 128 * 5 + 128 * 16 + 128 + 64
    assert count(Mamba(4, 4)) == 4 * 64 + 2 * inner + 64 + 64 * 4 + 4


@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_image_models(name):
    model = IMAGE_MODELS[name]((1, 8, 8), 3)
    assert model(torch.randn(5, 1, 8, 8)).shape == (5, 3)
    assert model(torch.randn(2, 1, 8, 8).to(memory_format=torch.channels_last)).shape == (2, 3)


@pytest.mark.parametrize("name", TOKEN_MODELS)
def test_token_models_do_not_look_ahead(name):
    torch.manual_seed(0)
    model = TOKEN_MODELS[name](4, 4)
    tokens = torch.randint(4, (2, 15))
    changed = tokens.clone()
    changed[:, 9] = (changed[:, 9] + 1) % 4
    before, after = model(tokens), model(changed)
    assert before.shape == (2, 15, 4)
    torch.testing.assert_close(before[:, :9], after[:, :9])
    assert not torch.allclose(before[:, 9:], after[:, 9:])


@pytest.mark.parametrize(
    "model",
    [
        MLP((1, 4, 4), 2, width=4),
        CNN((1, 4, 4), 2, width=2, hidden=4),
        ResNet20((1, 8, 8), 2, width=2, depth=1, groups=2),
        ViT((1, 4, 4), 2, width=4, depth=1, heads=2, patch=2),
        LSTM(3, 3, width=3, hidden=3, depth=1),
        Mamba(3, 3, width=3, depth=1, state=2, rank=2),
    ],
    ids=lambda model: type(model).__name__,
)
def test_every_model_is_twice_differentiable(model):
    """Products with the Hessian agree with differences of gradients."""
    torch.manual_seed(0)
    model = model.double()
    tokens = isinstance(model, LSTM | Mamba)
    size = 8 if isinstance(model, ResNet20) else 4
    inputs = torch.randint(3, (4, 10)) if tokens else torch.randn(4, 1, size, size, dtype=torch.float64)
    params = list(model.parameters())

    def loss():
        return model(inputs).square().sum()

    def gradient():
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss(), params)])

    H = HessianOperator(loss, params)
    v = torch.randn(H.shape[0], dtype=torch.float64)
    product, h = H @ v, 1e-6
    parts = [part.view_as(p) for part, p in zip(v.split([p.numel() for p in params]), params, strict=True)]
    gradients = []
    for move in (h, -2 * h):
        with torch.no_grad():
            for p, part in zip(params, parts, strict=True):
                p.add_(part, alpha=move)
        gradients.append(gradient())
    difference = (gradients[0] - gradients[1]) / (2 * h)
    assert float((product - difference).norm() / product.norm()) < 1e-5


def test_scan_is_the_recursion():
    torch.manual_seed(0)
    decay = -torch.rand(2, 37, 3, 4, dtype=torch.float64) * 5
    decay[0, 5:9] = -500.0  # forgets all
    inputs = torch.randn(2, 37, 3, 4, dtype=torch.float64)
    h, expected = torch.zeros(2, 3, 4, dtype=torch.float64), []
    for t in range(37):
        h = decay[:, t].exp() * h + inputs[:, t]
        expected.append(h)
    torch.testing.assert_close(scan(decay, inputs), torch.stack(expected, 1), rtol=1e-6, atol=1e-6)
    single = scan(decay.float(), inputs.float())
    torch.testing.assert_close(single, torch.stack(expected, 1).float(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("rate", [0.1, 5.0, 15.0, 19.9, 30.0])
def test_scan_has_two_derivatives_in_float32_however_fast_it_forgets(rate):
    def second(dtype):
        torch.manual_seed(0)
        decay = (-rate * torch.ones(1, 20, 2, 2, dtype=dtype)).requires_grad_()
        inputs = torch.randn(1, 20, 2, 2, dtype=torch.float64).to(dtype).requires_grad_()
        first = torch.autograd.grad(scan(decay, inputs).square().sum(), [decay, inputs], create_graph=True)
        return torch.stack(torch.autograd.grad(torch.stack(first).square().sum(), [decay, inputs]))

    # Vectors that the derivatives are multiplied with may be large.
    large = (1e9 * torch.randn(1, 20, 2, 2)).requires_grad_()
    (gradient,) = torch.autograd.grad(scan(-rate * torch.ones(1, 20, 2, 2), large).square().sum(), large)
    assert gradient.isfinite().all()
    single, double = second(torch.float32), second(torch.float64)
    assert float((single - double).norm()) <= 1e-4 * float(double.norm())


def test_positions_tell_all_patches_apart():
    positions = sine_cosine(8, 8, 64)
    assert positions.shape == (64, 64)
    distances = torch.cdist(positions, positions) + torch.eye(64) * 10
    assert distances.min() > 0.1


def test_settings_that_do_not_fit():
    for make, message in (
        (lambda: ViT((3, 32, 32), 4, patch=5), "patch must divide"),
        (lambda: ViT((3, 32, 32), 4, width=60), "multiple of 4 and of the 8 heads"),
        (lambda: ResNet20((3, 32, 32), 4, width=10), "groups must divide the width"),
    ):
        with pytest.raises(ValueError, match=message):
            make()
