"""Zeroth-order optimization at the edge of stability.

- ``zoedge.theory``: how large the step size may be; NumPy and SciPy only.
- ``zoedge.optim``: zeroth-order optimizers for PyTorch.
- ``zoedge.curvature``: what the Hessian of a model is like, and how near a run is to the edge.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from zoedge import theory

if TYPE_CHECKING:
    from zoedge import curvature, optim

__version__ = "0.1.0"

__all__ = ["__version__", "curvature", "optim", "theory"]


def __getattr__(name: str) -> ModuleType:
    """Load what needs PyTorch when it is first used."""
    if name in ("curvature", "optim"):
        return importlib.import_module(f"zoedge.{name}")
    raise AttributeError(f"module 'zoedge' has no attribute {name!r}")
