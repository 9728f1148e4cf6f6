import json
import os
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats

import zoedge
from zoedge.cli import main
from zoedge.report import momentum_figure
from zoedge.theory import GD, ZOGD, ZOGDM, Estimator, MatrixCovariance, Spectrum, critical_step_size

VALUES = np.array([5.0, 2.0, 1.0, 0.5])


@pytest.fixture
def spectrum(tmp_path):
    path = tmp_path / "spectrum.npy"
    np.save(path, VALUES)
    return str(path)


def run(capsys, *arguments) -> str:
    main(["threshold", *arguments])
    return capsys.readouterr().out


def run_json(capsys, *arguments) -> dict:
    return json.loads(run(capsys, *arguments, "--json"))


def fails(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as exit_info:
        main(["threshold", *arguments])
    captured = capsys.readouterr()
    assert exit_info.value.code == 2
    assert captured.out == ""
    return " ".join(captured.err.split())


def test_json_has_full_precision(capsys, spectrum):
    document = run_json(capsys, spectrum, "--method", "zo-gdm", "--beta", "0.5", "--lr", "0.01")
    row = document["zo-gdm"]
    critical = critical_step_size(VALUES, ZOGDM(0.5))
    assert list(document) == ["zo-gdm"]
    assert {"mean", "mean_square", "lower", "upper", "edge_ratio"} <= set(row)
    assert row["mean_square"] == critical
    assert row["edge_ratio"] == 0.01 / critical
    assert row["mean"] == 2 * 1.5 / 5
    assert row["lower"] <= critical <= row["upper"]
    assert row["verdict"] == "stable"


def test_all_six_rows_in_the_order_of_table_1(capsys, spectrum):
    document = run_json(capsys, spectrum)
    assert list(document) == ["gd", "gdm", "adam", "zo-gd", "zo-gdm", "zo-adam"]
    assert document["gd"] == {"mean": 0.4, "mean_square": 0.4, "lower": 0.4, "upper": 0.4}
    out = run(capsys, spectrum)
    positions = [out.index(f" {label} ") for label in ("GD", "GDM", "Adam", "ZO-GD", "ZO-GDM", "ZO-Adam")]
    assert positions == sorted(positions)
    assert f"{critical_step_size(VALUES, ZOGD()):.5g}" in out


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, " stable"), (1.01, " at the edge"), (1.5, " unstable")])
def test_verdicts(capsys, spectrum, factor, verdict):
    lr = factor * critical_step_size(VALUES, ZOGD())
    assert verdict in run(capsys, spectrum, "--method", "zo-gd", "--lr", str(lr))


@pytest.mark.parametrize("name", ["spectrum.csv", "spectrum.txt"])
@pytest.mark.parametrize("shape", [(4,), (1, 4), (4, 1)])
def test_text_files(capsys, tmp_path, name, shape):
    path = tmp_path / name
    np.savetxt(path, VALUES.reshape(shape), delimiter="," if name.endswith("csv") else " ")
    assert run_json(capsys, str(path))["zo-gd"]["mean_square"] == pytest.approx(critical_step_size(VALUES, ZOGD()))


def test_trace_and_lambda_max(capsys):
    document = run_json(capsys, "--trace", "8.5", "--lambda-max", "5", "--lr", "0.12")
    assert document["zo-gd"]["mean_square"] is None
    assert document["zo-gd"]["lower"] == pytest.approx(2 / 18.5)
    assert document["zo-gd"]["edge_ratio_bounds"] == pytest.approx([0.12 * 8.5 / 2, 0.12 * 18.5 / 2])
    assert document["zo-gd"]["verdict"] == "undecided"
    assert document["gd"]["mean_square"] == critical_step_size([5.0], GD())
    assert "undecided" in run(capsys, "--trace", "8.5", "--lambda-max", "5", "--lr", "0.12")


def test_estimators(capsys, spectrum):
    document = run_json(capsys, spectrum, "--directions", "sphere", "--queries", "3", "--method", "zo-gd")
    expected = critical_step_size(VALUES, ZOGD(), Estimator(directions="sphere", queries=3))
    assert document["zo-gd"]["mean_square"] == expected


def test_a_matrix_and_rademacher_directions(capsys, tmp_path):
    Q = scipy.stats.ortho_group.rvs(4, random_state=0)
    H = Q @ np.diag(VALUES) @ Q.T
    path = tmp_path / "hessian.npy"
    np.save(path, H)
    assert run_json(capsys, str(path))["zo-gd"]["mean_square"] == pytest.approx(critical_step_size(VALUES, ZOGD()))
    document = run_json(capsys, str(path), "--directions", "rademacher")
    expected = MatrixCovariance(H, ZOGD(), Estimator(directions="rademacher")).critical_step_size()
    assert document["zo-gd"]["mean_square"] == pytest.approx(expected)


def test_negative_eigenvalues(capsys, tmp_path):
    path = tmp_path / "indefinite.npy"
    np.save(path, [4.0, 1.0, -3.0])
    assert "--negative keep" in fails(capsys, str(path))
    kept = run_json(capsys, str(path), "--negative", "keep")["zo-gd"]["mean_square"]
    clipped = run_json(capsys, str(path), "--negative", "clip")["zo-gd"]["mean_square"]
    assert kept == critical_step_size([4.0, 1.0, -3.0], ZOGD(), negative="keep")
    assert clipped == critical_step_size([4.0, 1.0], ZOGD()) < kept
    row = run_json(capsys, str(path), "--negative", "keep")["zo-gd"]
    assert row["lower"] <= row["mean_square"] <= row["upper"]


