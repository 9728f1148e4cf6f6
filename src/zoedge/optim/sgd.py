"""ZO-GD and ZO-GDM."""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from zoedge import theory
from zoedge.optim.directions import Piece
from zoedge.optim.zeroth_order import ZerothOrder
from zoedge.theory import Method, checks
from zoedge.theory.estimator import Directions, Form


class ZOSGD(ZerothOrder):
    """Stochastic gradient descent from loss values alone: the paper's ZO-GD and, with momentum, ZO-GDM.

    ::

        opt = zoedge.optim.ZOSGD(model.parameters(), lr=1e-3)

        def closure():
            return loss_function(model(inputs), targets)    # no backward

        loss = opt.step(closure)

    With g the average over the queries of (f(x + mu u) - f(x - mu u)) / (2 mu) u, a step is m = beta m + g,
    x -= lr m. The step size can be scheduled, and parameters grouped, as with ``torch.optim.SGD``; what belongs to the
    estimate (mu, queries, directions, form, seed) is one for all groups.

    Args:
        params: parameters, or groups of them; those that do not require grad stay as they are.
        lr: step size.
        momentum: beta.
        dampening: as in ``torch.optim.SGD``: m = beta m + (1 - dampening) g from the second step on.
        weight_decay: adds weight_decay * x to g.
        maximize: climb instead of descending.
        mu: smoothing, the length of the move along u.
        queries: directions per step, two evaluations each.
        directions: ``"gaussian"``, ``"sphere"`` (of radius sqrt(d), all parameters together) or ``"rademacher"``.
        form: ``"two-point"``, or ``"forward"``, (f(x + mu u) - f(x)) / mu u, with one evaluation less per query.
        seed: the directions are a function of (seed, step, query); PyTorch's own generators are not used.
        probe_every: every so many steps also record u^T H u in ``last.curvatures``, which takes the evaluation that is
            missing for it; 0: never.
        on_nonfinite: ``"raise"`` a ``NonFiniteLossError``, or ``"skip"`` the update and go on.
        store_direction: ``True`` keeps a copy of the parameters for the step, the fastest way; ``False`` replays the
            direction to find back and keeps only what rounding would lose; ``"auto"`` copies up to 1 GiB. The results
            are the same to the last bit.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        mu: float = 1e-3,
        queries: int = 1,
        directions: Directions = "gaussian",
        form: Form = "two-point",
        seed: int = 0,
        probe_every: int = 0,
        on_nonfinite: Literal["raise", "skip"] = "raise",
        store_direction: bool | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "momentum": checks.fraction("momentum", momentum),
                "dampening": checks.number("dampening", dampening),
                "weight_decay": weight_decay,
                "maximize": maximize,
                "mu": mu,
                "queries": queries,
                "directions": directions,
                "form": form,
                "seed": seed,
            },
            {"probe_every": probe_every, "on_nonfinite": on_nonfinite, "store_direction": store_direction},
        )

    def _method(self, group: dict[str, Any]) -> Method:
        return theory.ZOGDM(group["momentum"]) if group["momentum"] else theory.ZOGD()

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["momentum"] else ()

    def _apply(self, group: dict[str, Any], p: Tensor, at: slice, x: Tensor, g: Piece, out: Tensor) -> None:
        if group["momentum"]:
            # As in torch.optim.SGD, the first gradient is not dampened.
            state = self.state[p]
            first = state.get("updates", 0) == state["momentum_buffer_since"]
            m = self._buffer(p, "momentum_buffer")[at].mul_(group["momentum"])
            g.add_to(m, 1.0 if first else 1 - group["dampening"], out=m)
            torch.add(x, m, alpha=-self._lr(group), out=out)
        else:
            g.add_to(x, -self._lr(group), out=out)
