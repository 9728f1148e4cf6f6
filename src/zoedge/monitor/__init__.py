"""How near a run is to the edge, and which step size it may take, from loss values alone.

``suggest_lr`` looks before training, ``EdgeMonitor`` while it goes on; ``EdgeLR`` sets the step size by what it sees.
"""

from zoedge.monitor.edge_lr import EdgeLR
from zoedge.monitor.edge_monitor import EdgeMonitor, EdgeReading
from zoedge.monitor.suggest import Suggestion, suggest_lr

__all__ = ["EdgeLR", "EdgeMonitor", "EdgeReading", "Suggestion", "suggest_lr"]
