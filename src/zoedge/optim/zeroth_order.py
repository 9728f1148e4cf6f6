"""The step that all zeroth-order optimizers share: evaluate along random directions, then update.

Subclasses say what to do with an estimated gradient.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from zoedge.optim.directions import PIECE, Direction, Piece
from zoedge.optim.interrupts import Interrupts
from zoedge.optim.loss import Closure, Loss
from zoedge.optim.moves import Copied, Moves, Replayed, Update
from zoedge.optim.record import NonFiniteLossError, StepRecord
from zoedge.optim.rounding import RoundingNoise, stochastic_round
from zoedge.theory import Estimator, checks

# "auto" keeps a copy of the parameters up to this many bytes.
_COPY_LIMIT = 1 << 30
# One loss difference serves all parameters, so these cannot differ between groups.
_SHARED = (
    "mu", "queries", "directions", "form", "seed", "step", "skipped",
    "probe_every", "on_nonfinite", "store_direction",
)  # fmt: skip

_NO_CLOSURE = (
    "step() needs a closure that returns the loss, because a zeroth-order step evaluates it several times:\n"
    "    def closure():\n"
    "        return loss_function(model(inputs), targets)\n"
    "    loss = optimizer.step(closure)"
)


class ZerothOrder(Optimizer):
    """Base of the zeroth-order optimizers."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any]) -> None:
        lr = defaults["lr"]
        if not (isinstance(lr, float | int) and math.isfinite(lr) and lr >= 0):
            raise ValueError(f"lr must be a finite number, not negative, got {lr!r}")
        Estimator(defaults["form"], defaults["directions"], defaults["queries"], defaults["mu"])
        checks.count("seed", defaults["seed"], at_least=0)
        checks.count("probe_every", defaults["probe_every"], at_least=0)
        checks.choice("on_nonfinite", defaults["on_nonfinite"], ("raise", "skip"))
        if defaults["store_direction"] not in (True, False, "auto"):
            raise ValueError(f"store_direction must be True, False or 'auto', got {defaults['store_direction']!r}")
        super().__init__(params, {**defaults, "step": 0, "skipped": 0})
        self._start()

    def _start(self) -> None:
        """Set what is not part of the state."""
        self._last: StepRecord | None = None
        self._last_finite_loss = math.nan
        self._buffers: dict[tuple, Tensor] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._start()

    # ------------------------------------------------------------------ settings and records

    @property
    def last(self) -> StepRecord:
        """The record of the last step: losses, projected gradients, and curvature along u where it was probed."""
        if self._last is None:
            raise RuntimeError("there is no record before the first step: call step(closure) first")
        return self._last

    @property
    def estimator(self) -> Estimator:
        """How the gradient is estimated."""
        shared = self._shared()
        return Estimator(shared["form"], shared["directions"], shared["queries"], shared["mu"])

    @property
    def step_count(self) -> int:
        """Number of steps taken so far, skipped ones included."""
        return self._shared()["step"]

    @property
    def skipped_count(self) -> int:
        """Number of steps that were skipped because the loss was not finite."""
        return self._shared()["skipped"]

    def _shared(self) -> dict[str, Any]:
        first, *others = self.param_groups
        for name in _SHARED:
            for number, group in enumerate(others, start=1):
                if group[name] != first[name]:
                    raise ValueError(
                        f"{name} is {first[name]!r} in parameter group 0 and {group[name]!r} in group {number}, but "
                        "one loss difference serves all groups: set it in the optimizer, not in a group"
                    )
        return first

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; those of the estimator are shared by all groups."""
        if self.param_groups:
            for name in ("step", "skipped"):
                param_group.setdefault(name, self.param_groups[0][name])
        super().add_param_group(param_group)
        self._shared()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; buffers keep their own dtype (PyTorch's would round float32 averages of 16-bit parameters)."""
        super().load_state_dict(state_dict)
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        for index, p in zip(saved, self._parameters(), strict=True):
            for name, value in state_dict["state"].get(index, {}).items():
                if isinstance(value, Tensor):
                    self.state[p][name] = value.detach().to(p.device, copy=True)

    # ------------------------------------------------------------------ the step

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Take a step.

        Args:
            closure: evaluates the model and returns the loss, one number; it must not call ``backward``. It is called
                twice for every query (two-point), with the same state of the random generators, so that dropout is
                the same in both.

        Returns:
            The loss, a 0-dimensional tensor: f(x) where the step evaluated it, else the mean of its evaluations.
        """
        if closure is None:
            raise TypeError(_NO_CLOSURE)
        shared = self._shared()
        params = self._moving()
        moves = (Copied if self._store(params) else Replayed)(params, self._buffers)
        directions = [self.direction(query=query) for query in range(shared["queries"])]
        loss = Loss(closure, list(params.values()))
        with Interrupts() as interrupts:
            try:
                record = self._evaluate(shared, moves, directions, loss, interrupts)
                with interrupts.held():
                    if record.skipped:
                        moves.back()
                        self._set_shared("skipped", shared["skipped"] + 1)
                    else:
                        moves.update(self._updates(record.slopes, directions))
                    self._set_shared("step", shared["step"] + 1)
                    self._last = record
            except BaseException:
                with interrupts.held():
                    moves.back()
                raise
        return torch.tensor(record.loss, dtype=torch.float64)

    def _evaluate(
        self,
        shared: dict[str, Any],
        moves: Moves,
        directions: Sequence[Direction],
        loss: Loss,
        interrupts: Interrupts,
    ) -> StepRecord:
        mu, forward = shared["mu"], shared["form"] == "forward"
        probe = shared["probe_every"] > 0 and shared["step"] % shared["probe_every"] == 0
        nan = math.nan
        centre = loss() if forward or probe else nan
        plus, minus = [], []
        for direction in directions:
            with interrupts.held():
                moves.move(direction, mu)
            plus.append(loss())
            if not forward or probe:
                with interrupts.held():
                    moves.move(direction, -mu)
                minus.append(loss())
            else:
                minus.append(nan)
        pairs = list(zip(plus, minus, strict=True))
        record = StepRecord(
            step=shared["step"],
            lr=tuple(float(group["lr"]) for group in self.param_groups),
            mu=mu,
            plus=tuple(plus),
            minus=tuple(minus),
            centre=centre,
            slopes=tuple((p - centre) / mu if forward else (p - m) / (2 * mu) for p, m in pairs),
            curvatures=tuple((p - 2 * centre + m) / mu**2 if probe else nan for p, m in pairs),
            skipped=loss.nonfinite is not None,
        )
        if loss.nonfinite is None:
            self._last_finite_loss = record.loss
        elif shared["on_nonfinite"] == "raise":
            raise NonFiniteLossError(record.step, record.lr, loss.nonfinite, self._last_finite_loss)
        return record

    def _updates(self, slopes: Sequence[float], directions: Sequence[Direction]) -> Update:
        """What turns a piece of x into its new value."""
        params = self._parameters()
        groups = [group for group in self.param_groups for _ in group["params"]]
        shared = self._shared()
        rounding = RoundingNoise((shared["seed"], shared["step"]), params)
        for p in self._moving().values():
            self.state[p]["updates"] = self.state[p].get("updates", 0) + 1

        def update(i: int, at: slice, x: Tensor, out: Tensor) -> None:
            p, group = params[i], groups[i]
            g, scale = _estimate([direction[i][at.start // PIECE] for direction in directions], slopes, x)
            scale = -scale if group["maximize"] else scale
            exact = x.to(g.dtype)
            if group["weight_decay"]:
                g, scale = (scale * g).add_(exact, alpha=group["weight_decay"]), 1.0
            if p.dtype == g.dtype:
                self._apply(group, p, at, exact, g, scale, out)
            else:
                new = torch.empty_like(exact)
                self._apply(group, p, at, exact, g, scale, new)
                out.copy_(stochastic_round(new, p.dtype, rounding.generator(i, at)))

        return update

    def _apply(
        self, group: dict[str, Any], p: Tensor, at: slice, x: Tensor, g: Tensor, scale: float, out: Tensor
    ) -> None:
        """Write the new value of a piece of the parameter p into ``out``.

        Args:
            group: the settings.
            p: the parameter, key of ``self.state``.
            at: the piece, a slice of the flattened parameter.
            x: its exact value.
            g: scale * g is the estimated gradient, weight decay and sign included. Not to be overwritten.
            scale: see ``g``; a factor here saves a pass over the memory.
            out: the new value.
        """
        raise NotImplementedError

    def _buffer(self, p: Tensor, name: str) -> Tensor:
        """A state of the shape of p as a flat tensor, zero at first; float32, or float64 for float64 parameters."""
        state = self.state[p]
        if name not in state:
            dtype = torch.float64 if p.dtype == torch.float64 else torch.float32
            state[name] = torch.zeros(p.shape, dtype=dtype, device=p.device)
        return state[name].view(-1)

    # ------------------------------------------------------------------ parameters and directions

    def direction(self, step: int | None = None, query: int = 0) -> Direction:
        """The direction u of a step (by default the coming one) and query, over all parameters in their order."""
        shared, params = self._shared(), self._parameters()
        return Direction(
            shared["directions"],
            [p.numel() for p in params],
            [p.requires_grad for p in params],
            (shared["seed"], shared["step"] if step is None else step, query),
            next(iter(self._moving().values())).device,
        )

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _moving(self) -> dict[int, Tensor]:
        """The parameters that train, by their number."""
        moving = {i: p for i, p in enumerate(self._parameters()) if p.requires_grad}
        if not moving:
            raise ValueError("no parameter requires grad, so there is nothing to train: frozen parameters do not move")
        for p in moving.values():
            if not p.is_floating_point():
                raise TypeError(f"parameters must be real floating-point numbers, got {p.dtype}")
        devices = {p.device for p in moving.values()}
        if len(devices) > 1:
            raise ValueError(f"parameters must be on one device, these are on {', '.join(sorted(map(str, devices)))}")
        return moving

    def _store(self, params: dict[int, Tensor]) -> bool:
        store = self._shared()["store_direction"]
        if store == "auto":
            return sum(p.numel() * p.element_size() for p in params.values()) <= _COPY_LIMIT
        return store

    def _set_shared(self, name: str, value: int) -> None:
        for group in self.param_groups:
            group[name] = value


def _estimate(pieces: Sequence[Piece], slopes: Sequence[float], x: Tensor) -> tuple[Tensor, float]:
    """The average over queries of slope * u as scale * g, in float64 if x is, else in float32."""
    work = torch.float64 if x.dtype == torch.float64 else torch.float32
    if len(pieces) == 1:
        return pieces[0].window.to(work), slopes[0] * pieces[0].scale
    g = torch.zeros(len(x), dtype=work, device=x.device)
    for piece, slope in zip(pieces, slopes, strict=True):
        g.add_(piece.window, alpha=slope * piece.scale)
    return g, 1 / len(pieces)
