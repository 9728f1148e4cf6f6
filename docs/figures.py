"""Draw the figures of the documentation: python docs/figures.py"""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from zoedge.report import momentum_figure
from zoedge.theory import ZOGD, BlockCovariance, Spectrum, critical_step_size, simulate

FOLDER = Path(__file__).parent / "figures"


def almost_sure_figure() -> Figure:
    """Growth of the second moment and of a single run around the edge, for three effective ranks."""
    ranks = (1, 4, 64)
    factors = np.linspace(0.4, 2.4, 21)
    figure = Figure(figsize=(9.6, 3.3), layout="constrained", dpi=160)
    for axes, rank in zip(figure.subplots(1, 3, sharex=True), ranks, strict=True):
        values = np.ones(rank)
        edge = critical_step_size(values, ZOGD())
        square = [np.log(BlockCovariance(values, ZOGD()).spectral_radius(f * edge)) / 2 for f in factors]
        single = [simulate(values, ZOGD(), f * edge, 2000, replicas=200) for f in factors]
        axes.axhline(0, color="0.6", lw=0.8)
        axes.axvline(1, color="0.6", lw=0.8, ls="--")
        axes.plot(factors, square, color="tab:red", label=r"root mean square, $\frac{1}{2}\log\rho$")
        axes.errorbar(
            factors,
            [run.lyapunov for run in single],
            [2 * run.lyapunov_stderr for run in single],
            color="tab:blue",
            fmt="o-",
            ms=3,
            label="single run, Lyapunov exponent",
        )
        axes.set_title("one eigenvalue" if rank == 1 else f"{rank} equal eigenvalues", fontsize=11)
        rates = np.array([run.lyapunov for run in single])
        growing = np.flatnonzero(rates > 0)
        if len(growing):
            around = slice(growing[0] - 1, growing[0] + 1)
            crossing = np.interp(0, rates[around], factors[around])
            print(f"{rank} equal eigenvalues: single runs grow from {crossing:.2f} of the critical step size on")
        else:
            print(f"{rank} equal eigenvalues: single runs decay up to {factors[-1]:.1f} of the critical step size")
    figure.axes[0].set_ylabel("growth rate per step")
    figure.supxlabel("step size / mean-square critical step size", fontsize=10)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=2, frameon=False)
    return figure


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    momentum_figure(Spectrum.power_law(1000)).savefig(FOLDER / "momentum.png")
    almost_sure_figure().savefig(FOLDER / "almost_sure.png")


if __name__ == "__main__":
    main()
