import csv
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.experiments.small import small
from zoedge.experiments import Data, RunFolder, Settings, Size, claims, preset, start
from zoedge.experiments.catalogue import Entry, catalogue
from zoedge.experiments.folder import Status
from zoedge.experiments.reproduce import run_path, runs_of, shortened
from zoedge.report.reproduction import write_reproduction

NAMES = (
    "gd-vs-zogd", "cnn", "resnet", "vit", "catapult", "smoothing", "minibatch", "lstm", "mamba", "adam-beta1", "table",
)  # fmt: skip
CHECKS = {
    "reaches_the_edge", "stays_in_the_band", "settles_at_one", "top_settles_at_the_threshold",
    "trace_settles_below_the_threshold", "falls_with_smoothing", "grows_with_batches", "commutator_falls",
}  # fmt: skip
SIZES = {
    "cnn": Size(width=4, hidden=8),
    "resnet20": Size(width=4, depth=1, groups=2),
    "vit": Size(width=8, depth=1, heads=2),
    "lstm": Size(width=8, hidden=8, depth=1),
    "mamba": Size(width=8, state=2, depth=1),
}


def tiny(settings: Settings) -> Settings:
    """The same method on a model and data that take no time."""
    data = Data(examples=4) if settings.task == "sorting" else Data(classes=3, per_class=3)
    task = "sorting" if settings.task == "sorting" else "digits"
    batch = settings.batch_size and min(settings.batch_size // 4, 8)
    probes = min(settings.commutator_probes, 2)
    return replace(
        settings, task=task, data=data, size=SIZES[settings.model], budget=6, threads=1, batch_size=batch,
        commutator_probes=probes,
    )  # fmt: skip


def tiny_entry(entry: Entry) -> Entry:
    entry = shortened(entry, 8)
    panels = (
        replace(panel, runs=tuple(replace(tiny(run), measure_every=2) for run in panel.runs)) for panel in entry.panels
    )
    return replace(entry, panels=tuple(panels))


def make_runs(entry: Entry, root) -> None:
    for settings in (settings for panel in entry.panels for settings in panel.runs):
        if not run_path(settings, root).exists():
            start(settings, run_path(settings, root))


def test_all_of_the_paper_s_figures_are_there():
    assert tuple(catalogue("laptop")) == tuple(catalogue("paper")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_entry_runs_and_has_a_verdict(name, tmp_path):
    entry = tiny_entry(catalogue("laptop")[name])
    make_runs(entry, tmp_path / "runs")
    files, content = write_reproduction(entry, tmp_path / "runs", tmp_path / "out")
    assert all(file.stat().st_size > 0 for file in files)
    stored = json.loads((tmp_path / "out" / "verdict.json").read_text(), parse_constant=pytest.fail)
    assert stored["claims"] == content["claims"]
    assert len(content["claims"]) == (4 if name == "table" else sum(len(panel.checks) for panel in entry.panels))
    assert all(claim["numbers"] for claim in content["claims"])
    assert len(content["runs"]) == sum(len(panel.runs) for panel in entry.panels)
    runs = runs_of(entry, tmp_path / "runs")
    if name == "adam-beta1":
        readings = runs[0][0].readings("commutator")
        assert readings["step"][0] == 1
        assert all(0 < value < 2 for value in readings["commutator"])
        assert runs[0][0].readings()["step"][0] == 2
    if name == "cnn":
        with (tmp_path / "out" / "data.csv").open() as file:
            rows = list(csv.DictReader(file))
        assert {row["panel"] for row in rows} == {panel.title for panel in entry.panels}


def test_there_is_no_verdict_before_all_runs_have_ended(tmp_path):
    entry = tiny_entry(catalogue("laptop")["table"])
    make_runs(entry, tmp_path)
    run = RunFolder(run_path(entry.panels[0].runs[1], tmp_path))
    run.status = Status("interrupted", 3)
    with pytest.raises(ValueError, match="is interrupted at step 3: no verdict before its end"):
        runs_of(entry, tmp_path)


def test_equal_settings_share_a_run(tmp_path):
    def paths(name: str, panel: int):
        return [run_path(run, tmp_path) for run in catalogue("laptop")[name].panels[panel].runs]

    assert paths("gd-vs-zogd", 1) == paths("cnn", 0)
    assert len({path for panel in range(3) for path in paths("cnn", panel)}) == 9
    assert paths("table", 0)[0] in paths("vit", 0)
    assert paths("table", 0)[1] in paths("vit", 2)


@pytest.mark.parametrize("steps", [1, 2, 3, 8])
def test_shortened_schedules_grow(steps):
    run = shortened(catalogue("laptop")["catapult"], steps).panels[0].runs[0]
    assert run.steps == steps
    assert len({step for step, _ in run.lr_schedule}) == 2


def test_labels_tell_runs_apart():
    for name in ("laptop", "paper"):
        for entry in catalogue(name).values():
            for panel in entry.panels:
                assert len(set(panel.labels)) == len(panel.runs), (entry.name, panel.labels)


# ------------------------------------------------------------------------------- claims, on runs that are made up


def made_up(path, settings: Settings, state: Any = "finished", **columns: Any) -> RunFolder:
    """A run with these readings, evenly over its steps."""
    folder = RunFolder.create(path, settings)
    size = len(next(iter(columns.values())))
    steps = np.linspace(0, settings.steps, size).astype(int)
    with folder.metrics_writer(0) as writer:
        for i, step in enumerate(steps):
            row = {"step": int(step), "loss": 1.0, "lr": settings.lr, "threshold": 2 / settings.lr_at(int(step))}
            writer.write(row | {name: float(values[i]) for name, values in columns.items()})
    folder.status = Status(state, settings.steps)
    return folder


def edge_run(path, ratios, state="finished") -> RunFolder:
    settings = small(lr=1e-2)
    exact = 200 * np.array(ratios)
    return made_up(path, settings, state, lower=0.9 * exact, upper=1.1 * exact, exact=exact)


@pytest.mark.parametrize(
    ("ratios", "state", "expected"),
    [
        ([0.1, 0.5, 0.9, 1.0, 1.1, 1.0], "finished", (True, True, True)),
        ([0.1, 0.5, 0.6, 0.7, 0.7, 0.7], "finished", (False, False, False)),
        ([0.1, 0.5, 0.9, 1.0, 1.1, 1.0], "diverged", (False, False, False)),
        ([0.1, 0.8, 0.7, 0.7, 0.7, 0.7], "finished", (False, False, False)),  # touched it once
        ([0.1, 0.9, 1.8, 1.9, 1.7, 1.8], "finished", (True, False, False)),
    ],
)
def test_claims_about_the_band(ratios, state, expected, tmp_path):
    run = edge_run(tmp_path / "run", ratios, state)
    checks = (claims.reaches_the_edge, claims.stays_in_the_band, claims.settles_at_one)
    assert tuple(check([run], ["a"]).holds for check in checks) == expected


def test_where_lower_terms_settle(tmp_path):
    at = edge_run(tmp_path / "at", [0.5, 1.1, 1.1, 1.1])
    far = edge_run(tmp_path / "far", [0.5, 0.8, 0.8, 0.8])
    above = edge_run(tmp_path / "above", [0.5, 1.3, 1.3, 1.3])
    assert claims.top_settles_at_the_threshold([at], ["a"]).holds
    assert not claims.top_settles_at_the_threshold([at, far], ["a", "b"]).holds
    assert claims.trace_settles_below_the_threshold([at, far], ["a", "b"]).holds
    assert not claims.trace_settles_below_the_threshold([above], ["a"]).holds


def catapult_run(path, spike: float, high: float, drop: float, late: float, state="finished") -> RunFolder:
    """At both raises the trace is ``high`` times the new threshold, then ``drop``, then ``late``."""
    settings = small(lr=1e-2, steps=80, lr_schedule=((40, 2e-2), (60, 4e-2)))
    ratio = np.array([0.5, 1, 1, 1, 1, 1, 1, 1, high, drop, late, late, high, drop, late, late, late])
    threshold = np.array([200] * 8 + [100] * 4 + [50] * 5)
    loss = np.array([1.0] * 8 + [spike, 1, 1, 1] + [spike, 1, 1, 1, 1])
    exact = ratio * threshold
    return made_up(path, settings, state, lower=exact, upper=1.1 * exact, exact=exact, loss=loss)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((3, 1.5, 0.4, 1), (True, True, True)),
        ((1.2, 1.5, 0.4, 1), (False, True, True)),
        ((3, 0.9, 0.4, 1), (True, False, True)),  # was below the new threshold before
        ((3, 1.5, 1.2, 1.5), (True, False, False)),
        ((3, 1.5, 0.4, 1, "diverged"), (False, False, False)),
    ],
)
def test_claims_about_the_catapult(arguments, expected, tmp_path):
    run = catapult_run(tmp_path / "run", *arguments)
    checks = (claims.loss_spikes, claims.trace_drops, claims.re_equilibrates)
    assert tuple(check([run], ["a"]).holds for check in checks) == expected


