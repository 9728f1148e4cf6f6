import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pyarrow.parquet
import pytest

from tests.experiments.small import SMALL
from zoedge.cli import main
from zoedge.experiments import RunFolder, plan, preset, sweep, to_mapping

FLAGS = [
    "--model", "mlp", "--lr", "1e-2", "--steps", "40", "--measure-every", "20", "--budget", "8", "--threads", "1",
    "--data.per-class", "2", "--data.classes", "3", "--data.image-size", "4", "--size.width", "6", "--size.depth", "1",
]  # fmt: skip


def zoedge(*arguments: object) -> int:
    """Exit code of a command."""
    try:
        main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "a"
    assert zoedge("run", *FLAGS, "--out", path) == 0
    return path


def test_run_shows_how_it_goes(tmp_path, capsys):
    assert zoedge("run", *FLAGS, "--out", tmp_path / "run") == 0
    out = capsys.readouterr().out
    assert "steps/s" in out
    assert "finished at step 40" in out
    assert "of them measuring" in out
    assert "verdict: " in out


def test_flags_go_on_top_of_a_config_file(tmp_path):
    config = tmp_path / "run.toml"
    config.write_text('model = "mlp"\nsteps = 5\nmeasure_every = 0\n[data]\nper_class = 2\n')
    assert zoedge("run", "--config", config, "--steps", 3, "--out", tmp_path / "run", "--quiet") == 0
    settings = RunFolder(tmp_path / "run").settings
    assert (settings.model, settings.steps, settings.data.per_class) == ("mlp", 3, 2)


def test_flags_go_on_top_of_a_preset(tmp_path):
    flags = ["--preset", "laptop", "--model", "vit", "--method", "zo-adam", "--steps", 2, "--measure-every", 0]
    assert zoedge("run", *flags, "--out", tmp_path / "run", "--quiet") == 0
    expected = replace(preset("laptop", "vit", "zo-adam"), steps=2, measure_every=0)
    assert RunFolder(tmp_path / "run").settings == expected


def test_reproduce(tmp_path, capsys):
    assert zoedge("reproduce") == 0
    assert "gd-vs-zogd  figure 1" in capsys.readouterr().out
    assert zoedge("reproduce", "vitt") == 2
    assert "there is no figure 'vitt': use all, or gd-vs-zogd" in capsys.readouterr().err
    command = ["reproduce", "table", "--steps", 2, "--jobs", 2, "--out", tmp_path]
    assert zoedge(*command) == 0
    assert "h of runs" in capsys.readouterr().out
    stamps = [path.stat().st_mtime_ns for path in tmp_path.glob("laptop/runs/*/status.json")]
    assert len(stamps) == 2
    assert zoedge(*command, "--quiet") == 0
    assert stamps == [path.stat().st_mtime_ns for path in tmp_path.glob("laptop/runs/*/status.json")]


def test_a_step_size_that_follows_the_edge(tmp_path, capsys):
    assert zoedge("run", *FLAGS, "--lr", "edge", "--steps", 60, "--out", tmp_path / "edge") == 0
    assert zoedge("report", tmp_path / "edge", "--out", tmp_path / "report") == 0
    assert "step size" in (tmp_path / "report" / "report.html").read_text()
    assert zoedge("run", "--method", "gd", "--lr", "edge", "--out", tmp_path / "gd") != 0
    assert "zo methods" in capsys.readouterr().err


