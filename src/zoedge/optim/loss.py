"""Calling the user's closure: one number, the same random numbers every time, no backward pass."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from zoedge.optim.interrupts import Interrupts

Closure = Callable[[], Any]

_BACKWARD = (
    "the closure calls backward(), which a zeroth-order step neither needs nor can use. Return the loss only:\n"
    "    def closure():\n"
    "        return loss_function(model(inputs), targets)\n"
    "(A loss that itself needs derivatives takes them inside torch.enable_grad(), by torch.autograd.grad.)"
)
_CHANGED = (
    "the closure changes a parameter that is being trained (an Embedding with max_norm does, for one), so there is no "
    "one point at which the losses of a step are taken: change parameters between steps"
)


class Loss:
    """The loss of one step. Every call starts from the same state of PyTorch's random generators.

    Dropout thus draws the same mask in the evaluations of a step, and after the step the generators have moved on as
    after a single evaluation.

    Attributes:
        nonfinite: the first value that was NaN or infinite, or ``None``.
    """

    def __init__(self, closure: Closure, params: Sequence[Tensor], interrupts: Interrupts) -> None:
        self._closure = closure
        self._interrupts = interrupts
        self._params = params
        self._device = params[0].device
        self._generators = self._get_generators()
        self.nonfinite: float | None = None

    def __call__(self) -> float:
        """Evaluate at the parameters as they are."""
        self.restore_generators()
        before, values = self._gradients(), self._values()
        try:
            with self._interrupts.allowed():
                value = self._closure()
        except RuntimeError as error:
            if "does not require grad and does not have a grad_fn" in str(error):
                raise RuntimeError(_BACKWARD) from error
            raise
        if any(now is not None and now != then for now, then in zip(self._gradients(), before, strict=True)):
            raise RuntimeError(_BACKWARD)
        if self._values() != values:
            raise RuntimeError(_CHANGED)
        loss = as_number(value)
        if not math.isfinite(loss) and self.nonfinite is None:
            self.nonfinite = loss
        return loss

    def _gradients(self) -> list[tuple[int, int] | None]:
        return [None if p.grad is None else (id(p.grad), p.grad._version) for p in self._params]

    def _values(self) -> list[tuple[int, int]]:
        return [(p._version, p.data_ptr()) for p in self._params]

    def _get_generators(self) -> tuple[Tensor, Tensor | None]:
        device = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        return torch.get_rng_state(), device

    def restore_generators(self) -> None:
        """Put PyTorch's generators back to where they were at the start of the step."""
        cpu, device = self._generators
        torch.set_rng_state(cpu)
        if device is not None:
            torch.cuda.set_rng_state(device, self._device)


def as_number(value: Any) -> float:
    """The loss that a closure returned, which must be one number."""
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise TypeError(
                f"the closure must return one number, the loss, got a tensor of shape {tuple(value.shape)}: "
                "return its mean or sum"
            )
        return float(value.detach())
    try:
        return float(value)
    except (TypeError, ValueError):
        hint = ": does it end with 'return loss'?" if value is None else ": return one number"
        raise TypeError(f"the closure must return the loss, got {type(value).__name__}{hint}") from None
