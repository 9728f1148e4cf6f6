import json
import math
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch

import zoedge.experiments.run as run_module
from tests.experiments.small import outcome, small
from zoedge.experiments import COLUMNS, Moment, RunFolder, Status, resume, start, verdict
from zoedge.experiments.settings import Data, Size, to_mapping

METHODS = ("gd", "gdm", "adam", "zo-gd", "zo-gdm", "zo-adam")


@pytest.mark.parametrize("method", METHODS)
def test_a_run_and_its_folder(method, tmp_path):
    settings = small(method=method, lr=1e-3)
    status = start(settings, tmp_path / "run")
    folder = RunFolder(tmp_path / "run")
    assert (status.state, status.step) == ("finished", 60)
    assert folder.settings == settings
    metrics, readings = folder.metrics(), folder.readings()
    assert tuple(metrics) == COLUMNS
    assert metrics["step"] == [*range(0, 60, 5), 60]
    assert readings["step"] == ([20, 40, 60] if "adam" in method else [0, 20, 40, 60])
    assert all(lower <= upper for lower, upper in zip(readings["lower"], readings["upper"], strict=True))
    assert math.isnan(metrics["exact"][1])
    assert 0 < status.measuring < status.seconds
    about = json.loads((tmp_path / "run" / "settings.json").read_text())
    assert about["version"]
    assert about["settings"]["data"]["per_class"] == 2


@pytest.mark.parametrize(
    ("method", "lr"),
    [*((method, 1e-3) for method in METHODS), ("zo-gd", "edge"), ("zo-gdm", "edge"), ("zo-adam", "edge")],
)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_run_that_is_interrupted_ends_as_if_nothing_had_happened(method, lr, batch_size, tmp_path):
    settings = small(method=method, lr=lr, batch_size=batch_size)
    start(settings, tmp_path / "whole")

    class StopError(Exception):
        pass

    def stop_at(step):
        def watch(moment: Moment):
            if moment.step == step:
                raise StopError

        return watch

    with pytest.raises(StopError):
        start(settings, tmp_path / "parts", stop_at(17))
    for step in (33, 34, 59):
        with pytest.raises(StopError):
            resume(RunFolder(tmp_path / "parts"), stop_at(step))
    assert resume(RunFolder(tmp_path / "parts")).state == "finished"
    assert outcome(tmp_path / "parts") == outcome(tmp_path / "whole")
    # A finished run is left as it is.
    assert resume(RunFolder(tmp_path / "parts")).state == "finished"


def test_a_step_size_that_follows_the_edge(tmp_path):
    status = start(small(lr="edge", steps=400, measure_every=100), tmp_path / "run")
    metrics, readings = RunFolder(tmp_path / "run").metrics(), RunFolder(tmp_path / "run").readings()
    assert status.state == "finished"
    assert metrics["lr"][0] == 0
    assert readings["step"] == [100, 200, 300, 400]
    ratios = [exact / threshold for exact, threshold in zip(readings["exact"], readings["threshold"], strict=True)]
    assert 0.2 < ratios[-1] < 1.2
    assert metrics["loss"][-1] < 0.8 * metrics["loss"][0]


def test_kill_at_random_moments(tmp_path):
    """``kill -9`` in the middle of anything, then resume, until it is done."""
    settings = small(steps=1500, measure_every=100, checkpoint_every=25)
    start(settings, tmp_path / "whole")
    RunFolder.create(tmp_path / "killed", settings)
    command = [sys.executable, "-m", "zoedge", "resume", str(tmp_path / "killed"), "--quiet"]
    random.seed(0)
    kills = 0
    while RunFolder(tmp_path / "killed").status.state != "finished":
        before = RunFolder(tmp_path / "killed").status.step
        with subprocess.Popen(command) as process:
            try:
                deadline = time.monotonic() + 120
                # Wait until it trains, which takes seconds of imports, then a random moment.
                while process.poll() is None and time.monotonic() < deadline:
                    if _step(tmp_path / "killed") > before:
                        break
                    time.sleep(0.01)
                time.sleep(random.uniform(0, 0.7))
                if kills == 3:
                    assert process.wait(timeout=120) == 0
            finally:
                process.kill()
        kills += process.returncode == -signal.SIGKILL
    assert kills > 0
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")


def _step(path) -> int:
    names = sorted(file.name for file in (path / "checkpoints").glob("[0-9]*"))
    return int(names[-1].split("-")[0]) if names else 0


@pytest.mark.parametrize(("method", "lr"), [("zo-gd", 30.0), ("gd", 1e3), ("zo-adam", 1e6)])
def test_a_run_that_diverges(method, lr, tmp_path):
    status = start(small(method=method, lr=lr), tmp_path / "run")
    assert status.state == "diverged"
    assert status.step < 60
    assert "loss" in status.reason
    assert RunFolder(tmp_path / "run").metrics()["step"]
    assert resume(RunFolder(tmp_path / "run")).state == "diverged"


