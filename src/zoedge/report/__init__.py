"""Figures and pages."""

from zoedge.report.momentum import momentum_figure

__all__ = ["momentum_figure"]
