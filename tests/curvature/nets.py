"""Small networks of every kind, with data, and their dense Hessians by another route."""

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


class Attention(nn.Module):
    """A transformer block with LayerNorm and fused attention on a few tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(3, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, activation="gelu", batch_first=True)
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.embed(x)).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 5, num_layers=2, batch_first=True)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


class Scan(nn.Module):
    """A selective state space by hand: SiLU, softplus and a loop over time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.step, self.head = nn.Linear(3, 6), nn.Linear(3, 6), nn.Linear(6, 2)
        self.decay = nn.Parameter(torch.linspace(0.1, 1.0, 6))

    def forward(self, x: Tensor) -> Tensor:
        u, dt = nn.functional.silu(self.inner(x)), nn.functional.softplus(self.step(x))
        state = torch.zeros_like(u[:, 0])
        for t in range(x.shape[1]):
            state = torch.exp(-dt[:, t] * self.decay) * state + dt[:, t] * u[:, t]
        return self.head(state)


def convolution() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.GroupNorm(2, 4), nn.GELU(), nn.AvgPool2d(2),
        nn.Conv2d(4, 4, 3), nn.GELU(approximate="tanh"), nn.Flatten(), nn.Linear(16, 2),
    )  # fmt: skip


IMAGES, SEQUENCES = (12, 1, 8, 8), (12, 5, 3)
NETS = {
    "convolution": (convolution, IMAGES),
    "attention": (Attention, SEQUENCES),
    "lstm": (Recurrent, SEQUENCES),
    "scan": (Scan, SEQUENCES),
}


class Problem:
    """A network with data; calling it gives the loss."""

    def __init__(self, name: str, dtype: torch.dtype = torch.float64) -> None:
        torch.manual_seed(0)
        make, shape = NETS[name]
        self.model = make().to(dtype)
        self.x = torch.randn(shape, dtype=dtype)
        self.y = torch.randn(shape[0], 2, dtype=dtype)
        self.params = list(self.model.parameters())

    def __call__(self) -> Tensor:
        return 0.5 * (self.model(self.x) - self.y).square().sum(1).mean()

    def batch(self, xy: tuple[Tensor, Tensor]) -> Tensor:
        return 0.5 * (self.model(xy[0]) - xy[1]).square().sum(1).mean()

    def dense(self) -> Tensor:
        """The Hessian by torch.autograd.functional, on the network as a function of one vector."""
        names = [name for name, _ in self.model.named_parameters()]

        def loss(flat: Tensor) -> Tensor:
            parts = flat.split([p.numel() for p in self.params])
            values = {n: part.view_as(p) for n, part, p in zip(names, parts, self.params, strict=True)}
            out = torch.func.functional_call(self.model, values, (self.x,))
            return 0.5 * (out - self.y).square().sum(1).mean()

        flat = torch.cat([p.detach().reshape(-1) for p in self.params])
        with sdpa_kernel(SDPBackend.MATH):
            return torch.autograd.functional.hessian(loss, flat)  # pyright: ignore[reportReturnType]


class Quadratic:
    """0.5 x^T A x with a few outlying and many negative eigenvalues, rotated."""

    def __init__(self, d: int = 300, seed: int = 0, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(seed)
        Q, _ = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64))
        bulk = torch.randn(d, generator=generator, dtype=torch.float64) * 0.1 + 0.05
        bulk[:6] = torch.tensor([20.0, 12.0, 7.0, 4.0, -3.0, 2.5])
        self.eigenvalues = bulk.sort(descending=True).values.numpy()
        self.A = ((Q * bulk) @ Q.T).to(dtype)
        self.x = nn.Parameter(torch.zeros(d, dtype=dtype))

    def __call__(self) -> Tensor:
        return 0.5 * self.x @ self.A @ self.x
