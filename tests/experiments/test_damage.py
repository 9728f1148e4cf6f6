"""Runs whose files were damaged: what can be mended is, what cannot is named."""

import json

import pytest

from tests.experiments.small import outcome, small
from zoedge.experiments import Moment, RunFolder, resume, start
from zoedge.report.page import rows


@pytest.fixture
def whole(tmp_path):
    start(small(), tmp_path / "whole")
    return outcome(tmp_path / "whole")


@pytest.fixture
def stopped(tmp_path):
    """A run that was interrupted at step 45, whose last checkpoints are of steps 30 and 40."""

    def stop(moment: Moment):
        if moment.step == 45:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(small(), tmp_path / "run", stop)
    return tmp_path / "run"


def test_a_damaged_checkpoint_is_not_used(whole, stopped):
    *_, before, last = sorted((stopped / "checkpoints").iterdir())
    assert (before.name[:10], last.name[:10]) == ("0000000030", "0000000040")
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 1
    last.write_bytes(content)
    with pytest.warns(UserWarning, match="from step 30"):
        assert resume(RunFolder(stopped)).state == "finished"
    assert outcome(stopped) == whole


def test_a_row_that_was_cut_off_is_made_again(whole, stopped):
    with (stopped / "metrics.csv").open("a") as file:
        file.write("40,0.1")
    assert len(RunFolder(stopped).metrics()["step"]) < 13
    resume(RunFolder(stopped))
    assert outcome(stopped) == whole


@pytest.mark.parametrize("left", [0, 200, 500])
def test_metrics_that_were_cut_are_made_again(left, whole, stopped):
    file = stopped / "metrics.csv"
    file.write_bytes(file.read_bytes()[:left])
    with pytest.warns(UserWarning, match="damaged: going on from step"):
        assert resume(RunFolder(stopped)).state == "finished"
    assert outcome(stopped) == whole


def test_metrics_that_are_gone_are_made_again(whole, stopped):
    (stopped / "metrics.csv").unlink()
    with pytest.warns(UserWarning, match="from step 0"):
        resume(RunFolder(stopped))
    assert outcome(stopped) == whole


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"state": 3}', b'{"seconds": null}', b"\xff\xfe"])
def test_a_status_that_is_damaged_does_not_matter(content, whole, stopped):
    (stopped / "status.json").write_bytes(content)
    assert RunFolder(stopped).status.state == "interrupted"
    assert resume(RunFolder(stopped)).state == "finished"
    assert outcome(stopped) == whole


def test_a_folder_of_checkpoints_that_is_gone(whole, stopped):
    for file in (stopped / "checkpoints").iterdir():
        file.unlink()
    (stopped / "checkpoints").rmdir()
    resume(RunFolder(stopped))
    assert outcome(stopped) == whole


def test_what_a_kill_left_half_written_is_deleted(stopped):
    leftover = stopped / "checkpoints" / ".0000000050-abc.safetensors.123"
    leftover.write_bytes(b"half")
    resume(RunFolder(stopped))
    assert not leftover.exists()


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b'{"settings": null}', b'{"settings": []}', b"\xff"])
def test_settings_that_are_damaged_are_named(content, stopped):
    (stopped / "settings.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"settings\.json"):
        _ = RunFolder(stopped).settings


def test_settings_that_do_not_fit_the_checkpoint(stopped):
    file = stopped / "settings.json"
    about = json.loads(file.read_text())
    about["settings"]["size"]["width"] = 7
    file.write_text(json.dumps(about))
    with pytest.raises(ValueError, match="does not fit the settings"):
        resume(RunFolder(stopped))


@pytest.mark.parametrize("line", ["1,2", "x,y,z", "\0\0\0"])
def test_a_row_that_is_damaged_is_named_and_other_runs_are_shown(line, stopped):
    file = stopped / "metrics.csv"
    file.write_text(file.read_text() + line + "\n")
    with pytest.raises(ValueError, match=r"metrics\.csv is damaged"):
        RunFolder(stopped).metrics()
    start(small(), stopped.parent / "other")
    runs = [RunFolder(stopped), RunFolder(stopped.parent / "other")]
    bad, good = rows(runs, ["bad", "good"])
    assert "damaged" in bad[-1]
    assert "edge" in good[-1]
    assert len(bad) == len(good)


def test_of_two_that_begin_at_once_one_is_told(tmp_path, monkeypatch):
    """Both have seen that there is nothing; the first to write has the folder."""
    first = RunFolder.create(tmp_path / "run", small())
    monkeypatch.setattr("pathlib.Path.exists", lambda path: False)
    with pytest.raises(FileExistsError, match="zoedge resume"):
        RunFolder.create(tmp_path / "run", small(lr=1e-3))
    assert first.settings == small()
