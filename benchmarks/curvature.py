"""Accuracy of curvature estimates by the number of Hessian-vector products, and the time of a product.

python benchmarks/curvature.py            (an hour; with curvlinops installed, its products are timed too:
                                           pip install -c constraints.txt curvlinops-for-pytorch)
python benchmarks/curvature.py --nets lstm --repeats 5
python benchmarks/curvature.py --only time

The networks are trained on scikit-learn's digits by ZO-GD, up to the edge of stability; at three moments of the
training their dense Hessian (4,500 to 6,100 parameters) gives the exact values.
"""

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from zoedge.curvature import HessianOperator, power_iteration, spectrum, trace
from zoedge.optim import ZOSGD
from zoedge.theory import ZOGD, Spectrum, critical_step_size

BUDGETS = (40, 80, 160, 320)


class ViT(nn.Module):
    """Two blocks of width 16 on the sixteen 2x2 patches of a digit; 4,986 parameters."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.positions = nn.Parameter(torch.randn(16, width) * 0.02)
        self.blocks = nn.Sequential(
            *(
                nn.TransformerEncoderLayer(
                    width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(2)
            )
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.norm(self.blocks(tokens)).mean(1))


class LSTM(nn.Module):
    """Reads a digit row by row; 4,546 parameters."""

    def __init__(self, hidden: int = 28) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, hidden, batch_first=True), nn.Linear(hidden, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.lstm(images[:, 0])[0][:, -1])


def cnn() -> nn.Module:
    """The paper's CNN, smaller; 6,102 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1, bias=False), nn.GELU(), nn.AvgPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1, bias=False), nn.GELU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(96, 32, bias=False), nn.GELU(), nn.Linear(32, 10),
    )  # fmt: skip


# Network, step size, and the steps at which it is at the start, sharpening, and at the edge.
NETS: dict[str, tuple[Callable[[], nn.Module], float, tuple[int, int, int]]] = {
    "cnn": (cnn, 5e-3, (0, 12_000, 15_000)),
    "vit": (ViT, 2e-3, (0, 3_000, 6_000)),
    "lstm": (LSTM, 1.5e-2, (0, 2_000, 20_000)),
}


class Problem:
    """A network and its loss on images."""

    def __init__(self, model: nn.Module, images: Tensor, targets: Tensor) -> None:
        self.model, self.images, self.targets = model, images, targets
        self.params = list(model.parameters())

    def __call__(self) -> Tensor:
        return 0.5 * (self.model(self.images) - self.targets).square().sum(1).mean()


def on_digits(make: Callable[[], nn.Module]) -> Problem:
    """A network on a hundred digits."""
    pixels, labels = load_digits(return_X_y=True)
    images = torch.tensor(pixels[:100], dtype=torch.float32).view(-1, 1, 8, 8)
    images = (images - images.mean()) / images.std()
    targets = nn.functional.one_hot(torch.tensor(labels[:100]), 10).float()
    torch.manual_seed(0)
    return Problem(make(), images, targets)


def moments(name: str) -> Iterator[tuple[str, Problem]]:
    """The network at the start, while sharpening, and at the edge."""
    make, lr, steps = NETS[name]
    problem = on_digits(make)
    optimizer = ZOSGD(problem.params, lr=lr, seed=1)
    for moment, step in zip(("start", "sharpening", "edge"), steps, strict=True):
        for _ in range(optimizer.step_count, step):
            optimizer.step(problem)
        yield moment, problem


def step_size(s: Spectrum) -> float:
    return critical_step_size(s, ZOGD(), negative="keep")


def exact_spectrum(H: HessianOperator) -> Spectrum:
    matrix = H.rows(torch.eye(H.shape[0])).double().numpy()
    return Spectrum(np.linalg.eigvalsh((matrix + matrix.T) / 2))


def paper(H: HessianOperator, generator: torch.Generator) -> tuple[float, float, float]:
    """Trace, largest eigenvalue and the middle of the bounds on the step size, from 50 + 500 products."""
    top, total = power_iteration(H, 50, generator=generator).value, trace(H, 500, generator=generator).value
    return total, top, 2 / (total + top)


