"""Steps per second of zeroth-order runs: the fast objective beside a plain loop, and beside the machine's limit.

python benchmarks/run.py
python benchmarks/run.py --rounds 3

The plain loop evaluates all examples as one batch in PyTorch's default layout. The limit is the time that the
multiplications of two forward passes take at the speed of a large matrix product, measured in the same run. Each is
measured in processes of its own, in turns.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from zoedge.experiments import Settings, all_presets, preset
from zoedge.experiments.memory import keep_freed_memory
from zoedge.experiments.objective import Objective, build_model, load_task
from zoedge.experiments.optimizers import build_optimizer, take_step
from zoedge.optim import ZOSGD
from zoedge.tasks import LOSSES

# The paper's CNN: multiplications and additions of a forward pass of one image.
CNN_FLOPS = 2 * (32 * 32 * 32 * 27 + 16 * 16 * 64 * 288 + 4096 * 128 + 128 * 4)


def plain_step(settings: Settings) -> Callable[[], object]:
    """One batch, default layout."""
    task = load_task(settings)
    torch.manual_seed(settings.seed)
    model = build_model(settings, task)
    optimizer = ZOSGD(model.parameters(), lr=1e-9, mu=settings.mu)
    return lambda: optimizer.step(lambda: LOSSES[settings.loss](model(task.inputs), task.targets))


def fast_step(settings: Settings) -> Callable[[], object]:
    """As ``zoedge run`` does it."""
    objective = Objective(settings)
    optimizer = build_optimizer(settings, objective)
    for group in optimizer.param_groups:
        group["lr"] = 1e-9
    return lambda: take_step(optimizer, objective, 0)


def product_step(flops: float) -> Callable[[], object]:
    """Matrix products with as many operations."""
    n = 1024
    a, b = torch.randn(n, n), torch.randn(n, n)
    count = max(round(flops / (2 * n**3)), 1)

    def multiply() -> None:
        for _ in range(count):
            torch.mm(a, b)

    return multiply


def runs() -> dict[str, Settings]:
    """The paper's CNN, and the laptop presets; their methods differ by nothing that takes time."""
    laptop = [settings for settings in all_presets("laptop") if settings.method == "zo-gd"]
    return {"the paper's CNN, 1,000 images": preset("paper", "cnn", "zo-gd")} | {
        f"laptop preset of {settings.model}": settings for settings in laptop
    }


def seconds_of(kind: str, name: str) -> float:
    """Seconds of a step, in this process."""
    settings = runs()[name]
    if kind == "fast":
        keep_freed_memory()
        call = fast_step(settings)
    else:
        call = plain_step(settings) if kind == "plain" else product_step(2 * 1000 * CNN_FLOPS)
    call()
    taken = []
    start = time.perf_counter()
    while len(taken) < 3 or time.perf_counter() - start < 3:
        before = time.perf_counter()
        call()
        taken.append(time.perf_counter() - before)
    return statistics.median(taken)


def elsewhere(kind: str, name: str) -> float:
    """Seconds of a step, in a process of its own."""
    command = [sys.executable, __file__, "--seconds-of", kind, name]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds-of", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    if arguments.seconds_of:
        print(seconds_of(*arguments.seconds_of))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, median of {arguments.rounds} rounds\n")
    print("| run | steps/s | plain loop, steps/s | over the plain loop | limit, steps/s | below the limit |")
    print("|---|---|---|---|---|---|")
    for name, settings in runs().items():
        kinds = ["fast", "plain", "limit"] if settings == preset("paper", "cnn", "zo-gd") else ["fast", "plain"]
        rounds = [[elsewhere(kind, name) for kind in kinds] for _ in range(arguments.rounds)]
        fast, plain, *limit = (statistics.median(column) for column in zip(*rounds, strict=True))
        bound = f"{1 / limit[0]:.3g} | {fast / limit[0]:.2f}" if limit else "- | -"
        print(f"| {name} | {1 / fast:.3g} | {1 / plain:.3g} | {plain / fast:.2f} | {bound} |", flush=True)


if __name__ == "__main__":
    main()
