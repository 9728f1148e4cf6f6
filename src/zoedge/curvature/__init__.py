"""Curvature from Hessian-vector products: trace, top eigenvalues, the spectrum that the critical step size needs.

>>> import torch
>>> from zoedge.curvature import HessianOperator, spectrum, top_eigenvalues, trace
>>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1))
>>> x, y = torch.randn(32, 4), torch.randn(32, 1)
>>> H = HessianOperator(lambda: torch.nn.functional.mse_loss(model(x), y), model.parameters())
>>> bool(top_eigenvalues(H, 3).values[0] > 0)
True
>>> trace(H, 500).products, trace(H, 20, deflation=20).products
(500, 40)

``measure`` does all that a training run needs: optimizer and loss in, a ``Band`` out.
"""

from zoedge.curvature.commutator import relative_commutator
from zoedge.curvature.density import Density, spectral_density
from zoedge.curvature.estimate import Estimate
from zoedge.curvature.lanczos import Eigenpairs, top_eigenvalues
from zoedge.curvature.measure import measure
from zoedge.curvature.operator import HessianOperator
from zoedge.curvature.power import power_iteration
from zoedge.curvature.spectrum import MeasuredSpectrum, spectrum
from zoedge.curvature.trace import trace

__all__ = [
    "Density",
    "Eigenpairs",
    "Estimate",
    "HessianOperator",
    "MeasuredSpectrum",
    "measure",
    "power_iteration",
    "relative_commutator",
    "spectral_density",
    "spectrum",
    "top_eigenvalues",
    "trace",
]