def ours(budget: int, H: HessianOperator, generator: torch.Generator) -> tuple[float, float, float]:
    found = spectrum(H, budget, generator=generator)
    return found.trace, found.lambda_max, step_size(found)


def accuracy(nets: list[str], repeats: int) -> None:
    print("| net | moment | trace | lambda_max | edge ratio | products | trace, % | lambda_max, % | step size, % |")
    print(f"|{'---|' * 9}", flush=True)
    for name in nets:
        for moment, problem in moments(name):
            H = HessianOperator(problem, problem.params)
            spectrum_ = exact_spectrum(H)
            exact = (spectrum_.trace, spectrum_.lambda_max, step_size(spectrum_))
            state = f"{exact[0]:.4g} | {exact[1]:.4g} | {NETS[name][1] / exact[2]:.2f}"
            recipes = {"50 + 500, paper's recipe": paper} | {str(budget): partial(ours, budget) for budget in BUDGETS}
            for recipe, estimate in recipes.items():
                found = [estimate(H, torch.Generator().manual_seed(seed)) for seed in range(repeats)]
                errors = 100 * np.sqrt(np.mean((np.array(found) / exact - 1) ** 2, 0))
                print(
                    f"| {name} | {moment} | {state} | {recipe} | {' | '.join(f'{e:.2g}' for e in errors)} |", flush=True
                )


def large_cnn() -> Problem:
    """The paper's CNN on 200 images of its size."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.GELU(), nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1, bias=False), nn.GELU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(4096, 128, bias=False), nn.GELU(), nn.Linear(128, 4),
    )  # fmt: skip
    return Problem(model, torch.randn(200, 3, 32, 32), torch.randn(200, 4))


def curvlinops_product(problem: Problem, v: Tensor) -> Callable[[], object] | None:
    """A product of curvlinops' Hessian of the same loss, up to a factor."""
    if not importlib.util.find_spec("curvlinops"):
        return None
    from curvlinops import HessianLinearOperator  # pyright: ignore[reportMissingImports]

    data = [(problem.images, problem.targets)]
    H = HessianLinearOperator(problem.model, nn.MSELoss(), problem.params, data, check_deterministic=False)

    def product() -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return H @ v

    try:
        product()
    except NotImplementedError:  # forward mode through PyTorch's fused LSTM
        return None
    return product


def times(rounds: int) -> None:
    """Time of a product in units of a gradient, interleaved; medians."""
    problems = {name: on_digits(make) for name, (make, _, _) in NETS.items()} | {"paper's cnn, 200 images": large_cnn()}
    print("| net | gradient, ms | product | product of curvlinops |\n|---|---|---|---|", flush=True)
    for name, problem in problems.items():
        H = HessianOperator(problem, problem.params)
        v = torch.randn(H.shape[0])
        calls: list[Callable[[], object]] = [
            lambda problem=problem: torch.autograd.grad(problem(), problem.params),
            lambda H=H, v=v: H.matvec(v),
        ]
        other = curvlinops_product(problem, v)
        calls += [other] if other else []
        taken: list[list[float]] = [[] for _ in calls]
        for turn in range(rounds + 1):
            for call, seconds in zip(calls, taken, strict=True):
                start = time.perf_counter()
                call()
                if turn > 0:  # the first one warms up
                    seconds.append(time.perf_counter() - start)
        gradient, *products = map(statistics.median, taken)
        cells = [f"{product / gradient:.2f}" for product in products] + ["-"] * (2 - len(products))
        print(f"| {name} | {1e3 * gradient:.1f} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", choices=NETS, default=list(NETS))
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--only", choices=("accuracy", "time"))
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count() or 1)))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads\n", file=sys.stderr)
    if arguments.only != "accuracy":
        times(arguments.rounds)
    if arguments.only != "time":
        print()
        accuracy(arguments.nets, arguments.repeats)


if __name__ == "__main__":
    main()
