"""A run: train, measure, write down, from the beginning or from a checkpoint.

A run that is interrupted at any moment, by Ctrl-C or by ``kill -9``, goes on from its last checkpoint and ends as if
nothing had happened, to the last bit: directions, batches and probes are functions of (seed, step), and the metrics are
cut back to where they were at the checkpoint.
"""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch.optim import Optimizer

from zoedge.curvature import HessianOperator, measure, relative_commutator
from zoedge.curvature.recursion import recursion
from zoedge.experiments import checkpoint
from zoedge.experiments.checkpoint import Checkpoint
from zoedge.experiments.folder import MetricsWriter, RunFolder, Status, revision
from zoedge.experiments.objective import Objective, seeded_generator
from zoedge.experiments.optimizers import build_optimizer, take_step
from zoedge.experiments.settings import Settings
from zoedge.monitor import EdgeLR
from zoedge.optim import NonFiniteLossError
from zoedge.theory import Band

# A loss so many times the first one does not come back.
_BLOWN_UP = 1e4
# Seconds between two writings of the status.
_REPORT_EVERY = 2.0


@dataclass(frozen=True)
class Moment:
    """What a watcher of a run sees.

    Attributes:
        step: steps taken.
        loss: of the last step.
        band: the last reading, or ``None``.
        measuring: whether a reading is under way.
    """

    step: int
    loss: float
    band: Band | None
    measuring: bool = False


Watch = Callable[[Moment], object]


def start(settings: Settings, path: Path, watch: Watch | None = None) -> Status:
    """Start a run in a new folder; returns how it ended."""
    return resume(RunFolder.create(path, settings), watch)


def resume(folder: RunFolder, watch: Watch | None = None) -> Status:
    """Go on with a run; a finished one is left as it is."""
    with folder.locked():
        if folder.status.state in ("finished", "diverged"):
            return folder.status
        return _Run(folder, watch or (lambda moment: None)).go()


class _DivergedError(ArithmeticError):
    """The loss has left all bounds."""


