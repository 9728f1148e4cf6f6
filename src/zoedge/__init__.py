"""Zeroth-order optimization at the edge of stability.

- ``zoedge.theory``: how large the step size may be; NumPy and SciPy only.
- ``zoedge.optim``: zeroth-order optimizers for PyTorch.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from zoedge import theory

if TYPE_CHECKING:
    from zoedge import optim

__version__ = "0.1.0"

__all__ = ["__version__", "optim", "theory"]


def __getattr__(name: str) -> ModuleType:
    """Load what needs PyTorch when it is first used."""
    if name == "optim":
        return importlib.import_module("zoedge.optim")
    raise AttributeError(f"module 'zoedge' has no attribute {name!r}")
