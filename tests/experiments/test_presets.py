from dataclasses import replace
from typing import get_args

import pytest
import torch

from zoedge.experiments import Settings, all_presets, preset
from zoedge.experiments.objective import Objective
from zoedge.experiments.optimizers import build_optimizer, take_step
from zoedge.experiments.settings import ModelName

ZEROTH_ORDER = ("zo-gd", "zo-gdm", "zo-adam")


@pytest.mark.parametrize("name", ["laptop", "paper"])
def test_every_model_has_every_zeroth_order_method(name):
    found = {(settings.model, settings.method) for settings in all_presets(name)}
    assert found == {(model, method) for model in get_args(ModelName) for method in ZEROTH_ORDER} | {("cnn", "gd")}


@pytest.mark.parametrize("settings", all_presets("laptop"), ids=lambda s: f"{s.model}-{s.method}")
def test_laptop_presets_train(settings, digits_instead_of_cifar10):
    objective = Objective(digits_instead_of_cifar10(settings))
    optimizer = build_optimizer(settings, objective)
    losses = [take_step(optimizer, objective, step) for step in range(3)]
    assert torch.tensor(losses).isfinite().all()


def test_the_paper_s_sizes():
    assert {s.mu for s in all_presets("paper")} == {1e-3}
    assert {s.batch_size for s in all_presets("paper")} == {None}
    assert {s.measure_every for s in all_presets("paper")} == {1000}
    for settings in all_presets("paper"):
        assert settings.size == Settings().size
        if settings.task == "sorting":
            assert len(Objective(settings).task) == {"lstm": 1000, "mamba": 250}[settings.model]


def test_thresholds_of_a_model_at_the_paper_s_scale_are_equal():
    for settings in all_presets("paper"):
        if settings.method != "gd":
            damping = 1 - settings.momentum if settings.method == "zo-gdm" else 1
            assert 2 * damping / settings.lr_at(0) == pytest.approx(2000)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("phone", "vit", "zo-gd"), "no preset 'phone': use laptop or paper"),
        (("laptop", "gpt", "zo-gd"), "no model 'gpt': use mlp, cnn"),
        (("laptop", "vit", "gd"), "preset laptop of vit has no method 'gd': use zo-gd, zo-gdm, zo-adam"),
    ],
)
def test_what_there_is_not(arguments, message):
    with pytest.raises(ValueError, match=message):
        preset(*arguments)


@pytest.fixture
def digits_instead_of_cifar10():
    """The same settings without a download."""

    def change(settings: Settings) -> Settings:
        if settings.task != "cifar10":
            return settings
        return replace(settings, task="digits", data=replace(settings.data, image_size=8))

    return change
