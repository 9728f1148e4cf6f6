"""The settings of a run: one frozen dataclass that the command line, config files and run folders share."""

import dataclasses
import difflib
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import msgspec

from zoedge.theory import checks
from zoedge.theory.estimator import Directions, Form

TaskName = Literal["digits", "cifar10", "sorting"]
ModelName = Literal["mlp", "cnn", "resnet20", "vit", "lstm", "mamba"]
LossName = Literal["squared", "cross-entropy"]
MethodName = Literal["gd", "gdm", "adam", "zo-gd", "zo-gdm", "zo-adam"]


@dataclass(frozen=True)
class Data:
    """Of the task; what is not given is the task's default.

    Args:
        classes: number of classes (digits, cifar10).
        per_class: examples of each class (digits, cifar10).
        image_size: pixels of a side (digits, cifar10).
        examples: number of sequences (sorting).
        numbers: how many different numbers (sorting).
        length: of a sequence (sorting).
        seed: of the sequences (sorting), of a random choice (digits, cifar10; by default the first of each class).
        folder: with the files of CIFAR-10; by default the cache, else they are downloaded.
    """

    classes: int | None = None
    per_class: int | None = None
    image_size: int | None = None
    examples: int | None = None
    numbers: int | None = None
    length: int | None = None
    seed: int | None = None
    folder: str | None = None


@dataclass(frozen=True)
class Size:
    """Of the model; what is not given is the paper's.

    Args:
        width: channels, or width of the embedding.
        depth: number of layers or blocks.
        hidden: width of hidden layers (cnn, vit, lstm).
        heads: of attention (vit).
        patch: pixels of a patch's side (vit).
        groups: of GroupNorm (resnet20).
        state: per channel (mamba).
    """

    width: int | None = None
    depth: int | None = None
    hidden: int | None = None
    heads: int | None = None
    patch: int | None = None
    groups: int | None = None
    state: int | None = None


@dataclass(frozen=True)
class Settings:
    """What is trained, how, for how long, and what is measured.

    Args:
        task: digits comes with scikit-learn; cifar10 is downloaded; sorting is for lstm and mamba.
        model: the network.
        method: the optimizer.
        loss: squared is the paper's.
        lr: step size; ``edge``: one that follows the edge of stability (zo methods).
        lr_schedule: pairs of a step and the step size from there on.
        momentum: beta of gdm and zo-gdm, beta1 of adam and zo-adam.
        beta2: of adam and zo-adam.
        mu: smoothing of the zo methods.
        directions: of the zo methods.
        queries: directions per step of the zo methods.
        form: of the zo methods' difference.
        batch_size: examples in every step; by default all of them.
        steps: how many.
        log_every: steps between two rows of the metrics.
        measure_every: steps between two readings of the curvature; 0: never.
        budget: Hessian-vector products of a reading.
        commutator_probes: for the relative commutator of Hessian and preconditioner (adam, zo-adam); 0: not measured.
        checkpoint_every: steps between two checkpoints.
        seed: of initialisation, directions and batches.
        device: cpu, cuda or auto.
        threads: of a CPU; 0: one for small models, else all.
        data: settings of the task.
        size: settings of the model.
    """

    task: TaskName = "digits"
    model: ModelName = "vit"
    method: MethodName = "zo-gd"
    loss: LossName = "squared"
    lr: float | Literal["edge"] = 2e-3
    lr_schedule: tuple[tuple[int, float], ...] = ()
    momentum: float = 0.9
    beta2: float = 0.999
    mu: float = 1e-3
    directions: Directions = "gaussian"
    queries: int = 1
    form: Form = "two-point"
    batch_size: int | None = None
    steps: int = 5000
    log_every: int = 10
    measure_every: int = 250
    budget: int = 160
    commutator_probes: int = 0
    checkpoint_every: int = 250
    seed: int = 0
    device: str = "auto"
    threads: int = 0
    data: Data = field(default_factory=Data)
    size: Size = field(default_factory=Size)

    def __post_init__(self) -> None:
        if self.lr != "edge":
            checks.positive("lr", self.lr)
        elif not self.method.startswith("zo-") or self.lr_schedule:
            raise ValueError("lr 'edge' is for the zo methods, and without lr_schedule")
        for name in ("steps", "log_every", "checkpoint_every"):
            checks.count(name, getattr(self, name))
        for name in ("measure_every", "commutator_probes", "seed", "threads"):
            checks.count(name, getattr(self, name), at_least=0)
        for name, most in (("seed", 1 << 32), ("threads", 1 << 10)):
            if getattr(self, name) >= most:
                raise ValueError(f"{name} must be below {most}, got {getattr(self, name)}")
        checks.fraction("momentum", self.momentum)
        checks.fraction("beta2", self.beta2)
        checks.positive("mu", self.mu)
        for part, least in ((self.data, {"seed": 0}), (self.size, {})):
            for f in dataclasses.fields(part):
                if isinstance(value := getattr(part, f.name), int):
                    checks.count(f.name, value, least.get(f.name, 1))
        checks.count("budget", self.budget, at_least=4)
        if self.batch_size is not None:
            checks.count("batch_size", self.batch_size)
        steps = [step for step, _ in self.lr_schedule]
        if steps != sorted(set(steps)) or (steps and steps[0] < 0):
            raise ValueError(f"lr_schedule must have growing steps from 0 on, got {steps}")
        for _, lr in self.lr_schedule:
            checks.positive("lr_schedule", lr)

    def lr_at(self, step: int) -> float:
        """The step size of a step, where it is known beforehand."""
        assert self.lr != "edge", "the edge is known when it is there"
        return next((lr for start, lr in reversed(self.lr_schedule) if step >= start), self.lr)