def test_clipping_a_matrix_for_rademacher_directions(capsys, tmp_path):
    path = tmp_path / "indefinite.npy"
    np.save(path, np.diag([4.0, 1.0, -3.0]))
    document = run_json(capsys, str(path), "--negative", "clip", "--directions", "rademacher", "--method", "zo-gd")
    assert document["zo-gd"]["mean_square"] == pytest.approx(2 / 5)
    assert "negative eigenvalues" in fails(capsys, str(path), "--negative", "keep", "--directions", "rademacher")


@pytest.mark.parametrize("arguments", [["--example"], []])
@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot(capsys, tmp_path, suffix, arguments):
    path = tmp_path / "new" / f"momentum.{suffix}"
    assert str(path) in run(capsys, *arguments, "--plot", str(path))
    assert path.stat().st_size > 5000


def test_the_figure_shows_opposite_effects_of_momentum():
    figure = momentum_figure(Spectrum(VALUES))
    first, zeroth = (np.asarray(line.get_ydata(), float) for line in figure.axes[0].lines)
    betas = np.asarray(figure.axes[0].lines[0].get_xdata(), float)
    assert first == pytest.approx(2 * (1 + betas) / VALUES.max())
    assert zeroth == pytest.approx([critical_step_size(VALUES, ZOGDM(beta)) for beta in betas])


def test_example_is_the_documented_spectrum(capsys):
    expected = critical_step_size(Spectrum(1 / np.arange(1, 1001)), ZOGD())
    assert run_json(capsys, "--example")["zo-gd"]["mean_square"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one source of curvature"),
        (["--example", "--trace", "1", "--lambda-max", "1"], "give one source of curvature"),
        (["--trace", "3"], "--trace and --lambda-max go together"),
        (["--trace", "1", "--lambda-max", "2"], "negative eigenvalues"),
        (["--trace", "nan", "--lambda-max", "2"], "--trace must be finite"),
        (["--trace", "3", "--lambda-max", "0"], "--lambda-max must be positive"),
        (["--method", "gd", "--example", "--beta", "1.5"], "--beta must lie in [0, 1)"),
        (["--example", "--dimension", "3"], "--dimension goes with --trace"),
        (["--example", "--lr", "1e308"], "--lr must be a sensible"),
        (["--example", "--plot", "q"], "ends in .png, .svg or .pdf"),
        (["--directions", "rademacher", "--plot", "q.png"], "gaussian or sphere directions"),
        (["folder.npy"], "this is a folder"),
        (["missing.npy"], "missing.npy: there is no such file"),
        (["spectrum.xlsx"], "must end in .npy, .csv or .txt"),
        (["--example", "--beta", "1"], "--beta must lie in [0, 1)"),
        (["--example", "--queries", "0"], "queries must be at least 1"),
        (["--example", "--lr", "-1"], "--lr must be positive"),
        (["--example", "--method", "sgd"], "invalid choice 'sgd'"),
        (["--example", "--directions", "rademacher"], "rademacher directions need the matrix"),
        (["--trace", "3", "--lambda-max", "1", "--plot", "x.png"], "--plot needs a spectrum"),
        (["--trace", "3", "--lambda-max", "1", "--directions", "sphere"], "give --dimension"),
        (["--example", "--plot", "figure.xyz"], "ends in .png"),
    ],
)
def test_errors(capsys, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npy").mkdir()
    assert message in fails(capsys, *arguments)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text.csv", b"eigenvalue\n1\n", "text.csv: expected numbers only, without a header"),
        ("empty.npy", b"", "empty.npy: expected an array saved by numpy.save"),
        ("empty.txt", b"", "empty.txt: the file holds no numbers"),
        ("nan.txt", b"1 nan", "NaN"),
        ("broken.npy", b"not numpy", "broken.npy"),
        ("wide.csv", b"1,2,3\n4,5,6\n", "H must be square"),
        ("zero.txt", b"0 0", "no eigenvalue is positive"),
    ],
)
def test_bad_files(capsys, tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    assert message in fails(capsys, str(path))


def test_help_has_examples():
    result = subprocess.run([sys.executable, "-m", "zoedge", "threshold", "--help"], capture_output=True, text=True)
    assert result.returncode == 0
    assert "zoedge threshold --trace 900 --lambda-max 40" in result.stdout


def test_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"zoedge {zoedge.__version__}\n"


def test_a_reader_that_stops_early_is_no_error():
    command = f"{sys.executable} -m zoedge threshold --example --json | true"
    result = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_narrow_terminal_cuts_no_digits(spectrum):
    command = [sys.executable, "-m", "zoedge", "threshold", spectrum, "--lr", "0.01"]
    result = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "COLUMNS": "40"})
    assert "…" not in result.stdout
    assert f"{critical_step_size(VALUES, ZOGD()):.5g}" in result.stdout
