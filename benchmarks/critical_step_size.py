"""Time of one critical step size in units of one pass of numpy.sum over the eigenvalues.

python benchmarks/critical_step_size.py
"""

import time

import numpy as np

from zoedge.theory import ZOGD, ZOGDM, Estimator, critical_step_size

SIZE, REPEATS = 10_000_000, 7
CASES = {
    "ZO-GD": (ZOGD(), Estimator()),
    "ZO-GDM, beta 0.9": (ZOGDM(0.9), Estimator()),
    "ZO-GD, 100 queries": (ZOGD(), Estimator(queries=100)),
}


def seconds(function) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def main() -> None:
    generator = np.random.default_rng(0)
    spectra = {
        "log-normal, sigma 3": generator.lognormal(sigma=3, size=SIZE),
        "1e-12 .. 1e12": 10 ** generator.uniform(-12, 12, size=SIZE),
        "power law 1/i": 1 / np.arange(1.0, SIZE + 1),
        "log-normal, half negative, kept": generator.lognormal(sigma=3, size=SIZE) * generator.choice((-1, 1), SIZE),
    }
    print(f"One critical step size of {SIZE:.0e} eigenvalues, in passes of numpy.sum (median of {REPEATS}).\n")
    print(f"| spectrum | {' | '.join(CASES)} |\n|---|{'---|' * len(CASES)}")
    for name, values in spectra.items():
        cells = []
        for method, estimator in CASES.values():
            pairs = [
                (
                    seconds(values.sum),
                    seconds(lambda m=method, e=estimator, v=values: critical_step_size(v, m, e, negative="keep")),
                )
                for _ in range(REPEATS)
            ]
            one_pass, root = np.median(pairs, axis=0)
            cells.append(f"{root / one_pass:.0f}")
        print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
