"""What an optimizer does to a quadratic: everything about it that stability depends on.

Parameter groups with step sizes of their own are a preconditioner: x -= lr_g m is x -= lr P^-1 m with P = lr / lr_g.
For first-order methods that is all. The theory of zeroth-order ones needs a P that commutes with H; this one does not.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from zoedge.theory import GD, GDM, Adam, Estimator, Method, checks


@dataclass(frozen=True)
class Recursion:
    """A method with its settings, read from an optimizer.

    Attributes:
        method: the recursion.
        lr: the step size m is multiplied by, with what dampening or Nesterov's form make of it.
        params: the parameters that move.
        preconditioner: a tensor for each parameter, or ``None``.
        decay: weight decay of each parameter as far as it is part of the Hessian.
        sign: -1 if the objective is maximized.
        estimator: of the gradient, for zeroth-order methods.
        step: number of steps taken, if the optimizer counts them.
    """

    method: Method
    lr: float
    params: Sequence[Tensor]
    preconditioner: Sequence[Tensor] | None
    decay: Sequence[float]
    sign: float
    estimator: Estimator | None = None
    step: int | None = None

    def objective(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """What the recursion minimizes: the loss with its sign and weight decay."""
        if self.sign == 1 and not any(self.decay):
            return closure

        def objective(*batch: Any) -> Any:
            loss = closure(*batch)
            if not isinstance(loss, Tensor) or not loss.requires_grad:
                return loss  # for the operator to say what is wrong with it
            penalty = sum(0.5 * decay * p.square().sum() for decay, p in zip(self.decay, self.params, strict=True))
            return self.sign * loss + penalty

        return objective


def recursion(optimizer: Optimizer) -> Recursion:
    """Read the recursion of a ZOSGD, ZOAdam, torch.optim.SGD, Adam or AdamW."""
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"expected an optimizer, got {type(optimizer).__name__}")
    groups = [group for group in optimizer.param_groups if float(group["lr"]) != 0]
    if not groups:
        raise ValueError("lr is 0 in all parameter groups, so nothing moves")
    placed = [(p, group) for group in groups for p in group["params"] if p.requires_grad]
    if not placed:
        raise ValueError("no parameter requires grad, so there is nothing to train")
    lr = checks.positive("lr", float(groups[0]["lr"]))
    sign = _common("maximize", [-1.0 if group.get("maximize") else 1.0 for group in groups])
    method: Method | None = getattr(optimizer, "method", None)
    if method is not None and len({float(group["lr"]) for group in optimizer.param_groups}) > 1:
        raise ValueError(
            "the parameter groups have different step sizes, for which the critical step size of a zeroth-order method "
            "is not known: use one for all, and freeze parameters by requires_grad_(False), not by lr=0"
        )
    found = Recursion(method or GD(), lr, [p for p, _ in placed], None, [0.0] * len(placed), sign)
    if isinstance(method, Method):
        # Weight decay acts on x itself, not through the estimate: it only damps, and is no part of H.
        found = replace(
            found,
            estimator=optimizer.estimator,  # pyright: ignore[reportAttributeAccessIssue]
            step=optimizer.step_count,  # pyright: ignore[reportAttributeAccessIssue]
            preconditioner=_own_preconditioner(optimizer, found.params),
            lr=checks.positive("lr_scale", optimizer.lr_scale)  # pyright: ignore[reportAttributeAccessIssue]
            * lr * _common("dampening", [_undamped(group) for group in groups]),
        )  # fmt: skip
    elif isinstance(optimizer, torch.optim.SGD):
        beta = _common("momentum", [group["momentum"] for group in groups])
        # Nesterov's form is unstable from 2 (1 + beta) / (1 + 2 beta) on.
        faster = _common("nesterov", [1 + 2 * beta if group["nesterov"] else 1.0 for group in groups])
        undamped = _common("dampening", [_undamped(group) for group in groups])
        found = replace(
            found, method=GDM(beta) if beta else GD(), lr=lr * faster * undamped, decay=[_decay(g) for _, g in placed]
        )
    elif isinstance(optimizer, torch.optim.Adam | torch.optim.AdamW):
        decoupled = isinstance(optimizer, torch.optim.AdamW)
        found = replace(
            found,
            method=Adam(_common("betas[0]", [float(group["betas"][0]) for group in groups])),
            preconditioner=[_adam_preconditioner(optimizer, group, p) for p, group in placed],
            decay=[0.0 if decoupled else _decay(group) for _, group in placed],
        )
    else:
        raise TypeError(
            f"the stability of {type(optimizer).__name__} is not known here: ZOSGD, ZOAdam, torch.optim.SGD, Adam and "
            "AdamW are; for others build a HessianOperator and use zoedge.theory"
        )
    ratios = [lr / checks.positive("lr", float(group["lr"])) for _, group in placed]
    if any(ratio != 1 for ratio in ratios):
        P = found.preconditioner or [torch.ones_like(p) for p in found.params]
        found = replace(found, preconditioner=[ratio * part for ratio, part in zip(ratios, P, strict=True)])
    return found


def _undamped(group: dict[str, Any]) -> float:
    return 1 - group["dampening"] if group.get("momentum") else 1.0


def _decay(group: dict[str, Any]) -> float:
    return 0.0 if group.get("decoupled_weight_decay") else float(group["weight_decay"])


def _own_preconditioner(optimizer: Any, params: Sequence[Tensor]) -> list[Tensor] | None:
    """P of a ZOAdam, of the parameters that move."""
    if not hasattr(optimizer, "preconditioner"):
        return None
    training = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    by_parameter = dict(zip(map(id, training), optimizer.preconditioner(), strict=True))
    return [by_parameter[id(p)] for p in params]


def _adam_preconditioner(optimizer: Optimizer, group: dict[str, Any], p: Tensor) -> Tensor:
    """P = (1 - beta1^t) (sqrt(v / (1 - beta2^t)) + eps) of torch.optim.Adam, t the steps taken."""
    state = optimizer.state.get(p) or {}
    if "exp_avg_sq" not in state:
        raise RuntimeError("there is no preconditioner before the first step: call step() first")
    beta1, beta2 = (float(beta) for beta in group["betas"])
    t = float(state["step"])
    v = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"]
    return ((v / (1 - beta2**t)).sqrt() + group["eps"]) * (1 - beta1**t)


def _common(name: str, values: Sequence[float]) -> float:
    """The value that all groups share."""
    if any(value != values[0] for value in values):
        raise ValueError(f"{name} differs between parameter groups, and the theory knows one for all: {values}")
    return float(values[0])
