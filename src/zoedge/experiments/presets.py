"""Presets: settings with which every model reaches the edge of stability, by every zeroth-order method.

``laptop`` was found by experiment; docs/runs.md has what comes out. ``paper`` is what the paper trains; of its step
sizes the text names only that of ZO-GDM on the CNN, the others have the same threshold.
"""

from dataclasses import replace
from typing import Any, Literal, get_args

from zoedge.experiments.settings import Data, MethodName, ModelName, Settings, Size

PresetName = Literal["laptop", "paper"]
Changes = dict[MethodName, dict[str, Any]]

# What is trained, and for each method how.
_LAPTOP: dict[ModelName, tuple[Settings, Changes]] = {
    "mlp": (
        Settings(data=Data(per_class=10), size=Size(width=64, depth=4), steps=20_000, measure_every=1000),
        {"zo-gd": {"lr": 4e-3}, "zo-gdm": {"lr": 3.5e-4}, "zo-adam": {"lr": 2e-3}},
    ),
    "cnn": (
        Settings(
            task="cifar10",
            data=Data(per_class=12, image_size=16),
            size=Size(width=16, hidden=64),
            steps=30_000,
            measure_every=1500,
        ),
        {
            "gd": {"lr": 2e-2, "steps": 4000, "measure_every": 200},
            "zo-gd": {"lr": 1e-3},
            "zo-gdm": {"lr": 1e-4},
            "zo-adam": {"lr": 1e-3, "steps": 10_000, "measure_every": 500},
        },
    ),
    "resnet20": (
        Settings(data=Data(per_class=5), size=Size(width=8, depth=1), steps=6000, measure_every=300),
        {"zo-gd": {"lr": 3e-3}, "zo-gdm": {"lr": 4e-4}, "zo-adam": {"lr": 3e-3}},
    ),
    "vit": (
        Settings(data=Data(per_class=5), size=Size(width=16, depth=2, heads=4, patch=4), steps=8000, measure_every=400),
        {"zo-gd": {"lr": 3e-3}, "zo-gdm": {"lr": 4e-4}, "zo-adam": {"lr": 3e-3}},
    ),
    "lstm": (
        Settings(
            task="sorting",
            loss="cross-entropy",
            data=Data(examples=100, length=4),
            steps=15_000,
            measure_every=1000,
        ),
        {
            "zo-gd": {"lr": 5e-3},
            "zo-gdm": {"lr": 6e-4},
            "zo-adam": {"lr": 3e-3, "steps": 8000, "measure_every": 500},
        },
    ),
    "mamba": (
        Settings(
            task="sorting",
            loss="cross-entropy",
            data=Data(examples=50),
            size=Size(width=16, state=4),
            steps=8000,
            measure_every=500,
        ),
        {"zo-gd": {"lr": 1e-2}, "zo-gdm": {"lr": 1e-3}, "zo-adam": {"lr": 3e-3}},
    ),
}
_PAPER_METHODS: Changes = {"zo-gd": {"lr": 1e-3}, "zo-gdm": {"lr": 1e-4}, "zo-adam": {"lr": 1e-3}}
_PAPER_LENGTH: dict[str, Any] = {"steps": 200_000, "measure_every": 1000, "log_every": 100, "checkpoint_every": 1000}
_IMAGES = Settings(task="cifar10", **_PAPER_LENGTH)
_SORTING = Settings(task="sorting", loss="cross-entropy", **_PAPER_LENGTH)
_PAPER: dict[ModelName, tuple[Settings, Changes]] = {
    "mlp": (_IMAGES, _PAPER_METHODS),
    "cnn": (_IMAGES, {"gd": {"lr": 2e-2}, **_PAPER_METHODS}),
    "resnet20": (_IMAGES, _PAPER_METHODS),
    "vit": (_IMAGES, _PAPER_METHODS),
    "lstm": (_SORTING, _PAPER_METHODS),
    "mamba": (replace(_SORTING, data=Data(examples=250)), _PAPER_METHODS),
}
_PRESETS = {"laptop": _LAPTOP, "paper": _PAPER}
# Enough for the trace of small networks at the edge, and a fifth of the time.
_LAPTOP_BUDGET = 40


def preset(name: PresetName, model: ModelName, method: MethodName) -> Settings:
    """The settings of a preset.

    >>> preset("laptop", "vit", "zo-gd").lr
    0.003
    """
    if name not in _PRESETS:
        raise ValueError(f"there is no preset {name!r}: use {' or '.join(_PRESETS)}")
    if model not in _PRESETS[name]:
        raise ValueError(f"there is no model {model!r}: use {', '.join(get_args(ModelName))}")
    settings, methods = _PRESETS[name][model]
    if method not in methods:
        raise ValueError(f"the preset {name} of {model} has no method {method!r}: use {', '.join(methods)}")
    budget = {"budget": _LAPTOP_BUDGET} if name == "laptop" else {}
    return replace(settings, model=model, method=method, **budget, **methods[method])


def all_presets(name: PresetName) -> list[Settings]:
    """All settings of a preset, for every model and method."""
    return [preset(name, model, method) for model, (_, methods) in _PRESETS[name].items() for method in methods]
