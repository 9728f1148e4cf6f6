"""Activations whose second derivative costs one multiplication.

PyTorch differentiates the backward of GELU and SiLU by a dozen elementwise passes that are the same for every vector.
Inside ``CheapSecondDerivatives`` the first and second derivative are computed once, with the loss, and kept: a
product with the Hessian then costs a multiplication for each.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.overrides import TorchFunctionMode

Derivatives = tuple[Tensor, Tensor]


class ThirdDerivativeError(RuntimeError):
    """A third derivative of an activation is needed, which the shortcut does not have."""


def _gelu(x: Tensor, approximate: str) -> Derivatives:
    if approximate == "tanh":
        a, c = math.sqrt(2 / math.pi), 0.044715
        slope = a * (1 + 3 * c * x * x)
        t = torch.tanh(a * (x + c * x * x * x))
        s = 1 - t * t
        bend = s * (6 * a * c * x - 2 * t * slope * slope)
        return 0.5 * (1 + t + x * s * slope), s * slope + 0.5 * x * bend
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    below = 0.5 * (1 + torch.erf(x / math.sqrt(2)))
    return below + x * density, density * (2 - x * x)


def _silu(x: Tensor, _: str) -> Derivatives:
    s = torch.sigmoid(x)
    d = s * (1 - s)
    return s + x * d, d * (2 + x * (1 - 2 * s))


class _Activation(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(x, first, second)
        return value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return _ActivationBackward.apply(grads[0], *ctx.saved_tensors), None, None, None  # pyright: ignore


class _ActivationBackward(Function):
    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
        ctx.save_for_backward(first, grad * second)
        return grad * first

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grads: Tensor
    ) -> tuple[Tensor, Tensor, None, None]:
        if torch.is_grad_enabled():  # what depends on x in the line below is lost
            raise ThirdDerivativeError
        first, bend = ctx.saved_tensors
        return grads[0] * first, grads[0] * bend, None, None


_DERIVATIVES: dict[Any, Callable[..., Derivatives]] = {
    torch.nn.functional.gelu: _gelu,
    torch.nn.functional.silu: _silu,
}


class CheapSecondDerivatives(TorchFunctionMode):
    """While active, GELU and SiLU keep their derivatives; a third one raises ``ThirdDerivativeError``."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        derivatives = _DERIVATIVES.get(func)
        if derivatives is None or len(args) != 1 or kwargs.get("inplace") or not torch.is_grad_enabled():
            return func(*args, **kwargs)
        (x,) = args
        with torch.no_grad():
            value = func(x, **kwargs)
            # In 16 bits the differences in the second derivative would cancel.
            precise = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
            first, second = (d.to(x.dtype) for d in derivatives(precise, kwargs.get("approximate", "none")))
        return _Activation.apply(x, value, first, second)
