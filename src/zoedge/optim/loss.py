"""Calling the user's closure: one number, the same random numbers every time, no backward pass."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Closure = Callable[[], Any]

_BACKWARD = (
    "the closure calls backward(), which a zeroth-order step neither needs nor can use. Return the loss only:\n"
    "    def closure():\n"
    "        return loss_function(model(inputs), targets)"
)


class Loss:
    """The loss of one step. Every call starts from the same state of PyTorch's random generators.

    Dropout thus draws the same mask in the evaluations of a step, and after the step the generators have moved on as
    after a single evaluation.

    Attributes:
        nonfinite: the first value that was NaN or infinite, or ``None``.
    """

    def __init__(self, closure: Closure, params: Sequence[Tensor]) -> None:
        self._closure = closure
        self._params = params
        self._device = params[0].device
        self._generators = self._get_generators()
        self.nonfinite: float | None = None

    def __call__(self) -> float:
        """Evaluate at the parameters as they are."""
        self._set_generators()
        before = self._gradients()
        try:
            value = self._closure()
        except RuntimeError as error:
            if "does not require grad and does not have a grad_fn" in str(error):
                raise RuntimeError(_BACKWARD) from error
            raise
        if self._gradients() != before:
            raise RuntimeError(_BACKWARD)
        loss = _number(value)
        if not math.isfinite(loss) and self.nonfinite is None:
            self.nonfinite = loss
        return loss

    def _gradients(self) -> list[tuple[int, int] | None]:
        return [None if p.grad is None else (id(p.grad), p.grad._version) for p in self._params]

    def _get_generators(self) -> tuple[Tensor, Tensor | None]:
        device = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None
        return torch.get_rng_state(), device

    def _set_generators(self) -> None:
        cpu, device = self._generators
        torch.set_rng_state(cpu)
        if device is not None:
            torch.cuda.set_rng_state(device, self._device)


def _number(value: Any) -> float:
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise TypeError(
                f"the closure must return one number, the loss, got a tensor of shape {tuple(value.shape)}: "
                "return its mean or sum"
            )
        return float(value.detach())
    if isinstance(value, bool) or not isinstance(value, float | int):
        try:
            return float(value)
        except (TypeError, ValueError):
            hint = ": does it end with 'return loss'?" if value is None else ""
            raise TypeError(f"the closure must return the loss, got {type(value).__name__}{hint}") from None
    return float(value)
