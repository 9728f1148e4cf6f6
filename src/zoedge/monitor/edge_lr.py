"""A step size that follows the edge of stability."""

import math
import warnings
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any, Literal

from zoedge.monitor.edge_monitor import EdgeMonitor
from zoedge.monitor.moments import TARGET, cautious
from zoedge.monitor.signal import Signal
from zoedge.monitor.stretch import Stretch
from zoedge.optim import NonFiniteLossError
from zoedge.optim.zeroth_order import ZerothOrder
from zoedge.theory import checks

# Samples of the curvature, and steps, before anything moves; of the window, so many samples are looked at alone, too:
# they see first when curvature grows.
_WARMUP, _STILL, _RECENT = 16, 8, 8
# The first step size, as a share of the target, and by how much it may grow in a step: in the ramp, in which every step
# is probed, and later.
_START, _RAMP, _RAMP_STEPS, _GROWTH = 1e-3, 1.07, 300, 1.01
# The loss has left its range if _TOGETHER steps have a median of _RANGE times the largest of the _LOSSES before.
_RANGE, _TOGETHER, _LOSSES = 2.0, 3, 100
# What the step size is multiplied by after going back; it recovers by _GROWTH. So many times in a row are enough.
_CAUTION, _ATTEMPTS = 0.5, 20
# What losses at one point may differ by, relatively, if they are of the same data.
_SAME = 1e-4


