"""Critical step size against momentum: it moves first-order and zeroth-order methods in opposite ways."""

import numpy as np
from matplotlib.figure import Figure

from zoedge.theory import GDM, ZOGDM, Estimator, Spectrum, critical_step_size, step_size_bounds


def momentum_figure(spectrum: Spectrum, estimator: Estimator | None = None) -> Figure:
    """Draw the critical step size of GDM and ZO-GDM, with the bounds of the latter, over beta in [0, 0.99]."""
    betas = np.concatenate([np.linspace(0, 0.9, 46), np.linspace(0.9, 0.99, 19)[1:]])
    first = [critical_step_size(spectrum, GDM(beta), negative="keep") for beta in betas]
    zeroth = [critical_step_size(spectrum, ZOGDM(beta), estimator, negative="keep") for beta in betas]
    bounds = [
        step_size_bounds(
            spectrum.trace,
            spectrum.lambda_max,
            ZOGDM(beta),
            estimator,
            spectrum.dimension,
            positive_trace=spectrum.positive_trace,
        )
        for beta in betas
    ]
    lower, upper = zip(*bounds, strict=True)

    figure = Figure(figsize=(5.6, 4.0), layout="constrained", dpi=160)
    axes = figure.subplots()
    axes.semilogy(betas, first, color="tab:gray", label=r"GDM: $2(1+\beta)/\lambda_{\max}$")
    axes.semilogy(betas, zeroth, color="tab:blue", label="ZO-GDM: exact, mean square")
    axes.fill_between(betas, lower, upper, color="tab:blue", alpha=0.2, lw=0, label="ZO-GDM: between its bounds")
    axes.set(xlabel=r"momentum $\beta$", ylabel="critical step size", xlim=(0, 1))
    axes.set_title("Momentum stabilises GD and destabilises ZO-GD", fontsize=11)
    axes.annotate(
        rf"$\mathrm{{Tr}}\,H = {spectrum.trace:.3g}$, $\lambda_{{\max}} = {spectrum.lambda_max:.3g}$",
        (0.03, 0.33),
        xycoords="axes fraction",
        color="0.35",
    )
    axes.legend(loc="lower left", frameon=False)
    axes.grid(alpha=0.25, which="major")
    return figure
