"""Zeroth-order optimization at the edge of stability."""

from zoedge import theory

__version__ = "0.1.0"

__all__ = ["__version__", "theory"]
