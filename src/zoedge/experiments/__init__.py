"""Experiments: a run from its settings to its folder, sweeps, and what readings say.

>>> from zoedge.experiments import Settings
>>> Settings(lr=1e-3, lr_schedule=((1000, 2e-3),)).lr_at(1500)
0.002

``start(settings, path)`` and ``resume(folder)`` train; they need PyTorch, which is loaded when they are first used.
"""

from typing import TYPE_CHECKING, Any

from zoedge.experiments.folder import COLUMNS, RunFolder, Status, find_runs
from zoedge.experiments.presets import all_presets, preset
from zoedge.experiments.settings import Data, Settings, Size, from_mapping, read_config, to_mapping
from zoedge.experiments.sweeps import plan, sweep
from zoedge.experiments.verdicts import Verdict, verdict

if TYPE_CHECKING:
    from zoedge.experiments.run import Moment, default_path, resume, start

__all__ = [
    "COLUMNS",
    "Data",
    "Moment",
    "RunFolder",
    "Settings",
    "Size",
    "Status",
    "Verdict",
    "all_presets",
    "default_path",
    "find_runs",
    "from_mapping",
    "plan",
    "preset",
    "read_config",
    "resume",
    "start",
    "sweep",
    "to_mapping",
    "verdict",
]


def __getattr__(name: str) -> Any:
    """What needs PyTorch, when it is first used."""
    if name in ("Moment", "default_path", "resume", "start"):
        from zoedge.experiments import run

        return getattr(run, name)
    raise AttributeError(f"module 'zoedge.experiments' has no attribute {name!r}")