def test_a_run_that_never_started_proves_nothing(tmp_path):
    runs = [RunFolder.create(tmp_path / str(size), small(batch_size=size)) for size in (2, 4, None)]
    for check in (value for name, value in vars(claims).items() if name in CHECKS):
        for state in ("new", "finished"):
            for run in runs:
                run.status = Status(state)
            assert not check(runs, "abc").holds


def test_claims_about_order(tmp_path):
    def run(name: str, ratio: float, **changes) -> RunFolder:
        exact = 200 * np.array([0.1, 0.2, ratio, ratio])
        return made_up(tmp_path / name, small(lr=1e-2, **changes), lower=exact, upper=exact, exact=exact)

    fine, coarse, coarser = run("a", 1, mu=1e-3), run("b", 0.6, mu=3e-3), run("c", 0.3, mu=1e-2)
    assert claims.falls_with_smoothing([fine, coarse, coarser], "abc").holds
    assert not claims.falls_with_smoothing([fine, run("d", 0.2, mu=3e-3), coarser], "abc").holds
    assert claims.grows_with_batches([coarser, coarse, fine], "abc").holds
    assert not claims.grows_with_batches([fine, coarse], "ab").holds


def test_the_claim_about_the_commutator(tmp_path):
    exact = np.ones(4)
    terms: dict[str, Any] = {"lower": exact, "upper": exact, "exact": exact}
    falls = made_up(tmp_path / "a", small(), commutator=np.array([0.8, 0.1, 0.04, 0.03]), **terms)
    stays = made_up(tmp_path / "b", small(), commutator=np.array([0.8, 0.3, 0.3, 0.3]), **terms)
    assert claims.commutator_falls([falls], "a").holds
    assert not claims.commutator_falls([falls, stays], "ab").holds


def test_a_vision_transformer_reaches_the_edge(tmp_path):
    settings = replace(preset("laptop", "vit", "zo-gd"), lr=4e-3, steps=3000, measure_every=250, threads=1)
    assert start(settings, tmp_path / "run").state == "finished"
    readings = RunFolder(tmp_path / "run").readings()
    ratios = np.array(readings["exact"]) / np.array(readings["threshold"])
    assert 0.7 < ratios[len(ratios) // 2 :].mean() < 1.3
