"""Experiments: a run from its settings to its folder."""

from zoedge.experiments.folder import COLUMNS, RunFolder, Status, find_runs
from zoedge.experiments.run import Moment, default_path, resume, start
from zoedge.experiments.settings import Data, Settings, Size, from_mapping, read_config

__all__ = [
    "COLUMNS",
    "Data",
    "Moment",
    "RunFolder",
    "Settings",
    "Size",
    "Status",
    "default_path",
    "find_runs",
    "from_mapping",
    "read_config",
    "resume",
    "start",
]
