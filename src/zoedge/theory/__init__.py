"""The theory: numbers in, numbers out.

How large may the step size of a zeroth-order method be before its second moment explodes? For a loss with
Hessian H the answer depends on the whole spectrum of H, in essence on its trace:

>>> from zoedge.theory import GD, ZOGD, critical_step_size
>>> hessian = [4.0, 1.0, 1.0, 1.0, 1.0]
>>> critical_step_size(hessian, GD())
0.5
>>> round(critical_step_size(hessian, ZOGD()), 6)
0.142857

Needs NumPy and SciPy only.
"""

from zoedge.theory import checks
from zoedge.theory.bands import Band, band, spectrum_band, threshold
from zoedge.theory.blocks import BlockCovariance
from zoedge.theory.estimator import Estimator
from zoedge.theory.floor import Floor, forward_floor
from zoedge.theory.matrices import MatrixCovariance
from zoedge.theory.methods import GD, GDM, METHODS, ZOGD, ZOGDM, Adam, Method, ZOAdam
from zoedge.theory.minibatch import MiniBatch
from zoedge.theory.simulation import Simulation, simulate
from zoedge.theory.spectrum import Spectrum
from zoedge.theory.step_size import critical_step_size, mean_critical_step_size, step_size_bounds

__all__ = [
    "GD",
    "GDM",
    "METHODS",
    "ZOGD",
    "ZOGDM",
    "Adam",
    "Band",
    "BlockCovariance",
    "Estimator",
    "Floor",
    "MatrixCovariance",
    "Method",
    "MiniBatch",
    "Simulation",
    "Spectrum",
    "ZOAdam",
    "band",
    "checks",
    "critical_step_size",
    "forward_floor",
    "mean_critical_step_size",
    "simulate",
    "spectrum_band",
    "step_size_bounds",
    "threshold",
]
