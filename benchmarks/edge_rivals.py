"""Step sizes of others, as published, each one step of a plain loop: FZOO and MEAZO."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Loss = Callable[[], float]


class FZOO:
    """Divides the step by the standard deviation of the perturbed losses.

    Rademacher directions, one-sided differences: queries + 1 forward passes in a step.
    """

    def __init__(self, params: Sequence[Tensor], lr: float, seed: int, mu: float = 1e-3, queries: int = 8) -> None:
        self._params, self._lr, self._mu, self._queries = params, lr, mu, queries
        self._generator = torch.Generator().manual_seed(seed)

    def step(self, loss: Loss) -> float:
        base = loss()
        directions, losses = [], []
        for _ in range(self._queries):
            u = [torch.randint(0, 2, p.shape, generator=self._generator).mul_(2).sub_(1).to(p) for p in self._params]
            _move(self._params, u, self._mu)
            losses.append(loss())
            _move(self._params, u, -self._mu)
            directions.append(u)
        spread = float(torch.tensor(losses, dtype=torch.float64).std())
        if spread > 0:
            for u, value in zip(directions, losses, strict=True):
                _move(self._params, u, -self._lr * (value - base) / (self._mu * self._queries * spread))
        return base


class MEAZO:
    """Divides the step by the root of a running average of the squared projected gradient, one number for all."""

    def __init__(self, params: Sequence[Tensor], lr: float, seed: int, mu: float = 1e-3, beta: float = 0.99) -> None:
        self._params, self._lr, self._mu, self._beta = params, lr, mu, beta
        self._generator = torch.Generator().manual_seed(seed)
        self._steps, self._square = 0, 0.0

    def step(self, loss: Loss) -> float:
        u = [torch.randn(p.shape, generator=self._generator).to(p) for p in self._params]
        _move(self._params, u, self._mu)
        plus = loss()
        _move(self._params, u, -2 * self._mu)
        minus = loss()
        _move(self._params, u, self._mu)
        slope = (plus - minus) / (2 * self._mu)
        self._steps += 1
        self._square = self._beta * self._square + (1 - self._beta) * slope**2
        root = (self._square / (1 - self._beta**self._steps)) ** 0.5
        _move(self._params, u, -self._lr * slope / (root + 1e-12))
        return (plus + minus) / 2


def _move(params: Sequence[Tensor], u: Sequence[Tensor], share: float) -> None:
    for p, v in zip(params, u, strict=True):
        p.add_(v, alpha=share)
