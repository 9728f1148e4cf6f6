"""EdgeLR against grids of step sizes, at equal numbers of forward passes.

python benchmarks/edge.py                                          all problems, two processes
python benchmarks/edge.py --problems "digits, squared" --seeds 2
python benchmarks/edge.py --table                                  of the runs that exist

Every run is a line of OUT; one that is there is not made again, so it can be stopped at any time.
"""

import argparse
import json
import math
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from edge_problems import SETTINGS, Problem, passes, problem
from edge_rivals import FZOO, MEAZO

from zoedge.monitor import EdgeLR
from zoedge.optim import ZOSGD, NonFiniteLossError

# Nine half decades for each; those of the rivals are centred on what takes steps of the same length.
_CONSTANT = [float(f"{m}e{e}") for e in range(-5, -1) for m in (1, 3)] + [0.1]
GRIDS: dict[str, list[float | None]] = {
    "EdgeLR": [None],
    "constant": [*_CONSTANT],
    "FZOO": [lr * 1e-3 for lr in _CONSTANT],
    "MEAZO": [lr * 0.1 for lr in _CONSTANT],
}
# A loss so many times the first one has diverged.
_DIVERGED = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--policies", nargs="+", choices=list(GRIDS), default=list(GRIDS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("out/edge.jsonl"))
    parser.add_argument("--table", action="store_true")
    arguments = parser.parse_args()
    if not arguments.table:
        wanted = [
            (name, policy, lr, seed)
            for name in arguments.problems
            for policy in arguments.policies
            for lr in GRIDS[policy]
            for seed in range(arguments.seeds)
        ]
        known = {key(run) for run in read(arguments.out)}
        missing = [run for run in wanted if run not in known]
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
            for number, run in enumerate(pool.imap_unordered(train, missing), start=1):
                with arguments.out.open("a") as file:
                    file.write(json.dumps(run) + "\n")
                print(f"{number}/{len(missing)} {run}", flush=True)
    runs = [run for run in read(arguments.out) if run["problem"] in arguments.problems]
    print("\n".join(table(runs)))


def read(path: Path) -> Iterator[dict[str, Any]]:
    if path.exists():
        for line in path.read_text().splitlines():
            yield json.loads(line)


def key(run: dict[str, Any]) -> tuple[str, str, float | None, int]:
    return run["problem"], run["policy"], run["lr"], run["seed"]


# ---------------------------------------------------------------------- one run


def train(run: tuple[str, str, float | None, int]) -> dict[str, Any]:
    torch.set_num_threads(1)
    name, policy, lr, seed = run
    trained = problem(name, seed)
    used, started = 0, time.perf_counter()

    def counted(closure: Callable[[], Any]) -> float:
        nonlocal used
        used += 1
        return float(closure())

    with torch.no_grad():
        first, _ = trained.evaluate()
        step = policy_step(trained, policy, lr, seed)
        number, finite = 0, True
        while used < passes(name) and finite:
            closure = trained.batch(number)
            try:
                loss = step(lambda closure=closure: counted(closure))
                finite = loss is None or math.isfinite(loss)
            except NonFiniteLossError:
                finite = False
            number += 1
        last, accuracy = trained.evaluate()
    diverged = not finite or not last <= _DIVERGED * first
    return {
        "problem": name, "policy": policy, "lr": lr, "seed": seed, "loss": last if math.isfinite(last) else None,
        "accuracy": accuracy, "diverged": diverged, "passes": used, "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip


def policy_step(trained: Problem, policy: str, lr: float | None, seed: int) -> Callable[[Any], float | None]:
    """What does a step, given a loss; what it returns must be finite."""
    if policy in ("FZOO", "MEAZO"):
        assert lr is not None
        return (FZOO if policy == "FZOO" else MEAZO)(trained.params, lr, seed).step
    optimizer = ZOSGD(trained.params, lr=1.0 if lr is None else lr, seed=seed)
    schedule = EdgeLR(optimizer) if policy == "EdgeLR" else None

    def step(loss: Any) -> float | None:
        value = float(optimizer.step(loss))
        if schedule is None:
            return value
        schedule.step()  # a loss that is not finite is its own affair
        return None

    return step


# ---------------------------------------------------------------------- the table


def table(runs: list[dict[str, Any]]) -> Iterator[str]:
    yield "| problem | step size | best of | training loss | test accuracy | diverged | forward passes |"
    yield "|---|---|---|---|---|---|---|"
    for name in dict.fromkeys(run["problem"] for run in runs):
        for policy in GRIDS:
            mine = [run for run in runs if run["problem"] == name and run["policy"] == policy]
            if mine:
                yield row(name, policy, mine)


def row(name: str, policy: str, runs: list[dict[str, Any]]) -> str:
    by_lr: dict[float | None, list[dict[str, Any]]] = {}
    for run in runs:
        by_lr.setdefault(run["lr"], []).append(run)
    chosen = min(by_lr, key=lambda lr: (any(r["diverged"] for r in by_lr[lr]), mean("loss", by_lr[lr])))
    best = by_lr[chosen]
    label = policy if chosen is None else f"{policy}, lr {chosen:.0e}"
    return (
        f"| {name} | {label} | {len(by_lr)} | {mean('loss', best):.3g} ± {deviation('loss', best):.1g} "
        f"| {mean('accuracy', best):.3f} ± {deviation('accuracy', best):.3f} "
        f"| {sum(r['diverged'] for r in runs)} of {len(runs)} | {sum(r['passes'] for r in runs):,} |"
    )


def mean(what: str, runs: list[dict[str, Any]]) -> float:
    return statistics.fmean(math.inf if run[what] is None else run[what] for run in runs)


def deviation(what: str, runs: list[dict[str, Any]]) -> float:
    values = [run[what] for run in runs if run[what] is not None]
    return statistics.stdev(values) if len(values) > 1 else math.nan


if __name__ == "__main__":
    main()