def test_mistakes_are_named(tmp_path, capsys):
    (tmp_path / "bad.toml").write_text("lrr = 1")
    for arguments, message in (
        (["run", "--config", tmp_path / "bad.toml"], "did you mean lr?"),
        (["run", "--config", tmp_path / "none.toml"], "No such file"),
        (["run", "--model", "lstm", "--out", tmp_path / "x"], "does not fit the task digits"),
        (["run", "--preset", "laptop", "--model", "vit", "--method", "gd"], "has no method 'gd': use zo-gd"),
        (["run", "--preset", "laptop", "--config", tmp_path / "bad.toml"], "give --config or --preset, not both"),
        (["resume", tmp_path], "is no run"),
        (["list", tmp_path / "nothing"], "there are no runs"),
        (["sweep", "--grid", "lr", "--out", tmp_path], "NAME=A,B"),
        (["sweep", "--out", tmp_path], "needs a grid"),
        (["sweep", "--grid", "lr=1e-3", "--jobs", -1, "--out", tmp_path], "jobs must be at least 0"),
        (["sweep", "--grid", "lr.x=1", "--out", tmp_path / "y"], "lr is one setting"),
        (["reproduce", "table", "--steps", 0], "steps must be at least 1"),
        (["sweep", "--grid", "lr=1e-3,", "--out", tmp_path / "y"], "a value of the grid is empty"),
        (["sweep", "--grid", "lr=1", "lr=2", "--out", tmp_path / "y"], "names a setting twice"),
        (["sweep", "--preset", "laptop", "--grid", "model=mlp,cnn", "--out", tmp_path / "y"], "leave model out"),
        (["run", "--size.width", 0], "width must be at least 1"),
        (["run", "--momentum", 1.5], "momentum must lie in"),
        (["run", "--seed", 1 << 40], "seed must be below"),
        (["run", "--lr-schedule", -5, 1e-3], "growing steps from 0"),
        (["run", "--device", "meta", "--out", tmp_path / "x"], "cannot be used"),
        (["run", "--task", "cifar10", "--model", "cnn", "--data.image-size", 1, "--out", tmp_path / "x"], "too small"),
        (["rum"], "did you mean run?"),
    ):
        assert zoedge(*arguments) == 2
        assert message in capsys.readouterr().err
    assert zoedge("run", "--stepz", 3) == 2
    assert not (tmp_path / "x").exists()  # what could not begin leaves nothing


def test_threads_of_a_run_that_has_not_begun(tmp_path):
    settings = replace(SMALL, threads=0, steps=3, measure_every=0)
    RunFolder.create(tmp_path / "lr0.01", replace(settings, threads=7))
    (folder,) = sweep(plan(settings, [("lr", [0.01])], tmp_path), 1, lambda runs: None)
    assert folder.settings.threads == os.cpu_count()
    assert folder.status.state == "finished"


def test_a_sweep_says_which_runs_failed(tmp_path, capfd):
    assert zoedge("sweep", "--grid", "model=mlp,lstm", "--steps", 3, "--measure-every", 0, "--out", tmp_path) == 2
    error = capfd.readouterr().err
    assert "does not fit the task digits" in error
    assert "1 of 2 runs failed" in error
    assert (tmp_path / "report" / "bands.png").exists()
    assert RunFolder(tmp_path / "modelmlp").status.state == "finished"


def test_a_sweep_that_is_terminated_leaves_no_process(tmp_path):
    flags = [*FLAGS, "--steps", "1000000", "--measure-every", "0"]
    command = [sys.executable, "-m", "zoedge", "sweep", "--grid", "lr=1e-3", *flags, "--out", str(tmp_path), "--quiet"]
    with subprocess.Popen(command) as process:
        try:
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                if (tmp_path / "lr0.001" / "status.json").exists():
                    break
                time.sleep(0.1)
            process.terminate()
            assert process.wait(timeout=60) == 128 + signal.SIGTERM
        finally:
            process.kill()
    assert RunFolder(tmp_path / "lr0.001").status.state == "interrupted"


def test_a_run_that_diverges_has_its_own_exit_code(tmp_path, capsys):
    assert zoedge("run", *FLAGS, "--lr", 50, "--out", tmp_path / "run") == 3
    assert "diverged at step" in capsys.readouterr().out


