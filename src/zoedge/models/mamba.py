"""Mamba: a selective state space model over tokens."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

# A state that decays by exp(-_FORGET) in one step is forgotten: a faster decay changes nothing that float32 can see.
_FORGET = 16.0
# Steps that the cumulative form of the scan takes at once: exp(_CHUNK * _FORGET / 2) must be a float32, with room above
# it for what derivatives are multiplied by.
_CHUNK = 5


class Mamba(nn.Module):
    """An embedding, blocks with RMSNorm before and a shortcut around them, RMSNorm, a linear layer at every position.

    Args:
        tokens: number of different tokens.
        classes: number of outputs.
        width: of the model.
        depth: number of blocks.
        expand: inner width over width.
        state: size of the state of every inner channel.
        kernel: of the causal convolution.
        rank: of the projection to step sizes.
    """

    def __init__(
        self,
        tokens: int,
        classes: int,
        width: int = 64,
        depth: int = 2,
        expand: int = 2,
        state: int = 16,
        kernel: int = 4,
        rank: int = 4,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, expand * width, state, kernel, rank) for _ in range(depth)))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Outputs at every position, shape (n, length, classes)."""
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


class Block(nn.Module):
    """A selective state space with a causal convolution before it and a gate after it."""

    def __init__(self, width: int, inner: int, state: int, kernel: int, rank: int) -> None:
        super().__init__()
        self.rank, self.state = rank, state
        self.norm = nn.RMSNorm(width)
        self.expand, self.reduce = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)
        self.convolution = nn.Conv1d(inner, inner, kernel, groups=inner, padding=kernel - 1)
        self.select = nn.Linear(inner, rank + 2 * state, bias=False)
        self.step_size = nn.Linear(rank, inner)
        self.log_decay = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(inner, 1))
        self.skip = nn.Parameter(torch.ones(inner))
        # Step sizes spread between 1e-3 and 1e-1 at the start, as softplus of the bias gives them.
        start = torch.exp(torch.rand(inner) * math.log(100) + math.log(1e-3))
        with torch.no_grad():
            self.step_size.bias.copy_(start + torch.log(-torch.expm1(-start)))

    def forward(self, x: Tensor) -> Tensor:
        """Shape (n, length, width)."""
        inner, gate = self.expand(self.norm(x)).chunk(2, -1)
        u = silu(self.convolution(inner.mT)[..., : x.shape[1]].mT)
        low, into, out = self.select(u).split([self.rank, self.state, self.state], -1)
        dt = softplus(self.step_size(low))[..., None]
        decay = -dt * self.log_decay.exp()
        states = scan(decay, dt * into[:, :, None] * u[..., None])
        y = (states @ out[..., None]).squeeze(-1) + self.skip * u
        return x + self.reduce(y * silu(gate))


def scan(decay: Tensor, inputs: Tensor) -> Tensor:
    """h_t = exp(decay_t) h_{t-1} + inputs_t from h = 0, along dimension 1.

    With D the cumulative sum of decay, h_t = exp(D_t) * sum_{s <= t} exp(-D_s) inputs_s: no loop over time. To stay
    within float32, D is taken from the middle of its range, chunks of time are short, and no decay is faster than
    exp(-16) in one step.

    Args:
        decay: not positive, shape (n, length, channels, state).
        inputs: the same shape.
    """
    states, last = [], None
    for log, x in zip(decay.clamp(min=-_FORGET).split(_CHUNK, 1), inputs.split(_CHUNK, 1), strict=True):
        total = _cumulative(log)
        middle = total - (total[:, -1:] / 2).detach()
        # A product, no quotient: the second derivative of 1 / exp would overflow where exp(-) does not.
        h = middle.exp() * _cumulative(x * (-middle).exp())
        if last is not None:
            h = h + total.exp() * last
        last = h[:, -1:]
        states.append(h)
    return torch.cat(states, 1)


def _cumulative(x: Tensor) -> Tensor:
    """Cumulative sum along dimension 1; on a CPU a product with a triangular matrix is several times faster."""
    triangle = torch.ones(x.shape[1], x.shape[1], dtype=x.dtype, device=x.device).tril()
    return (triangle @ x.flatten(2)).view_as(x)
