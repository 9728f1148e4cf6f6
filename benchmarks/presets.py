"""What the laptop presets do: when each reaches the edge, and where it settles.

python benchmarks/presets.py
python benchmarks/presets.py --out reproduction --jobs 2

Runs are kept in OUT/laptop/runs, beside those of ``zoedge reproduce``; one that exists is not made again.
"""

import argparse
from pathlib import Path

from zoedge.cli.sweep_progress import SweepProgress
from zoedge.experiments import RunFolder, all_presets, sweep, verdict
from zoedge.experiments.reproduce import run_path


def row(run: RunFolder) -> str:
    found, status, settings = verdict(run.readings()), run.status, run.settings
    rate = status.seconds / max(status.step, 1)
    reached = "-" if found.reached is None else f"{found.reached:,} ({found.reached * rate:.0f} s)"
    end = f"{status.step:,}" + ("" if status.state == "finished" else f" ({status.state})")
    return (
        f"| {settings.model} | {settings.method} | {settings.lr:g} | {found.threshold:.0f} | {found.lower:.0f} "
        f"| {reached} | {found.edge_ratio:.2f} ({found.lowest:.2f} .. {found.highest:.2f}) | {found.in_band:.0%} "
        f"| {end} | {status.seconds:.0f} s | {status.measuring / status.seconds:.0%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("reproduction"))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    runs = {run_path(settings, arguments.out / "laptop" / "runs"): settings for settings in all_presets("laptop")}
    with SweepProgress(quiet=False) as progress:
        folders = sweep(runs, arguments.jobs, progress)
    print(
        "| model | method | lr | threshold | lower term | edge reached at step | edge ratio from there on "
        "| in the band | steps | time | measuring |\n|---|---|---|---|---|---|---|---|---|---|---|"
    )
    for folder in folders:
        print(row(folder))


if __name__ == "__main__":
    main()
