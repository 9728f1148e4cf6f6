"""A stretch of training: a copy of where it began, how far it went, and whether that way goes down on new data."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from zoedge.optim.interrupts import Interrupts
from zoedge.optim.loss import Closure, Loss
from zoedge.optim.zeroth_order import ZerothOrder

# How far beyond and before the present point the slope of the way is measured, as a share of the way.
_SHARE = 0.25


class Stretch:
    """Training since a snapshot of parameters and optimizer.

    Args:
        optimizer: as it is at the beginning.

    Attributes:
        steps: taken since then.
        lr_squares: sum of their squared step sizes.
        decrease: of the loss, that these steps promised, each on its own data.
    """

    def __init__(self, optimizer: ZerothOrder) -> None:
        self._optimizer = optimizer
        self._params = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
        self._start = [p.detach().clone() for p in self._params]
        self._state = [_copied(optimizer.state.get(p, {})) for p in self._params]
        self.steps, self.lr_squares, self.decrease = 0, 0.0, 0.0

    def add(self, lr: float, decrease: float) -> None:
        """Take in a step."""
        self.steps += 1
        self.lr_squares += lr**2
        self.decrease += decrease

    @property
    def size(self) -> float:
        """|x| at the beginning."""
        return _norm(self._start)

    @torch.no_grad()
    def length(self) -> float:
        """|x - x0|."""
        return _norm([p - start for p, start in zip(self._params, self._start, strict=True)])

    @torch.inference_mode(mode=False)
    @torch.no_grad()
    def slope(self, closure: Closure) -> float:
        """The derivative of a loss along the way from the beginning to here; NaN if the loss is not finite.

        The random generators and the parameters are left as they were.
        """
        here = [p.detach().clone() for p in self._params]
        with Interrupts() as interrupts:
            loss = Loss(closure, self._params, interrupts)
            try:
                losses = [self._evaluate(loss, here, 1 + share) for share in (_SHARE, -_SHARE)]
            finally:
                loss.restore_generators()
                _put(self._params, here)
        slope = (losses[0] - losses[1]) / (2 * _SHARE)
        return slope if math.isfinite(slope) else math.nan

    def _evaluate(self, loss: Loss, here: Sequence[Tensor], share: float) -> float:
        """The loss so far along the way; 1 is here."""
        for p, x, start in zip(self._params, here, self._start, strict=True):
            torch.lerp(start, x, share, out=p)
        return loss()

    @torch.no_grad()
    def undo(self) -> None:
        """Put parameters and the optimizer's buffers back to the beginning."""
        _put(self._params, self._start)
        for p, state in zip(self._params, self._state, strict=True):
            self._optimizer.state[p] = _copied(state)
        self.steps, self.lr_squares, self.decrease = 0, 0.0, 0.0

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on."""
        return {
            "start": [start.clone() for start in self._start],
            "state": [_copied(state) for state in self._state],
            "numbers": (self.steps, self.lr_squares, self.decrease),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        if [tuple(t.shape) for t in state["start"]] != [tuple(p.shape) for p in self._params]:
            raise ValueError("this state belongs to other parameters")
        _put(self._start, state["start"])
        self._state = [_copied(entry) for entry in state["state"]]
        self.steps, self.lr_squares, self.decrease = state["numbers"]


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in state.items()}


def _put(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for tensor, value in zip(to, values, strict=True):
        tensor.copy_(value)


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.sqrt(sum(float(torch.linalg.vector_norm(t.float())) ** 2 for t in tensors))
