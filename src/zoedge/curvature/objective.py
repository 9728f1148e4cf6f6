"""The objective: a loss that is evaluated to be differentiated twice, and that leaves no trace.

Parameters, their ``.grad``, the buffers of modules and PyTorch's generators are after an evaluation what they were
before.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.module import register_module_forward_pre_hook

from zoedge.curvature.activations import CheapSecondDerivatives

# What two evaluations at the same point may differ by, relative to the loss: parallel sums are not always reproducible.
_SAME = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}

# The settings of a process that an evaluation changes for its time.
_LOCK = threading.RLock()

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
        self._size = 0 if batches is None else sum(_size(batch) for batch in self._drawn())
        if batches is not None and self._size == 0:
            raise ValueError("batches must hold at least one example")
        self.cheap = True
        self._other_random_numbers = False

    def parts(self) -> Iterator[tuple[Callable[[], Tensor], float]]:
        """What evaluates the loss of each part of the data, and the part's share of the whole."""
        if self._batches is None:
            yield self._evaluate, 1.0
            return
        for batch in self._drawn():
            yield partial(self._evaluate, batch), _size(batch) / self._size

    def _drawn(self) -> Iterator[Any]:
        """The batches; a DataLoader takes its seeds from PyTorch's generator, which gets them back."""
        assert self._batches is not None
        with torch.random.fork_rng([]):
            batches = iter(self._batches)
        end = object()
        while True:
            with torch.random.fork_rng([]):
                batch = next(batches, end)
            if batch is end:
                return
            yield batch

    def check_deterministic(self, value: float) -> None:
        """Evaluate once more, with other random numbers; an objective that changes has no Hessian."""
        again = self._value(other_random_numbers=True)
        if again == value:
            return
        tolerance = max(_SAME.get(p.dtype, 1e-5) for p in self._params) * max(abs(value), abs(again))
        # A small change may be rounding in parallel sums. Then it is there with the same random numbers, too.
        if abs(again - value) <= tolerance and self._value(other_random_numbers=False) != value:
            return
        raise ValueError(
            f"the objective is not deterministic: at the same parameters it was {value:.9g} and then {again:.9g}. "
            "Likely causes: dropout (call model.eval()), a new mini-batch in every call (draw it before, outside "
            "of the closure), augmentation, or noise inside the model"
        )

    @torch.inference_mode(mode=False)
    @torch.enable_grad()  # the loss itself may hold derivatives
    def _value(self, other_random_numbers: bool) -> float:
        self._other_random_numbers = other_random_numbers
        try:
            return sum(share * float(evaluate().detach()) for evaluate, share in self.parts())
        finally:
            self._other_random_numbers = False

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """Where losses are evaluated and differentiated: with kernels that have second derivatives, without a trace."""
        with _undisturbed(self._params), ExitStack() as stack:
            if self.cheap:
                stack.enter_context(CheapSecondDerivatives())
            yield

    def _evaluate(self, *batch: Any) -> Tensor:
        versions = [(p._version, p.data_ptr()) for p in self._params]
        with self.undisturbed():
            if self._other_random_numbers:
                _advance_generators(self._params[0].device)
            try:
                loss = self._closure(*batch)
            except RuntimeError as error:
                if "does not require grad and does not have a grad_fn" in str(error):
                    raise RuntimeError(_BACKWARD) from error
                raise
            if any(p.grad is not None for p in self._params):
                raise RuntimeError(_BACKWARD)
        if [(p._version, p.data_ptr()) for p in self._params] != versions:
            raise RuntimeError(
                "the closure changes the parameters (an optimizer's step, or an Embedding with max_norm): evaluate the "
                "loss only"
            )
        return _checked(loss)


def _checked(loss: Any) -> Tensor:
    """The loss as a 0-dimensional tensor that can be differentiated."""
    if not isinstance(loss, Tensor):
        hint = "does it end with 'return loss'?" if loss is None else _DETACHED
        raise TypeError(f"the closure must return the loss as a tensor, got {type(loss).__name__}: {hint}")
    if loss.numel() != 1:
        raise TypeError(f"the closure must return one number, got shape {tuple(loss.shape)}: return mean or sum")
    if not math.isfinite(float(loss.detach())):
        raise ArithmeticError(
            f"the loss is {float(loss.detach())}, so there is no curvature to measure: the run has diverged, or the "
            "data hold NaN"
        )
    if not loss.requires_grad:
        raise ValueError(_DETACHED)
    return loss.reshape(())


@contextmanager
def _undisturbed(params: Sequence[Tensor]) -> Iterator[None]:
    """Evaluate with kernels that can be differentiated twice, and leave no trace."""
    devices = [params[0].device] if params[0].device.type == "cuda" else []
    with _LOCK, torch.random.fork_rng(devices), _lent_buffers(), ExitStack() as stack:
        gradients = [p.grad for p in params]
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))  # fused attention has no second derivative,
        if devices:  # nor have cuDNN's recurrent layers
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        for p in params:
            p.grad = None
        try:
            yield
        finally:
            for p, gradient in zip(params, gradients, strict=True):
                p.grad = gradient


def _advance_generators(device: torch.device) -> None:
    """Other random numbers, from the generators that are put back afterwards and no others."""
    torch.default_generator.manual_seed(torch.initial_seed() ^ 1)
    if device.type == "cuda":
        with torch.cuda.device(device):
            torch.cuda.manual_seed(torch.cuda.initial_seed() ^ 1)


@contextmanager
def _lent_buffers() -> Iterator[None]:
    """Give modules copies of their buffers, so that running averages stay as they are.

    To copy back afterwards would not do: the graph of the loss may still need the changed ones. Modules are met when
    they are called; a buffer that the closure changes otherwise, or in TorchScript, is not protected.
    """
    thread = threading.get_ident()
    originals: dict[nn.Module, dict[str, Tensor | None]] = {}

    def lend(module: nn.Module, _: Any) -> None:
        if threading.get_ident() != thread or module in originals:
            return
        if module._buffers and not isinstance(module, torch.jit.ScriptModule):
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
