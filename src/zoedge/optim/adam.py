"""ZO-Adam."""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from zoedge import theory
from zoedge.optim.directions import Direction, Piece
from zoedge.optim.evaluation import Probe
from zoedge.optim.zeroth_order import ZerothOrder
from zoedge.theory import Method, checks
from zoedge.theory.estimator import Directions, Form


class ZOAdam(ZerothOrder):
    """Adam from loss values alone: the paper's ZO-Adam.

    With g the estimated gradient: m = beta1 m + (1 - beta1) g, v = beta2 v + (1 - beta2) g^2 and x -= lr P^-1 m, where
    P = (1 - beta1^t) (sqrt(v / (1 - beta2^t)) + eps), which is Adam with bias correction.

    Args:
        params: parameters, or groups of them; those that do not require grad stay as they are.
        lr: step size.
        betas: (beta1, beta2).
        eps: epsilon of the preconditioner.
        weight_decay: adds weight_decay * x to g, as in ``torch.optim.Adam``.
        maximize: climb instead of descending.
        mu: smoothing, the length of the move along u.
        queries: directions per step, two evaluations each.
        directions: ``"gaussian"``, ``"sphere"`` or ``"rademacher"``.
        form: ``"two-point"`` or ``"forward"``.
        seed: the directions are a function of (seed, step, query).
        probe_every: every so many steps, but not in the first, also record v^T H v in ``last.curvatures``, where
            v ~ N(0, P^-1), so that its mean is Tr(P^-1 H); it takes three evaluations more. 0: never.
        on_nonfinite: ``"raise"`` or ``"skip"``.
        store_direction: ``True``, ``False`` or ``"auto"``; see ``ZOSGD``.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
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
                "betas": (checks.fraction("betas[0]", betas[0]), checks.fraction("betas[1]", betas[1])),
                "eps": checks.positive("eps", eps),
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

    def freeze_preconditioner(self) -> None:
        """Keep P as it is now from here on: Frozen ZO-Adam. Parameters that are added later are not frozen."""
        for p, P in zip(self._moving().values(), self.preconditioner(), strict=True):
            self.state[p]["preconditioner"] = P

    def preconditioner(self) -> list[Tensor]:
        """P of every parameter that trains, as the last step used it: the diagonal, in the parameter's shape."""
        moving = self._moving()
        if any(not self.state[p].get("updates") for p in moving.values()):
            raise RuntimeError("there is no preconditioner before the first step: call step(closure) first")
        groups = [group for group in self.param_groups for _ in group["params"]]
        return [
            self._preconditioner(groups[i], p, slice(None), self.state[p]["updates"]).view(p.shape).clone()
            for i, p in moving.items()
        ]

    def _preconditioner(self, group: dict[str, Any], p: Tensor, at: slice, t: int) -> Tensor:
        if "preconditioner" in self.state[p]:
            return self._buffer(p, "preconditioner")[at]
        beta1, beta2 = group["betas"]
        root = (self._buffer(p, "exp_avg_sq")[at] / (1 - beta2**t)).sqrt_()
        return root.add_(group["eps"]).mul_(1 - beta1**t)

    def _probe(self, directions: Sequence[Direction], mu: float) -> Probe | None:
        """Along v ~ N(0, P^-1), so that v^T H v has the mean Tr(P^-1 H); moved as far as u would be, on average."""
        moving = self._moving()
        if any(not self.state[p].get("updates") for p in moving.values()):
            return None
        roots: list[Tensor | None] = [None] * len(self._parameters())
        for i, P in zip(moving, self.preconditioner(), strict=True):
            roots[i] = P.view(-1).rsqrt()
        squares = [root.double().square() for root in roots if root is not None]
        length = math.sqrt(float(sum(square.sum() for square in squares)) / sum(map(len, squares)))
        return Probe([direction.scaled(roots) for direction in directions], mu / length)

    def _method(self, group: dict[str, Any]) -> Method:
        return theory.ZOAdam(group["betas"][0])

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _apply(self, group: dict[str, Any], p: Tensor, at: slice, x: Tensor, g: Piece, out: Tensor) -> None:
        beta1, beta2 = group["betas"]
        m = self._buffer(p, "exp_avg")[at].mul_(beta1)
        g.add_to(m, 1 - beta1, out=m)
        if "preconditioner" not in self.state[p]:
            g.add_square_to(self._buffer(p, "exp_avg_sq")[at].mul_(beta2), 1 - beta2)
        P = self._preconditioner(group, p, at, self.state[p].get("updates", 0) + 1)
        torch.addcdiv(x, m, P, value=-self._lr(group), out=out)