def test_show_list_report_export(run, tmp_path, capsys):
    assert zoedge("show", run) == 0
    out = capsys.readouterr().out
    for part in (
        '"model": "mlp"',
        "status    finished, step 40 of 40",
        "last band step 40: lower",
        "verdict   below the edge",
    ):
        assert part in out
    assert zoedge("list", run.parent) == 0
    assert "edge ratio" in capsys.readouterr().out
    assert zoedge("report", run, "--out", tmp_path / "report") == 0
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<svg" in page
    assert "src=" not in page
    assert {file.name for file in (tmp_path / "report").iterdir()} == {"bands.png", "bands.svg", "report.html"}
    assert zoedge("export", run, "--to", "csv", "--out", tmp_path / "m.csv") == 0
    assert (tmp_path / "m.csv").read_text() == (run / "metrics.csv").read_text()
    assert zoedge("export", run, "--to", "parquet", "--out", tmp_path / "m.parquet") == 0
    table = pyarrow.parquet.read_table(tmp_path / "m.parquet")
    assert table["step"].to_pylist() == RunFolder(run).metrics()["step"]


def test_a_reader_that_has_had_enough_does_not_end_the_training(tmp_path):
    command = (
        f"{sys.executable} -m zoedge run {' '.join(map(str, FLAGS))} --steps 30 --out {tmp_path / 'run'} | head -0"
    )
    assert subprocess.run(command, shell=True, timeout=120, stderr=subprocess.PIPE).stderr == b""
    assert RunFolder(tmp_path / "run").status.state == "finished"


def test_names_with_dollars_and_brackets(tmp_path, capsys):
    for name in ("$x^2_{$", "[bold]q"):
        assert zoedge("run", *FLAGS, "--steps", 5, "--quiet", "--out", tmp_path / name) == 0
    assert zoedge("report", *(tmp_path / name for name in ("$x^2_{$", "[bold]q")), "--out", tmp_path / "report") == 0
    assert "[bold]q" in capsys.readouterr().out


def test_a_sweep_goes_on_where_it_was(tmp_path, capsys):
    grid = ["sweep", "--grid", "lr=1e-2,2e-2", *FLAGS, "--steps", 20, "--out", tmp_path / "sweep"]
    assert zoedge(*grid) == 0
    out = capsys.readouterr().out
    assert "lr 0.01" in out
    assert (tmp_path / "sweep" / "report" / "bands.png").exists()
    first = (tmp_path / "sweep" / "lr0.01" / "status.json").read_text()
    assert zoedge(*grid) == 0
    assert (tmp_path / "sweep" / "lr0.01" / "status.json").read_text() == first
    lists = ["sweep", "--grid", "lr_schedule=[[10,1e-3]],[[10,2e-3],[15,1e-3]]", *FLAGS, "--steps", 20]
    assert zoedge(*lists, "--out", tmp_path / "lists", "--quiet") == 0
    assert len([*(tmp_path / "lists").glob("lr_schedule*")]) == 2
    assert zoedge(*grid, "--seed", 5) == 2
    assert "other settings" in capsys.readouterr().err


def test_ctrl_c_ends_a_run_cleanly(tmp_path):
    path = tmp_path / "run"
    RunFolder.create(path, type(SMALL)(**{**vars(SMALL), "steps": 1_000_000, "measure_every": 0}))
    command = [sys.executable, "-m", "zoedge", "resume", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            deadline = time.monotonic() + 120
            while not list((path / "checkpoints").glob("[0-9]*")) and time.monotonic() < deadline:
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "go on with: zoedge resume" in error
    assert "Traceback" not in error
    assert RunFolder(path).status.state == "interrupted"
    assert to_mapping(RunFolder(path).settings)["steps"] == 1_000_000


def test_help(capsys):
    assert zoedge("--help") == 0
    out = capsys.readouterr().out
    assert "sweep" in out
    for command in ("run", "resume", "sweep", "list", "show", "report", "reproduce", "export"):
        with pytest.raises(SystemExit) as end:
            main([command, "--help"])
        assert end.value.code == 0
        assert command in capsys.readouterr().out
