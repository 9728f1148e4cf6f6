import pytest
import torch

from tests.experiments.small import small
from zoedge.experiments import Data, Settings, Size, read_config
from zoedge.experiments.objective import Objective
from zoedge.experiments.sweeps import plan


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lrr = 1", r"unknown setting lrr; did you mean lr\?"),
        ("measure_evry = 1", r"unknown setting measure_evry; did you mean measure_every\?"),
        ("[data]\nperclass = 1", r"unknown setting data.perclass; did you mean data.per_class\?"),
        ("per-class = 1", r"unknown setting per-class; did you mean data.per_class\?"),
        ("method = 'sgd'", "use gd, gdm, adam, zo-gd, zo-gdm, zo-adam"),
        ("zzz = 1", "unknown setting zzz; known are task, model"),
        ('lr = "fast"', r"Invalid enum value 'fast' - at `\$.lr`: use float, edge"),
        ('model = "cnnn"', r"Invalid enum value 'cnnn' - at `\$.model`"),
        ("steps = 1.5", r"Expected `int`, got `float` - at `\$.steps`"),
        ("lr = -1", "lr must be positive"),
        ("lr = ", "is no TOML"),
        ("lr_schedule = [[10, 1e-3], [5, 1e-3]]", "growing steps"),
    ],
)
def test_config_files_are_strict(text, message, tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_config(path)


def test_a_config_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('model = "vit"\nlr = 1\nlr_schedule = [[100, 2e-3]]\n[data]\nper_class = 3\n[size]\nwidth = 8\n')
    expected = Settings(model="vit", lr=1.0, lr_schedule=((100, 2e-3),), data=Data(per_class=3), size=Size(width=8))
    assert read_config(path) == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(model="lstm"), "model lstm does not fit the task digits: use mlp, cnn"),
        (Settings(task="sorting", model="vit"), "does not fit the task sorting: use lstm, mamba"),
        (Settings(model="cnn", size=Size(heads=2)), "model cnn has no setting size.heads: it has width, hidden"),
        (Settings(data=Data(examples=2)), "task digits has no setting data.examples: it has classes, per_class"),
        (small(batch_size=100), "batch_size must be at most the 6 examples"),
        (small(device="tpu9"), "device 'tpu9' cannot be used"),
    ],
)
def test_settings_that_do_not_fit_together(settings, message):
    with pytest.raises(ValueError, match=message):
        Objective(settings)


@pytest.mark.parametrize(
    "settings",
    [
        small(model="cnn", size=Size(width=4, hidden=8), data=Data(per_class=7)),
        small(model="vit", size=Size(width=8, depth=1, heads=2), data=Data(per_class=7)),
        small(task="sorting", model="mamba", size=Size(width=8, depth=1), data=Data(examples=20)),
        small(task="sorting", model="lstm", loss="cross-entropy", size=Size(), data=Data(examples=20)),
    ],
    ids=lambda s: s.model,
)
def test_the_chunked_loss_is_the_plain_one(settings):
    objective = Objective(settings)
    whole = float(objective().detach())
    for chunk in (3, 7, len(objective.task)):
        objective.chunk = chunk
        assert float(objective().detach()) == pytest.approx(whole, rel=1e-6)
    plain = objective.part((objective.task.inputs, objective.task.targets))
    assert float(plain.detach()) == pytest.approx(whole, rel=1e-6)


def test_batches_are_a_function_of_seed_and_step():
    objective = Objective(small(batch_size=4))
    first, again, other = objective.batch(3), objective.batch(3), objective.batch(4)
    assert sum(len(inputs) for inputs, _ in first) == 4
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, again, strict=True))
    assert not all(torch.equal(a[0], b[0]) for a, b in zip(first, other, strict=True))
    seeded = Objective(small(batch_size=4, seed=1)).batch(3)
    assert not all(torch.equal(a[0], b[0]) for a, b in zip(first, seeded, strict=True))


def test_chunks_get_smaller_as_activations_get_larger():
    small_model = Objective(Settings(task="digits", model="mlp", data=Data(per_class=100)))
    assert small_model.chunk == 1000
    large = Objective(Settings(task="digits", model="cnn", size=Size(width=2048), data=Data(per_class=100)))
    assert 1 <= large.chunk < 1000


def test_a_plan_covers_the_grid(tmp_path):
    runs = plan(small(), [("lr", [1e-3, 2e-3]), ("data.per_class", [2, 3])], tmp_path)
    assert [path.name for path in runs] == [
        "lr0.001-data.per_class2", "lr0.001-data.per_class3", "lr0.002-data.per_class2", "lr0.002-data.per_class3",
    ]  # fmt: skip
    assert [(s.lr, s.data.per_class) for s in runs.values()] == [(1e-3, 2), (1e-3, 3), (2e-3, 2), (2e-3, 3)]
    with pytest.raises(ValueError, match=r"unknown setting lrr; did you mean lr\?"):
        plan(small(), [("lrr", [1])], tmp_path)
