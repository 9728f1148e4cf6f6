"""Time of a zeroth-order step as a ratio to its two forward passes, and its memory beside inference.

python benchmarks/step.py            (with torchzero installed, that too: pip install -c constraints.txt torchzero)
python benchmarks/step.py --models cnn mlp --rounds 5
"""

import argparse
import importlib.util
import itertools
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from zoedge.optim import ZOSGD

MU, LR = 1e-3, 1e-9
Loss = Callable[[], Tensor]


def cnn() -> tuple[nn.Module, Loss]:
    """The paper's CNN, 544,100 parameters, on 1,000 images."""
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.GELU(), nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.GELU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(4096, 128, bias=False), nn.GELU(), nn.Linear(128, 4),
    )  # fmt: skip
    images, targets = torch.randn(1000, 3, 32, 32), torch.randn(1000, 4)
    return model, lambda: nn.functional.mse_loss(model(images), targets)


def encoder() -> tuple[nn.Module, Loss]:
    """A transformer encoder of 22 M parameters on 16 x 32 tokens."""
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, activation="gelu", batch_first=True)
    model = nn.TransformerEncoder(layer, 7, enable_nested_tensor=False)
    tokens = torch.randn(16, 32, 512)
    return model, lambda: model(tokens).square().mean()


def minilm() -> tuple[nn.Module, Loss]:
    """The shape of MiniLM, 22 M parameters of which 12 M are an embedding table, on 16 x 32 tokens."""
    layer = nn.TransformerEncoderLayer(384, 12, 1536, dropout=0.0, activation="gelu", batch_first=True)
    model = nn.Sequential(nn.Embedding(30522, 384), nn.TransformerEncoder(layer, 6, enable_nested_tensor=False))
    nn.init.normal_(model[0].weight, std=0.04)  # pyright: ignore[reportArgumentType]
    tokens = torch.randint(0, 30522, (16, 32))
    return model, lambda: model(tokens).square().mean()


def mlp() -> tuple[nn.Module, Loss]:
    """An MLP of 100 M parameters on 256 examples."""
    sizes = [4096, 5120, 5120, 5120, 4096]
    layers = [module for a, b in itertools.pairwise(sizes) for module in (nn.Linear(a, b), nn.GELU())]
    model = nn.Sequential(*layers)
    inputs = torch.randn(256, 4096)
    return model, lambda: model(inputs).square().mean()


MODELS = {"cnn": cnn, "encoder": encoder, "minilm": minilm, "mlp": mlp}


class MeZO:
    """The published loop: the global generator is reseeded and the direction drawn again for each of four passes."""

    def __init__(self, model: nn.Module) -> None:
        self.params, self.seed = list(model.parameters()), 0

    def shift(self, factor: float) -> None:
        torch.manual_seed(self.seed)
        for p in self.params:
            z = torch.normal(mean=0.0, std=1.0, size=p.shape, dtype=p.dtype)
            p.data = p.data + factor * z * MU

    @torch.no_grad()
    def step(self, loss: Loss) -> None:
        self.seed += 1
        self.shift(1)
        plus = loss().item()
        self.shift(-2)
        minus = loss().item()
        self.shift(1)
        slope = (plus - minus) / (2 * MU)
        torch.manual_seed(self.seed)
        for p in self.params:
            z = torch.normal(mean=0.0, std=1.0, size=p.shape, dtype=p.dtype)
            p.data = p.data - LR * slope * z


def contenders(model: nn.Module, loss: Loss) -> dict[str, Callable[[], object]]:
    found: dict[str, Callable[[], object]] = {}
    for store in (True, False):
        for directions in ("gaussian", "rademacher"):
            opt = ZOSGD(model.parameters(), lr=LR, mu=MU, directions=directions, store_direction=store)
            name = f"zoedge, {'copied' if store else 'replayed'}, {directions}"
            found[name] = lambda opt=opt: opt.step(loss)
    mezo = MeZO(model)
    found["MeZO-style loop, gaussian"] = lambda: mezo.step(loss)
    if importlib.util.find_spec("torchzero"):
        import torchzero as tz  # pyright: ignore[reportMissingImports]

        opt = tz.Optimizer(model.parameters(), tz.m.MeZO(h=MU, distribution="gaussian"), tz.m.LR(LR))
        found["torchzero, gaussian"] = lambda: opt.step(lambda backward=True: loss())
    return found


class Timed:
    """A loss that adds up the time that its calls take."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self.reset()

    def reset(self) -> None:
        self.seconds, self.calls = 0.0, 0

    def __call__(self) -> Tensor:
        start = time.perf_counter()
        value = self.loss()
        value.item()
        self.seconds += time.perf_counter() - start
        self.calls += 1
        return value

    @property
    def pair(self) -> float:
        """Time of two calls."""
        return 2 * self.seconds / self.calls


def ratios(name: str, rounds: int) -> dict[str, float]:
    """Time of a step over that of two of its own forward passes: both see the same machine, however it wanders."""
    torch.manual_seed(0)
    model, plain = MODELS[name]()
    loss = Timed(plain)
    steps = contenders(model, loss)
    table: dict[str, list[float]] = {step: [] for step in steps}
    passes = []
    for turn in range(rounds + 1):
        for step, function in steps.items():
            loss.reset()
            start = time.perf_counter()
            function()
            if turn > 0:  # the first one warms up
                table[step].append((time.perf_counter() - start) / loss.pair)
                passes.append(loss.pair)
    result = {step: statistics.median(values) for step, values in table.items()}
    return {"two forward passes, ms": 1e3 * statistics.median(passes)} | result


def peak_megabytes(name: str, kind: str) -> float:
    """Peak memory of a fresh process that does three evaluations or steps, in MB; median of three processes."""
    command = [sys.executable, __file__, "--memory-of", name, kind]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(3)]
    return statistics.median(map(float, runs))


def memory_of(name: str, kind: str) -> None:
    torch.manual_seed(0)
    model, loss = MODELS[name]()
    opt = ZOSGD(model.parameters(), lr=LR, mu=MU, store_direction=kind == "copied")
    with torch.no_grad():
        for _ in range(3):
            loss().item() if kind == "inference" else opt.step(loss)
    print(int(re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[0]) / 1024)


def keep_memory() -> None:
    """Start again with a C library that keeps freed memory: page faults of large activations make times wander."""
    settings = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
    if "--memory-of" not in sys.argv and not settings.keys() <= os.environ.keys():
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **settings})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--memory-of", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    keep_memory()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    if arguments.memory_of:
        memory_of(*arguments.memory_of)
        return
    columns = {name: ratios(name, arguments.rounds) for name in arguments.models}
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, median of {arguments.rounds} rounds\n")
    print(f"| step | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for row in next(iter(columns.values())):
        cells = [f"{column[row]:.0f}" if "ms" in row else f"{column[row]:.3f}" for column in columns.values()]
        print(f"| {row} | {' | '.join(cells)} |")
    print(f"\n| peak memory, MB | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        del os.environ[name]
    base = {name: peak_megabytes(name, "inference") for name in columns}
    print(f"| inference | {' | '.join(f'{base[name]:.0f}' for name in columns)} |")
    for kind in ("copied", "replayed"):
        cells = [f"{peak_megabytes(name, kind) / base[name]:.3f}" for name in columns]
        print(f"| zoedge, {kind}, ratio | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
