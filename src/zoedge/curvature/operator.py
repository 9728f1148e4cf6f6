"""The Hessian as a symmetric linear operator, never as a matrix."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from zoedge.curvature.activations import ThirdDerivativeError
from zoedge.curvature.objective import Objective

Array = TypeVar("Array", Tensor, NDArray[Any])
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
# The gradient of one part of the data with its graph, and the part's share.
_Part = tuple[Sequence[Tensor], float]


class HessianOperator:
    """The Hessian of a loss at the parameters as they are now, or P^-1/2 H P^-1/2 with a preconditioner P.

    >>> model = torch.nn.Linear(3, 1, bias=False)
    >>> x = torch.eye(3)
    >>> H = HessianOperator(lambda: model(x).square().sum(), model.parameters())
    >>> H.matvec(torch.ones(3))
    tensor([2., 2., 2.])

    Vectors are the parameters' entries one after the other; those that do not require grad are left out. The operator
    belongs to the parameters at which it was built: after they have changed it raises. Products are in float32, or
    float64 if a parameter is.

    Args:
        closure: returns the loss, without backward; with ``batches`` it is called with each of them.
        params: the parameters.
        preconditioner: the diagonal of P: a tensor for each parameter, or one vector.
        batches: parts of the data, for data that do not fit at once; the closure gets one as its argument, and each
            counts by its number of examples, the length of its first tensor.
        keep: keep the graph of the gradient, with the memory of its activations, for all products; ``False`` builds it
            anew, part by part, for every product (or for all columns of one ``matmat``). By default it is kept if there
            are no batches.

    Attributes:
        shape, dtype: as of a NumPy array.
        params: the parameters that require grad.
        loss: the loss.
        gradient: its gradient, a vector.
        products: number of products so far.
    """

    def __init__(
        self,
        closure: Callable[..., Any],
        params: Iterable[Tensor],
        preconditioner: Sequence[Tensor] | Tensor | None = None,
        *,
        batches: Iterable[Any] | None = None,
        keep: bool | None = None,
    ) -> None:
        self.params = _checked(params)
        self._sizes = [p.numel() for p in self.params]
        self._dtype = torch.float64 if any(p.dtype == torch.float64 for p in self.params) else torch.float32
        self.shape = (sum(self._sizes), sum(self._sizes))
        self.dtype = np.dtype(np.float64 if self._dtype == torch.float64 else np.float32)
        self.products = 0
        self._scale = None if preconditioner is None else flat_preconditioner(self, preconditioner).rsqrt()
        self._objective = Objective(closure, self.params, batches)
        self._keep = batches is None if keep is None else keep
        self._snapshot = self._fingerprint()
        self._build()
        self._objective.check_deterministic(self.loss)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self.params[0].device

    @property
    def preconditioned(self) -> bool:
        """Whether this is P^-1/2 H P^-1/2."""
        return self._scale is not None

    def empty(self, rows: int) -> Tensor:
        """An uninitialised tensor of shape (rows, dimension) in the operator's dtype."""
        return torch.empty(rows, self.shape[0], dtype=self._dtype, device=self.device)

    # ------------------------------------------------------------------ products

    def matvec(self, v: Array) -> Array:
        """H v for a vector, shape (d,) or (d, 1), a tensor or an array."""
        return self.matmat(v.reshape(-1, 1)).reshape(v.shape)

    def matmat(self, V: Array) -> Array:
        """H V, shape (d, k)."""
        if isinstance(V, Tensor):
            return self.rows(V.T).T.to(V.dtype if V.is_floating_point() else self._dtype)
        rows = torch.from_numpy(np.ascontiguousarray(V.T)).to(self.device)
        return self.rows(rows).T.cpu().numpy().astype(np.result_type(V.dtype, self.dtype), copy=False)

    # The Hessian is symmetric.
    rmatvec, rmatmat = matvec, matmat

    def __matmul__(self, V: Array) -> Array:
        return self.matvec(V) if V.ndim == 1 else self.matmat(V)

    def to_scipy(self) -> LinearOperator:
        """As a ``scipy.sparse.linalg.LinearOperator``."""
        return LinearOperator(self.shape, self.matvec, self.rmatvec, self.matmat, self.dtype)  # pyright: ignore

    def rows(self, V: Tensor) -> Tensor:
        """H applied to every row of V, shape (k, d): the order in memory in which vectors are whole."""
        if V.ndim != 2 or V.shape[1] != self.shape[1]:
            raise ValueError(f"vectors must have {self.shape[1]} entries, got rows of shape {tuple(V.shape[1:])}")
        if V.is_complex():
            raise TypeError("vectors must be real")
        self._check_snapshot()
        V = V.detach().to(self._dtype)
        if not torch.isfinite(V.sum()):
            raise ValueError("vectors must be finite, but there are NaN or infinite entries")
        if self._scale is not None:
            V = V * self._scale
        result = torch.zeros_like(V, memory_format=torch.contiguous_format)
        for gradients, share in self._graphs():
            with self._objective.undisturbed():  # checkpointed parts are evaluated again
                for v, out in zip(V, result, strict=True):
                    out.add_(self._product(gradients, v), alpha=share)
            del gradients  # before the next part has a graph
        if self._scale is not None:
            result *= self._scale
        self.products += len(V)
        if not torch.isfinite(result.sum()):
            raise ArithmeticError(
                "a Hessian-vector product is not finite though the loss is: look for the square root, norm or division "
                "of something that is zero"
            )
        return result

    def _product(self, gradients: Sequence[Tensor], v: Tensor) -> Tensor:
        pairs = [
            (g, part.view_as(g).to(g.dtype))
            for g, part in zip(gradients, v.split(self._sizes), strict=True)
            if g.requires_grad
        ]
        if not pairs:  # a loss that is linear in all parameters
            return torch.zeros_like(v)
        outputs, vectors = zip(*pairs, strict=True)
        return self._flat(torch.autograd.grad(outputs, self.params, vectors, retain_graph=True, materialize_grads=True))

    # ------------------------------------------------------------------ graphs

    def _build(self) -> None:
        """Loss and gradient, with graphs if they are kept."""
        self.gradient, self.loss, self._parts = self.empty(1)[0].zero_(), 0.0, []
        for evaluate, share in self._objective.parts():
            gradients, loss = self._differentiate(evaluate, graph=self._keep)
            self.gradient.add_(self._flat([g.detach() for g in gradients]), alpha=share)
            self.loss += share * loss
            if self._keep:
                self._parts.append((gradients, share))

    def _graphs(self) -> Iterable[_Part]:
        if self._keep:
            yield from self._parts
            return
        total = 0.0
        for evaluate, share in self._objective.parts():
            gradients, loss = self._differentiate(evaluate, graph=True)
            total += share * loss
            yield gradients, share
            del gradients
        if abs(total - self.loss) > 1e-2 * max(abs(total), abs(self.loss)):
            raise RuntimeError(
                "the loss has changed since this HessianOperator was built, though the parameters have not"
            )

    @torch.inference_mode(mode=False)
    @torch.enable_grad()
    def _differentiate(self, evaluate: Callable[[], Tensor], graph: bool) -> tuple[Sequence[Tensor], float]:
        """Gradient and loss of a part of the data."""
        try:
            loss = evaluate()
            with self._objective.undisturbed():
                gradients = torch.autograd.grad(loss, self.params, create_graph=graph, allow_unused=True)
        except RuntimeError as error:
            # The loss itself holds derivatives, by torch.autograd or torch.func, or checkpoints.
            shortcut = isinstance(error, ThirdDerivativeError | CheckpointError) or "functorch" in str(error)
            if not (self._objective.cheap and shortcut):
                raise
            self._objective.cheap = False
            return self._differentiate(evaluate, graph)
        for number, (p, g) in enumerate(zip(self.params, gradients, strict=True)):
            if g is None:
                raise ValueError(
                    f"the loss does not depend on parameter {number}, of shape {tuple(p.shape)}: leave it out, or "
                    "freeze it by requires_grad_(False)"
                )
        return gradients, float(loss.detach())

    # ------------------------------------------------------------------ the parameters

    def _flat(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([t.reshape(-1).to(self._dtype) for t in tensors])

    def _fingerprint(self) -> list[tuple[int, int, int]]:
        """Version, address and sum of the bits of every parameter; the sum sees changes through ``.data``."""
        return [(p._version, p.data_ptr(), int(p.detach().view(_BITS[p.element_size()]).sum())) for p in self.params]

    def _check_snapshot(self) -> None:
        if self._fingerprint() != self._snapshot:
            raise RuntimeError(
                "the parameters have changed since this HessianOperator was built, and it belongs to the point where "
                "they were: build a new one"
            )


def flat_preconditioner(H: HessianOperator, P: Sequence[Tensor] | Tensor) -> Tensor:
    """The diagonal of a preconditioner as a vector, checked."""
    parts = [P] if isinstance(P, Tensor) else list(P)
    if not all(isinstance(part, Tensor) for part in parts):
        raise TypeError("preconditioner must be a tensor for each parameter, or one vector")
    shapes, wanted = [part.shape for part in parts], [p.shape for p in H.params]
    if len(parts) > 1 and shapes != wanted:
        raise ValueError("the tensors of the preconditioner must have the shapes of the parameters, in their order")
    flat = torch.cat([part.detach().reshape(-1).to(H.empty(0)) for part in parts])
    if len(flat) != H.shape[0]:
        raise ValueError(f"preconditioner has {len(flat)} entries, but the parameters have {H.shape[0]}")
    if not (bool(torch.isfinite(flat).all()) and float(flat.min()) > 0):
        raise ValueError("preconditioner must be finite and positive everywhere")
    return flat


def _checked(params: Iterable[Tensor]) -> list[Tensor]:
    """The parameters that require grad."""
    if isinstance(params, Tensor):
        raise TypeError("params must be an iterable of parameters, got a tensor: pass [tensor]")
    found = list(params)
    for p in found:
        if not isinstance(p, Tensor):
            raise TypeError(f"params must be tensors, got {type(p).__name__}: pass model.parameters()")
    # Once each: tied weights may be named twice.
    found = list({id(p): p for p in found if p.requires_grad}.values())
    if not found:
        raise ValueError("no parameter requires grad, so there is nothing to differentiate by")
    for p in found:
        if not p.is_leaf or not p.is_floating_point():
            raise TypeError(f"parameters must be leaf tensors of floating-point numbers, got {p.dtype}")
    devices = {p.device for p in found}
    if len(devices) > 1:
        raise ValueError(f"parameters must be on one device, these are on {', '.join(sorted(map(str, devices)))}")
    return found