class _Run:
    """The state of a run in this process."""

    def __init__(self, folder: RunFolder, watch: Watch) -> None:
        self._folder, self._watch, self._settings = folder, watch, folder.settings
        self._objective = Objective(self._settings)
        torch.set_num_threads(self._settings.threads or self._objective.threads)
        self._optimizer: Optimizer = build_optimizer(self._settings, self._objective)
        self._schedule = EdgeLR(self._optimizer) if self._settings.lr == "edge" else None  # pyright: ignore[reportArgumentType]
        self._parts = {"model": self._objective.model, "optimizer": self._optimizer}
        if self._schedule:
            self._parts["schedule"] = self._schedule
        self._adaptive = "adam" in self._settings.method
        self._checkpoints = folder.path / "checkpoints"
        self._checkpoints.mkdir(exist_ok=True)
        folder.clean_up()
        found, unusable = checkpoint.load(self._checkpoints, folder.metrics_size, **self._parts)
        self._checkpoint = found or Checkpoint(0, 0, {"first_loss": math.nan})
        for name in unusable:
            (self._checkpoints / name).unlink()
            warnings.warn(
                f"the checkpoint {name} of {folder.path}, or its metrics, are damaged: going on from step "
                f"{self._checkpoint.step}",
                stacklevel=2,
            )
        self._first_loss = self._checkpoint.extra["first_loss"]
        self._before = folder.status
        self._revisions = (*self._before.revisions, revision())
        self._started, self._measuring = time.monotonic(), 0.0
        self._band: Band | None = None
        self._step, self._loss = self._checkpoint.step, math.nan

    def go(self) -> Status:
        self._report("running")
        try:
            with self._folder.metrics_writer(self._checkpoint.metrics_size) as metrics:
                while self._step < self._settings.steps:
                    self._advance(metrics)
                self._finish(metrics)
        except KeyboardInterrupt:
            self._report("interrupted", "by the user")
            raise
        except (NonFiniteLossError, _DivergedError) as error:
            return self._report("diverged", str(error))
        except Exception as error:
            self._report("interrupted", f"{type(error).__name__}: {error}")
            raise
        return self._report("finished")

    def _advance(self, metrics: MetricsWriter) -> None:
        settings, step = self._settings, self._step
        if step % settings.checkpoint_every == 0 and step > self._checkpoint.step:
            self._save(metrics)
        lr = self._set_lr()
        row = self._measure() if self._is_read(step) else {}
        self._loss = take_step(self._optimizer, self._objective, step)
        if self._schedule:
            self._schedule.step()
        if row or step % settings.log_every == 0:
            metrics.write({"step": step, "loss": self._loss, "lr": lr, **row})
        if not (self._schedule and math.isnan(self._loss)):  # where it has gone back, it goes on
            self._check_loss()
        self._step += 1
        if time.monotonic() - self._reported > _REPORT_EVERY:
            self._report("running")
        self._watch(Moment(self._step, self._loss, self._band))

    def _set_lr(self) -> float:
        """The step size of the coming step."""
        if self._schedule:
            return self._schedule.last_lr
        lr = self._settings.lr_at(self._step)
        for group in self._optimizer.param_groups:
            group["lr"] = lr
        return lr

    def _is_read(self, step: int) -> bool:
        """Whether something is measured before a step; Adam has no preconditioner before its first one."""
        every = self._settings.measure_every
        if self._schedule and self._schedule.last_lr == 0:
            return False  # without a step size there is no threshold
        if not self._adaptive:
            return every > 0 and step % every == 0
        # After one step there is one, which shows how the commutator begins, but not where the edge will be.
        return every > 0 and step > 0 and (step % every == 0 or (step == 1 and self._settings.commutator_probes > 0))

    def _finish(self, metrics: MetricsWriter) -> None:
        """The last row: the loss after all steps, and a reading.

        The checkpoint ends before it, so that a run that was killed between the two writes the row again.
        """
        with torch.no_grad():
            self._loss = float(self._objective())
        self._check_loss()
        lr = self._schedule.last_lr if self._schedule else self._settings.lr_at(self._step - 1)
        row = self._measure() if self._settings.measure_every and lr else {}
        size = metrics.size
        metrics.write({"step": self._step, "loss": self._loss, "lr": lr, **row})
        self._save(metrics, size)

    def _measure(self) -> dict[str, float]:
        """A reading of the curvature on all data."""
        try:
            return self._read()
        except (ArithmeticError, ValueError):
            with torch.no_grad():
                self._loss = float(self._objective())
            self._check_loss()  # far beyond the edge there is nothing to measure
            raise

    def _read(self) -> dict[str, float]:
        started = time.monotonic()
        self._watch(Moment(self._step, self._loss, self._band, measuring=True))
        device = self._objective.task.inputs.device
        generator = seeded_generator(self._settings.seed, self._step, "probes", device)
        row: dict[str, float] = {}
        if not self._adaptive or self._step > 1:
            self._band = measure(
                self._optimizer,
                self._objective.part,
                self._settings.budget,
                batches=self._objective.chunks(),
                keep=True,
                generator=generator,
            )
            row = {name: value for name, value in asdict(self._band).items() if name != "step"}
        if self._adaptive and self._settings.commutator_probes:
            row |= self._commutator(generator)
        self._measuring += time.monotonic() - started
        self._report("running")
        return row

    def _commutator(self, generator: torch.Generator) -> dict[str, float]:
        """How far preconditioner and Hessian are from commuting."""
        found = recursion(self._optimizer)
        assert found.preconditioner is not None, "Adam has one after its first step"
        H = HessianOperator(self._objective.part, found.params, batches=self._objective.chunks(), keep=True)
        estimate = relative_commutator(H, found.preconditioner, self._settings.commutator_probes, generator=generator)
        return {"commutator": estimate.value, "commutator_stderr": estimate.stderr}

    def _check_loss(self) -> None:
        if math.isnan(self._first_loss):
            self._first_loss = self._loss
        if not self._loss <= _BLOWN_UP * max(self._first_loss, 1e-3):
            raise _DivergedError(
                f"the loss is {self._loss:.3g} at step {self._step}, it was {self._first_loss:.3g} at the start"
            )

    def _save(self, metrics: MetricsWriter, size: int | None = None) -> None:
        """Write a checkpoint after so many bytes of the metrics, by default all of them."""
        on_disk = metrics.size
        self._checkpoint = Checkpoint(self._step, on_disk if size is None else size, {"first_loss": self._first_loss})
        checkpoint.save(self._checkpoints, self._checkpoint, **self._parts)

    def _report(self, state: str, reason: str = "") -> Status:
        status = Status(
            state,  # pyright: ignore[reportArgumentType]
            self._step,
            reason,
            self._before.seconds + time.monotonic() - self._started,
            self._before.measuring + self._measuring,
            self._before.edge_ratio if self._band is None else self._band.edge_ratio,
            self._revisions,
        )
        self._folder.status = status
        self._reported = time.monotonic()
        return status


def default_path(settings: Settings, root: Path) -> Path:
    """A name that says what is trained, and how."""
    parts = [settings.task, settings.model, settings.method, f"lr{settings.lr}"]
    if settings.method in ("gdm", "adam", "zo-gdm", "zo-adam"):
        parts.append(f"beta{settings.momentum:g}")
    return root / "-".join([*parts, f"seed{settings.seed}"])
