"""Zeroth-order optimization at the edge of stability.

- ``zoedge.theory``: how large the step size may be; NumPy and SciPy only.
- ``zoedge.optim``: zeroth-order optimizers for PyTorch.
- ``zoedge.curvature``: what the Hessian of a model is like, and how near a run is to the edge.
- ``zoedge.monitor``: the same from loss values alone, while a run goes on; ``zoedge.suggest_lr`` before it begins.
"""

import importlib
from typing import TYPE_CHECKING, Any

from zoedge import theory

if TYPE_CHECKING:
    from zoedge import curvature, monitor, optim
    from zoedge.monitor import suggest_lr

__version__ = "0.1.0"

__all__ = ["__version__", "curvature", "monitor", "optim", "suggest_lr", "theory"]


def __getattr__(name: str) -> Any:
    """Load what needs PyTorch when it is first used."""
    if name == "suggest_lr":
        return importlib.import_module("zoedge.monitor").suggest_lr
    if name in ("curvature", "monitor", "optim"):
        return importlib.import_module(f"zoedge.{name}")
    raise AttributeError(f"module 'zoedge' has no attribute {name!r}")