class EdgeLR:
    """Sets the step size of a zeroth-order optimizer to a share of the critical one, by loss values alone.

    ::

        opt = ZOSGD(model.parameters())
        schedule = EdgeLR(opt)
        for inputs, targets in data:
            loss = opt.step(lambda: loss_function(model(inputs), targets))
            schedule.step()

    At first nothing moves, while the curvature is measured; then the step size grows from nearly nothing, with a probe
    in every step, and after some hundred steps with one in ``probe_every``. It grows slowly and drops at once. If the
    loss leaves its range or is not finite, parameters and optimizer go back to the last snapshot, and the step size is
    halved for a while.

    If every step sees the same data, the step size is ``target`` times the critical one. On mini-batches, where most of
    a step is noise, it is that times the signal fraction: how steeply the way of the last ``snapshot_every`` steps goes
    down on new batches, relative to how steeply each step went down on its own. In both cases steps are so short that
    as a random walk they would change the parameters by ``walk`` of their size in a step.

    It multiplies with PyTorch's schedulers: it sets ``optimizer.lr_scale``, and ``group["lr"]`` becomes a multiplier of
    that, at first 1, which they may change. So make this one first, then theirs. Groups keep the ratios of their lr.

    Args:
        optimizer: ``ZOSGD`` or ``ZOAdam``; it is set to probe, and to skip steps whose loss is not finite.
        target: the share; ``"auto"`` is 0.7.
        probe_every: steps between two probes, each an evaluation more (ZOAdam: three).
        window: samples of the curvature that are looked at.
        snapshot_every: steps between two snapshots, each a copy of parameters and the optimizer's buffers; 0: none, so
            that there is no going back, and a signal fraction of 0.05 is assumed.
        walk: the longest step, relative to the parameters.

    Attributes:
        monitor: how near the run is to the edge.
    """

    def __init__(
        self,
        optimizer: ZerothOrder,
        target: float | Literal["auto"] = "auto",
        *,
        probe_every: int = 10,
        window: int = 32,
        snapshot_every: int = 100,
        walk: float = 0.05,
    ) -> None:
        if not isinstance(optimizer, ZerothOrder):
            raise TypeError(f"EdgeLR is for zoedge's ZOSGD and ZOAdam, got {type(optimizer).__name__}")
        self._target = TARGET if target == "auto" else checks.positive("target", target)
        self._probe_every = checks.count("probe_every", probe_every)
        self._snapshot_every = checks.count("snapshot_every", snapshot_every, at_least=0)
        self._walk = checks.positive("walk", walk)
        largest = max(float(group["lr"]) for group in optimizer.param_groups)
        if largest == 0:
            raise ValueError("lr is 0 in every parameter group: EdgeLR keeps their ratios, so give one a positive lr")
        if any(group["maximize"] for group in optimizer.param_groups):
            raise ValueError(
                "EdgeLR goes downhill: instead of maximize=True, return the negative loss from the closure"
            )
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] = float(group["lr"]) / largest
        optimizer.probe_every, optimizer.on_nonfinite, optimizer.lr_scale = 1, "skip", 0.0
        self._optimizer = optimizer
        self.monitor = EdgeMonitor(optimizer, checks.count("window", window, at_least=_WARMUP))
        self._signal = Signal()
        self._stretch: Stretch | None = None
        self._centres: list[float] = []
        self._losses: deque[float] = deque(maxlen=_LOSSES + _TOGETHER)
        self._steps, self._edge, self._longest, self._allowance = 0, math.nan, math.inf, 1.0
        self._failures, self._expected, self._warned = 0, optimizer.step_count, False
        optimizer.register_step_pre_hook(self._before_step)

    # ------------------------------------------------------------------ what it found

    @property
    def last_lr(self) -> float:
        """The step size that the edge allows, before other schedulers; 0 while nothing moves."""
        return self._optimizer.lr_scale

    def get_last_lr(self) -> list[float]:
        """The step sizes of the coming step, of every group."""
        return [group["lr"] * self.last_lr for group in self._optimizer.param_groups]

    @property
    def mini_batch(self) -> bool:
        """Whether the loss at one point was not the same number all through the warm-up."""
        if len(self._centres) < 2:
            return False
        return max(self._centres) - min(self._centres) > _SAME * max(map(abs, self._centres))

    @property
    def signal_fraction(self) -> float:
        """How much of a step is signal; 1 if every step sees the same data."""
        return self._signal.fraction if self.mini_batch else 1.0

    # ------------------------------------------------------------------ the schedule

    def step(self) -> None:
        """Take in the last step of the optimizer and set the next step size."""
        record = self._optimizer.last
        self._expected = self._optimizer.step_count
        self._steps += 1
        if record.skipped or self._out_of_range(record.loss):
            self._go_back()
            return
        self.monitor.update()
        if self.last_lr == 0 and not math.isnan(record.centre):
            self._centres.append(record.centre)
        self._signal.add(record.slopes, record.probe_slopes)
        if self._stretch is not None:
            lr = max(record.lr)
            method = self._optimizer.method
            self._stretch.add(lr, lr * method.scale / (1 - method.momentum) * self._signal.square)
        samples = self.monitor.samples
        if not math.isnan(record.curvatures[0]) and len(samples) >= _WARMUP and len(self._centres) >= _STILL:
            self._edge = min(self._step_size(samples), self._step_size(samples[-_RECENT:]))
            self._longest = self._longest_step()
        if not math.isnan(self._edge):
            self._follow()
        if self._steps == _RAMP_STEPS:
            self._optimizer.probe_every = self._probe_every

    def _follow(self) -> None:
        target = self._allowance * min(self._target * self.signal_fraction * self._edge, self._longest)
        if self.last_lr == 0:
            self._optimizer.lr_scale = _START * target
            if self._snapshot_every:
                self._stretch = Stretch(self._optimizer)
            return
        growth = _RAMP if self._steps <= _RAMP_STEPS else _GROWTH
        self._optimizer.lr_scale = min(target, self.last_lr * growth)
        self._allowance = min(self._allowance * _GROWTH, 1.0)
        if self._stretch is not None and self._stretch.steps >= self._snapshot_every:
            self._stretch = Stretch(self._optimizer)
            self._failures = 0

    def _step_size(self, samples: Sequence[float]) -> float:
        return cautious(samples, self._optimizer.method, self._optimizer.estimator, self.monitor.dimension)

    def _longest_step(self) -> float:
        """The step size with which a step changes the parameters by ``walk`` of their size."""
        if self._stretch is None or self._stretch.lr_squares == 0:
            return self._longest
        length = self._stretch.length()
        return self._walk * self._stretch.size / length * math.sqrt(self._stretch.lr_squares) if length else math.inf

    # ------------------------------------------------------------------ going back

    def _out_of_range(self, loss: float) -> bool:
        self._losses.append(loss)
        losses = list(self._losses)
        before, now = losses[:-_TOGETHER], losses[-_TOGETHER:]
        return len(before) >= _WARMUP and median(now) > _RANGE * max(before)

    def _go_back(self) -> None:
        """To the last snapshot, with smaller steps."""
        self._failures += 1
        if self._failures > _ATTEMPTS:
            record = self._optimizer.last
            raise NonFiniteLossError(record.step, record.lr, record.loss, self._losses[0] if self._losses else math.nan)
        if self._stretch is not None:
            self._stretch.undo()
        self._losses.clear()
        self._allowance *= _CAUTION
        self._optimizer.lr_scale *= _CAUTION

    def _before_step(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """See how the way so far goes down on the data of this step."""
        if self._optimizer.step_count > self._expected and not self._warned:
            self._warned = True
            warnings.warn("EdgeLR.step() was not called after the last step: call it after every one", stacklevel=3)
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if callable(closure) and self._stretch is not None and self.mini_batch:
            self._signal.measure(self._stretch, closure, self._snapshot_every)

    # ------------------------------------------------------------------ checkpoints

    def state_dict(self) -> dict[str, Any]:
        """What it takes to go on exactly, the snapshot included."""
        return {
            "monitor": self.monitor.state_dict(),
            "signal": self._signal.state_dict(),
            "stretch": None if self._stretch is None else self._stretch.state_dict(),
            "centres": list(self._centres),
            "losses": list(self._losses),
            "numbers": (self._steps, self.last_lr, self._edge, self._longest, self._allowance, self._failures),
            "probe_every": self._optimizer.probe_every,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state; load that of the optimizer before."""
        self.monitor.load_state_dict(state["monitor"])
        self._signal.load_state_dict(state["signal"])
        self._stretch = None
        if state["stretch"] is not None:
            self._stretch = Stretch(self._optimizer)
            self._stretch.load_state_dict(state["stretch"])
        self._centres = list(state["centres"])
        self._losses = deque(state["losses"], maxlen=self._losses.maxlen)
        self._steps, lr, self._edge, self._longest, self._allowance, self._failures = state["numbers"]
        self._optimizer.lr_scale, self._optimizer.probe_every = lr, state["probe_every"]
        self._expected = self._optimizer.step_count