def test_two_processes_must_not_train_in_one_folder(tmp_path):
    folder = RunFolder.create(tmp_path / "run", small())
    with folder.locked(), pytest.raises(OSError, match="another process is training"):
        resume(RunFolder(tmp_path / "run"))
    assert resume(folder).state == "finished"
    with pytest.raises(FileExistsError, match="zoedge resume"):
        start(small(), tmp_path / "run")
    with pytest.raises(FileNotFoundError, match="is no run"):
        RunFolder(tmp_path)


def test_a_run_whose_process_is_gone(tmp_path):
    folder = RunFolder.create(tmp_path / "run", small())
    folder.status = Status("running", 7)
    assert folder.status.state == "interrupted"
    with folder.locked():
        assert folder.status.state == "running"


def test_schedules_take_effect_at_their_step(tmp_path):
    settings = small(lr_schedule=((20, 2e-3), (40, 3e-3)), lr=1e-3)
    start(settings, tmp_path / "run")
    metrics = RunFolder(tmp_path / "run").metrics()
    assert [lr for step, lr in zip(metrics["step"], metrics["lr"], strict=True) if step in (15, 20, 35, 40, 60)] == [
        1e-3, 2e-3, 2e-3, 3e-3, 3e-3,
    ]  # fmt: skip
    readings = RunFolder(tmp_path / "run").readings()
    assert readings["threshold"] == pytest.approx([2e3, 1e3, 2 / 3e-3, 2 / 3e-3])


def test_a_run_does_not_touch_the_global_generator(tmp_path):
    torch.manual_seed(3)
    state = torch.get_rng_state()
    start(small(steps=2, measure_every=0), tmp_path / "run")
    assert torch.equal(torch.get_rng_state(), state)


def test_a_run_that_is_killed_at_its_very_end(tmp_path):
    """After the last checkpoint, before the status says so."""
    start(small(), tmp_path / "whole")
    start(small(), tmp_path / "killed")
    folder = RunFolder(tmp_path / "killed")
    folder.status = replace(folder.status, state="interrupted")
    assert resume(folder).state == "finished"
    assert outcome(tmp_path / "killed") == outcome(tmp_path / "whole")
    assert len(folder.status.revisions) == 2


def test_what_diverges_and_what_does_not(tmp_path, monkeypatch):
    """Neither does an error of a reading end a healthy run for good, nor can a wild one finish."""
    assert start(small(method="gd", lr=1e22, steps=1), tmp_path / "end").state == "diverged"
    wild = small(model="cnn", size=Size(width=4, hidden=8), data=Data(per_class=2), lr=1e4, steps=2, measure_every=1)
    assert start(wild, tmp_path / "wild").state == "diverged"

    def fails(*arguments, **settings):
        raise ArithmeticError("no root")

    monkeypatch.setattr(run_module, "measure", fails)
    with pytest.raises(ArithmeticError, match="no root"):
        start(small(), tmp_path / "healthy")
    status = RunFolder(tmp_path / "healthy").status
    assert (status.state, status.reason) == ("interrupted", "ArithmeticError: no root")
    monkeypatch.undo()
    assert resume(RunFolder(tmp_path / "healthy")).state == "finished"


def test_a_folder_that_was_begun_is_no_obstacle(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert start(small(steps=2), tmp_path / "run").state == "finished"
    with pytest.raises(FileExistsError, match="go on with it"):
        start(small(steps=2), tmp_path / "run")


def test_settings_go_through_files(tmp_path):
    settings = small(lr_schedule=((20, 2e-3),), data=Data(per_class=3), size=Size(width=5), batch_size=7)
    folder = RunFolder.create(tmp_path / "run", settings)
    assert folder.settings == settings
    assert to_mapping(folder.settings) == to_mapping(settings)


def test_verdicts():
    readings = {
        "step": [0.0, 10.0, 20.0, 30.0, 40.0],
        "lower": [10.0, 50.0, 80.0, 90.0, 130.0],
        "exact": [12.0, 60.0, 90.0, 100.0, 140.0],
        "upper": [14.0, 70.0, 100.0, 110.0, 150.0],
        "threshold": [100.0] * 5,
    }
    found = verdict(readings)
    assert (found.reached, found.readings) == (20, 3)
    assert found.in_band == pytest.approx(2 / 3)
    assert found.edge_ratio == pytest.approx(1.1)
    assert (found.lowest, found.highest) == pytest.approx((0.9, 1.4))
    assert str(found) == "at the edge from step 20 on"
    inside = verdict({name: values[:2] for name, values in readings.items()})
    assert inside.reached is None
    assert str(inside) == "below the edge, edge ratio 0.60"
    assert str(verdict({name: [] for name in readings})) == "not measured"
