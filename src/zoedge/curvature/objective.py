"""The objective: a loss that is evaluated to be differentiated twice, and that leaves no trace.

Parameters, their ``.grad``, the buffers of modules and PyTorch's generators are after an evaluation what they were
before.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_pre_hook

from zoedge.curvature.activations import cheap_second_derivatives

# What two evaluations at the same point may differ by, relative to the loss: parallel sums are not always reproducible.
_SAME = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}

_BACKWARD = (
    "the closure calls backward(), which uses up the graph that curvature is computed from. Return the loss only:\n"
    "    def closure():\n"
    "        return loss_function(model(inputs), targets)"
)
_DETACHED = (
    "the loss does not depend on the parameters by differentiable operations: return the loss as a tensor, not "
    "loss.item() or loss.detach(), and do not evaluate the model inside torch.no_grad()"
)


class Objective:
    """The loss of a closure, or the mean over batches of it.

    Args:
        closure: returns the loss, or with ``batches``, given one of them, the mean loss of its examples.
        params: the parameters.
        batches: parts of the data, gone through anew for every evaluation; each counts by its number of examples.

    Attributes:
        cheap: whether GELU and SiLU may take a shortcut that has no third derivatives.
    """

    def __init__(self, closure: Callable[..., Any], params: Sequence[Tensor], batches: Iterable[Any] | None) -> None:
        if not callable(closure):
            raise TypeError(f"closure must be a function that returns the loss, got {type(closure).__name__}")
        if isinstance(batches, Iterator):
            raise TypeError("batches must be iterable more than once: pass a list or a DataLoader, not an iterator")
        self._closure = closure
        self._params = params
        self._batches = batches
        self._size = 0 if batches is None else sum(map(_size, batches))
        if batches is not None and self._size == 0:
            raise ValueError("batches must hold at least one example")
        self.cheap = True

    def parts(self) -> Iterator[tuple[Callable[[], Tensor], float]]:
        """What evaluates the loss of each part of the data, and the part's share of the whole."""
        if self._batches is None:
            yield self._evaluate, 1.0
            return
        for batch in self._batches:
            yield partial(self._evaluate, batch), _size(batch) / self._size

    def check_deterministic(self, value: float) -> None:
        """Evaluate once more; an objective that changes has no Hessian."""
        # With grad mode on, because the loss itself may hold derivatives.
        with torch.inference_mode(mode=False), torch.enable_grad(), _other_random_numbers(self._params[0].device):
            again = sum(share * float(evaluate().detach()) for evaluate, share in self.parts())
        tolerance = max(_SAME.get(p.dtype, 1e-5) for p in self._params)
        if not abs(again - value) <= tolerance * max(abs(value), abs(again)):
            raise ValueError(
                f"the objective is not deterministic: at the same parameters it was {value:.9g} and then {again:.9g}. "
                "Likely causes: dropout (call model.eval()), a new mini-batch in every call (draw it before, outside "
                "of the closure), augmentation, or noise inside the model"
            )

    def _evaluate(self, *batch: Any) -> Tensor:
        versions = [(p._version, p.data_ptr()) for p in self._params]
        with _undisturbed(self._params), ExitStack() as stack:
            if self.cheap:
                stack.enter_context(cheap_second_derivatives())
            try:
                loss = self._closure(*batch)
            except RuntimeError as error:
                if "does not require grad and does not have a grad_fn" in str(error):
                    raise RuntimeError(_BACKWARD) from error
                raise
            if any(p.grad is not None for p in self._params):
                raise RuntimeError(_BACKWARD)
        if [(p._version, p.data_ptr()) for p in self._params] != versions:
            raise RuntimeError("the closure changes the parameters: evaluate the loss only, without a step")
        if not isinstance(loss, Tensor):
            raise TypeError(f"the closure must return the loss as a tensor, got {type(loss).__name__}. {_DETACHED}")
        if loss.numel() != 1:
            raise TypeError(f"the closure must return one number, got shape {tuple(loss.shape)}: return mean or sum")
        if not math.isfinite(float(loss.detach())):
            raise ArithmeticError(
                f"the loss is {float(loss.detach())}, so there is no curvature to measure: the run has diverged, or "
                "the data hold NaN"
            )
        if not loss.requires_grad:
            raise ValueError(_DETACHED)
        return loss.reshape(())


@contextmanager
def _undisturbed(params: Sequence[Tensor]) -> Iterator[None]:
    """Evaluate with kernels that can be differentiated twice, and leave no trace."""
    devices = [params[0].device] if params[0].device.type == "cuda" else []
    gradients = [p.grad for p in params]
    with torch.random.fork_rng(devices), _lent_buffers(), ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # fused attention has no second derivative,
        # nor have cuDNN's recurrent layers, and oneDNN's have a slow one
        stack.enter_context(torch.backends.cudnn.flags(enabled=False) if devices else _without_onednn())
        for p in params:
            p.grad = None
        try:
            yield
        finally:
            for p, gradient in zip(params, gradients, strict=True):
                p.grad = gradient


@contextmanager
def _without_onednn() -> Iterator[None]:
    enabled = torch._C._get_mkldnn_enabled()
    # Not by torch.backends.mkldnn.flags, which warns of settings for other devices.
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


@contextmanager
def _other_random_numbers(device: torch.device) -> Iterator[None]:
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(torch.initial_seed() ^ 1)
        yield


@contextmanager
def _lent_buffers() -> Iterator[None]:
    """Give modules copies of their buffers, so that running averages stay as they are.

    To copy back afterwards would not do: the graph of the loss may still need the changed ones.
    """
    originals: dict[nn.Module, dict[str, Tensor | None]] = {}

    def lend(module: nn.Module, _: Any) -> None:
        if module not in originals and module._buffers and not isinstance(module, torch.jit.ScriptModule):
            originals[module] = dict(module._buffers)
            for name, buffer in originals[module].items():
                if buffer is not None:
                    module._buffers[name] = buffer.clone()

    hook = register_module_forward_pre_hook(lend)
    try:
        yield
    finally:
        hook.remove()
        for module, buffers in originals.items():
            module._buffers.update(buffers)


def _size(batch: Any) -> int:
    """Number of examples of a batch: the length of its first tensor."""
    while isinstance(batch, Mapping | list | tuple) and len(batch):
        batch = next(iter(batch.values())) if isinstance(batch, Mapping) else batch[0]
    if isinstance(batch, Tensor) and batch.ndim > 0:
        return len(batch)
    raise TypeError(
        f"the number of examples of a batch is the length of its first tensor, but this one starts with {batch!r:.60}: "
        "pass tensors, or tuples or dictionaries of tensors"
    )
