"""The step that all zeroth-order optimizers share: evaluate along random directions, then update.

Subclasses say what to do with an estimated gradient.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.optim import Optimizer

from zoedge.optim.directions import Direction, Piece
from zoedge.optim.evaluation import Probe, evaluate
from zoedge.optim.interrupts import Interrupts
from zoedge.optim.loss import Closure, Loss
from zoedge.optim.moves import Copied, Moves, Replayed, Update
from zoedge.optim.record import NonFiniteLossError, StepRecord
from zoedge.optim.rounding import rounding_generator, stochastic_round
from zoedge.theory import Estimator, Method, checks

# "auto" keeps a copy of the parameters up to this many bytes.
_COPY_LIMIT = 1 << 30
# One loss difference serves all parameters, so these cannot differ between groups.
_SHARED = ("mu", "queries", "directions", "form", "seed", "step", "skipped")
# A projected gradient beyond this overflows float32 when it is squared.
_LARGEST_SLOPE = 1e18

_NO_CLOSURE = (
    "step() needs a closure that returns the loss, because a zeroth-order step evaluates it several times:\n"
    "    def closure():\n"
    "        return loss_function(model(inputs), targets)\n"
    "    loss = optimizer.step(closure)"
)


class ZerothOrder(Optimizer):
    """Base of the zeroth-order optimizers."""

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], policy: dict[str, Any]) -> None:
        """Check and store the settings.

        Args:
            params: parameters or groups.
            defaults: settings of a group, saved in checkpoints.
            policy: probe_every, on_nonfinite, store_direction: how this process runs, not saved in checkpoints; nor is
                lr_scale.
        """
        Estimator(defaults["form"], defaults["directions"], defaults["queries"], defaults["mu"])
        checks.count("probe_every", policy["probe_every"], at_least=0)
        checks.choice("on_nonfinite", policy["on_nonfinite"], ("raise", "skip"))
        if policy["store_direction"] not in (True, False, "auto"):
            raise ValueError(f"store_direction must be True, False or 'auto', got {policy['store_direction']!r}")
        lr = defaults["lr"]
        if checks.number("lr", lr) < 0:
            raise ValueError(f"lr must not be negative, got {lr}")
        seed = checks.count("seed", defaults["seed"], at_least=0)
        if seed >= 1 << 32:
            raise ValueError(f"seed must be below 2^32, got {seed}")
        # Plain numbers, so that checkpoints load with weights_only=True.
        checked = {
            "lr": lr if isinstance(lr, Tensor) else float(lr),
            "weight_decay": checks.number("weight_decay", defaults["weight_decay"]),
            "mu": float(defaults["mu"]),
            "queries": int(defaults["queries"]),
            "seed": seed,
        }
        self._policy = {**policy, "lr_scale": 1.0}
        super().__init__(params, {**defaults, **checked, "step": 0, "skipped": 0})
        self._start()

    def _start(self) -> None:
        """Set what is not part of the state."""
        self._last: StepRecord | None = None
        self._last_finite_loss = math.nan
        self._buffers: dict[tuple, Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_policy": self._policy}

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
    def method(self) -> Method:
        """The recursion, as the theory knows it; all groups must have the same momentum."""
        first, *others = (self._method(group) for group in self.param_groups)
        if any(other != first for other in others):
            raise ValueError("the parameter groups have different momenta, and the theory knows one for all")
        return first

    def _method(self, group: dict[str, Any]) -> Method:
        raise NotImplementedError

    @property
    def probe_every(self) -> int:
        """Steps between two probes of the curvature; 0: never."""
        return self._policy["probe_every"]

    @probe_every.setter
    def probe_every(self, value: int) -> None:
        self._policy["probe_every"] = checks.count("probe_every", value, at_least=0)

    @property
    def on_nonfinite(self) -> Literal["raise", "skip"]:
        """What happens if the loss is not finite."""
        return self._policy["on_nonfinite"]

    @on_nonfinite.setter
    def on_nonfinite(self, value: Literal["raise", "skip"]) -> None:
        self._policy["on_nonfinite"] = checks.choice("on_nonfinite", value, ("raise", "skip"))

    @property
    def lr_scale(self) -> float:
        """What the step sizes of all groups are multiplied by; 1 unless something like ``EdgeLR`` sets it."""
        return self._policy["lr_scale"]

    @lr_scale.setter
    def lr_scale(self, value: float) -> None:
        if checks.number("lr_scale", value) < 0:
            raise ValueError(f"lr_scale must not be negative, got {value}")
        self._policy["lr_scale"] = value

    def _lr(self, group: dict[str, Any]) -> float:
        return float(group["lr"]) * self.lr_scale

    @property
    def step_count(self) -> int:
        """Number of steps taken so far, skipped ones included."""
        return self._shared()["step"]

    @property
    def skipped_count(self) -> int:
        """Number of steps that were skipped because the loss was not finite."""
        return self._shared()["skipped"]

    def _shared(self) -> dict[str, Any]:
        """Group 0, with the settings that all groups share, after a check of all groups."""
        first, *others = self.param_groups
        for group in self.param_groups:
            if checks.number("lr", group["lr"]) < 0 or checks.number("weight_decay", group["weight_decay"]) < 0:
                raise ValueError(
                    f"lr and weight_decay must not be negative, got {group['lr']} and {group['weight_decay']}"
                )
        for name in _SHARED:
            for number, group in enumerate(others, start=1):
                _same(name, first[name], group[name], number)
        return first

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with settings of their own; those of the estimator are shared by all groups."""
        if self.param_groups:
            for name in _SHARED:
                given = param_group.setdefault(name, self.param_groups[0][name])
                _same(name, self.param_groups[0][name], given, len(self.param_groups))
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; buffers keep their own dtype (PyTorch's would round float32 averages of 16-bit parameters)."""
        for group in state_dict["param_groups"]:
            missing = sorted(self.defaults.keys() - group.keys())
            if missing:
                raise ValueError(f"this is no state of {type(self).__name__}: it lacks {', '.join(missing)}")
        final: list[dict[str, Any]] = []
        # The last of the hooks before sees what is really loaded, the first of those after puts the dtypes right.
        before = self.register_load_state_dict_pre_hook(lambda _, state: final.append(state))
        after = self.register_load_state_dict_post_hook(lambda _: self._restore_buffers(final[0]), prepend=True)
        try:
            super().load_state_dict(state_dict)
        finally:
            before.remove()
            after.remove()

    def _restore_buffers(self, state_dict: dict[str, Any]) -> None:
        saved = [index for group in state_dict["param_groups"] for index in group["params"]]
        for index, p in zip(saved, self._parameters(), strict=True):
            for name, value in state_dict["state"].get(index, {}).items():
                if isinstance(value, Tensor):
                    self.state[p][name] = value.detach().to(p.device, copy=True)

    # ------------------------------------------------------------------ the step

    @torch.inference_mode(mode=False)  # buffers made inside inference_mode could never be written to again
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
        if not callable(closure):
            raise TypeError(_NO_CLOSURE)
        shared, params = self._shared(), self._moving()
        moves = (Copied if self._store(params) else Replayed)(params, self._buffers)
        directions = [self._direction(params, shared["step"], query) for query in range(shared["queries"])]
        self._allocate_state(params)
        with Interrupts() as interrupts:
            loss = Loss(closure, list(params.values()), interrupts)
            try:
                record = self._evaluate(shared, moves, directions, loss)
                if record.skipped:
                    moves.back()
                    self._set_shared("skipped", shared["skipped"] + 1)
                else:
                    moves.update(self._updates(shared, record.slopes, directions))
                    for p in params.values():
                        self.state[p]["updates"] = self.state[p].get("updates", 0) + 1
                self._set_shared("step", shared["step"] + 1)
                self._last = record
            except BaseException:
                moves.back()
                loss.restore_generators()
                raise
        return torch.tensor(record.loss, dtype=torch.float64)

    def _evaluate(
        self, shared: dict[str, Any], moves: Moves, directions: Sequence[Direction], loss: Loss
    ) -> StepRecord:
        probed = self.probe_every > 0 and shared["step"] % self.probe_every == 0
        probe = self._probe(directions, shared["mu"]) if probed else None
        found = evaluate(loss, moves, directions, shared["mu"], shared["form"] == "forward", probe)
        if loss.nonfinite is None and max(map(abs, found.slopes)) > _LARGEST_SLOPE:
            loss.nonfinite = max(found.plus + found.minus, key=abs)
        record = StepRecord(
            step=shared["step"],
            lr=tuple(self._lr(group) for group in self.param_groups),
            mu=shared["mu"],
            **vars(found),
            skipped=loss.nonfinite is not None,
        )
        if loss.nonfinite is None:
            self._last_finite_loss = record.loss
        elif self.on_nonfinite == "raise":
            raise NonFiniteLossError(record.step, record.lr, loss.nonfinite, self._last_finite_loss)
        return record

    def _probe(self, directions: Sequence[Direction], mu: float) -> Probe | None:
        """Where to measure curvature in a step that is probed."""
        return Probe(directions, mu)

    def _updates(self, shared: dict[str, Any], slopes: Sequence[float], directions: Sequence[Direction]) -> Update:
        """What turns a piece of x into its new value."""
        params = self._parameters()
        groups = [group for group in self.param_groups for _ in group["params"]]

        def update(i: int, k: int, at: slice, x: Tensor, out: Tensor) -> None:
            p, group = params[i], groups[i]
            sign = -1.0 if group["maximize"] else 1.0
            work = torch.float64 if p.dtype == torch.float64 else torch.float32
            exact = x.to(work)
            g = _average([direction[i][k] for direction in directions], [sign * slope for slope in slopes], exact)
            if group["weight_decay"]:
                g = Piece(g.add_to(exact * group["weight_decay"], 1.0, torch.empty_like(exact)), None, 1.0)
            if p.dtype == work:
                self._apply(group, p, at, exact, g, out)
            else:
                new = torch.empty_like(exact)
                self._apply(group, p, at, exact, g, new)
                generator = rounding_generator(shared["seed"], shared["step"], (i, k), p.device)
                out.copy_(stochastic_round(new, p.dtype, generator))

        return update

    def _state_names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The buffers that a parameter of this group needs."""
        raise NotImplementedError

    def _apply(self, group: dict[str, Any], p: Tensor, at: slice, x: Tensor, g: Piece, out: Tensor) -> None:
        """Write the new value of a piece of the parameter p into ``out``.

        Args:
            group: the settings.
            p: the parameter, key of ``self.state``.
            at: the piece, a slice of the flattened parameter.
            x: its exact value.
            g: its estimated gradient, weight decay and sign included, in the form of a piece of a direction.
            out: the new value.
        """
        raise NotImplementedError

    def _buffer(self, p: Tensor, name: str) -> Tensor:
        """A buffer of the state as a flat tensor."""
        return self.state[p][name].view(-1)

    def _allocate_state(self, params: dict[int, Tensor]) -> None:
        """Before anything moves, so that running out of memory leaves no half-done step.

        Buffers are zero at first, in float32, or float64 for float64 parameters.
        """
        groups = [group for group in self.param_groups for _ in group["params"]]
        for i, p in params.items():
            dtype = torch.float64 if p.dtype == torch.float64 else torch.float32
            for name in self._state_names(groups[i]):
                if name not in self.state[p]:
                    self.state[p][name] = torch.zeros(p.shape, dtype=dtype, device=p.device)
                    self.state[p][f"{name}_since"] = self.state[p].get("updates", 0)

    # ------------------------------------------------------------------ parameters and directions

    def direction(self, step: int | None = None, query: int = 0) -> Direction:
        """The direction u of a step (by default the coming one) and query, over all parameters in their order."""
        return self._direction(self._moving(), self.step_count if step is None else step, query)

    def _direction(self, moving: dict[int, Tensor], step: int, query: int) -> Direction:
        params, first = self._parameters(), self.param_groups[0]
        return Direction(
            first["directions"],
            [p.numel() for p in params],
            [i in moving for i in range(len(params))],
            (first["seed"], step, query),
            next(iter(moving.values())).device,
        )

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _moving(self) -> dict[int, Tensor]:
        """The parameters that train, by their number."""
        moving = {i: p for i, p in enumerate(self._parameters()) if p.requires_grad}
        if not moving:
            raise ValueError("no parameter requires grad, so there is nothing to train: frozen parameters do not move")
        for p in moving.values():
            if (
                p.dtype not in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
                or p.layout != torch.strided
            ):
                raise TypeError(
                    "parameters must be dense and float64, float32, bfloat16 or float16, floating-point; "
                    f"got {p.layout}, {p.dtype}"
                )
        devices = {p.device for p in moving.values()}
        if len(devices) > 1:
            raise ValueError(f"parameters must be on one device, these are on {', '.join(sorted(map(str, devices)))}")
        places = [p.data_ptr() for p in moving.values() if p.numel()]
        if len(set(places)) < len(places):
            raise ValueError("two parameters share their memory: tie weights by sharing the Parameter, not its data")
        return moving

    def _store(self, params: dict[int, Tensor]) -> bool:
        store = self._policy["store_direction"]
        if store == "auto":
            return sum(p.numel() * p.element_size() for p in params.values()) <= _COPY_LIMIT
        return store

    def _set_shared(self, name: str, value: int) -> None:
        for group in self.param_groups:
            group[name] = value


def _average(pieces: Sequence[Piece], slopes: Sequence[float], x: Tensor) -> Piece:
    """The average over queries of slope * u; of a single one without a pass over the memory."""
    if len(pieces) == 1:
        piece = pieces[0]
        return piece._replace(window=piece.window.to(x.dtype), scale=slopes[0] * piece.scale)
    g = torch.zeros_like(x)
    for piece, slope in zip(pieces, slopes, strict=True):
        piece.add_to(g, slope, out=g)
    return Piece(g, None, 1 / len(pieces))


def _same(name: str, first: Any, other: Any, number: int) -> None:
    if other != first:
        raise ValueError(
            f"{name} is {first!r} in parameter group 0 and {other!r} in group {number}, but one loss difference serves "
            "all groups: set it in the optimizer, not in a group"
        )