def to_mapping(settings: Settings) -> dict[str, Any]:
    """Nested dictionaries of plain values, every setting by its name; ``from_mapping`` reads them."""
    return msgspec.to_builtins(settings)


def from_mapping(values: dict[str, Any], where: str) -> Settings:
    """Settings from nested dictionaries; an unknown or ill-typed key is an error that names it.

    Args:
        values: of a config file or a run folder.
        where: what they come from, for the message.
    """
    _check_names(values, Settings, where, "")
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise ValueError(f"{where}: {error}{_options(str(error))}") from None


def read_config(path: Path) -> Settings:
    """Settings from a TOML file."""
    try:
        with path.open("rb") as file:
            return from_mapping(tomllib.load(file), str(path))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from None


def _options(message: str) -> str:
    """The values of a setting that has names for values, if a message of msgspec is about one."""
    found = re.search(r"\$\.(\w+)", message)
    kinds = get_args(Settings.__annotations__.get(found[1])) if found and "enum" in message else ()
    options = [name for kind in kinds for name in get_args(kind) or [getattr(kind, "__name__", kind)]]
    return f": use {', '.join(options)}" if options else ""


def _check_names(values: dict[str, Any], kind: type, where: str, prefix: str) -> None:
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for name, value in values.items():
        if name not in fields:
            # By its last part, so that per_class finds data.per_class.
            known = {f.name: f"data.{f.name}" for f in dataclasses.fields(Data)}
            known |= {f.name: f"size.{f.name}" for f in dataclasses.fields(Size)}
            known |= {f.name: f.name for f in dataclasses.fields(Settings)} | {f: f"{prefix}{f}" for f in fields}
            near = difflib.get_close_matches(name.replace("-", "_"), known, n=1)
            hint = f"did you mean {known[near[0]]}?" if near else f"known are {', '.join(fields)}"
            raise ValueError(f"{where}: unknown setting {prefix}{name}; {hint}")
        nested = fields[name].default_factory
        if isinstance(value, dict) and isinstance(nested, type):
            _check_names(value, nested, where, f"{prefix}{name}.")
