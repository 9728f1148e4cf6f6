"""A run is a folder: settings, status, metrics that only grow, checkpoints.

========================  ==============================================================================
``settings.json``         the settings, the package's version and the git revision; written once
``status.json``           running, finished, interrupted or diverged, with step, reason and time spent
``metrics.csv``           a row for every logged step and every reading; ``nan`` for what was not measured
``checkpoints/``          the last ones, in safetensors
``lock``                  held by the process that trains
========================  ==============================================================================

What is replaced is replaced atomically, so that a run can be killed at any moment.
"""

import csv
import fcntl
import json
import math
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal, TextIO

import msgspec

from zoedge import __version__
from zoedge.experiments.settings import Settings, from_mapping, to_mapping

State = Literal["new", "running", "finished", "interrupted", "diverged"]
COLUMNS = (
    "step", "loss", "lr", "lower", "threshold", "upper", "exact",
    "lower_stderr", "upper_stderr", "exact_stderr", "products", "commutator", "commutator_stderr",
)  # fmt: skip


@dataclass(frozen=True)
class Status:
    """How a run stands.

    Attributes:
        state: what became of it.
        step: steps taken.
        reason: why it ended before its time.
        seconds: time spent, over all its sessions.
        measuring: the part of it that readings took.
        edge_ratio: of the last reading, or ``None``.
        revisions: of the code that trained it, one for each session.
    """

    state: State = "new"
    step: int = 0
    reason: str = ""
    seconds: float = 0.0
    measuring: float = 0.0
    edge_ratio: float | None = None
    revisions: tuple[str, ...] = ()


class RunFolder:
    """Reads and writes the files of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not (path / "settings.json").is_file():
            raise FileNotFoundError(f"{path} is no run: it holds no settings.json")

    @classmethod
    def create(cls, path: Path, settings: Settings) -> "RunFolder":
        """A new folder, which must not exist, or be empty."""
        about = {"version": __version__, "revision": revision()}
        taken = FileExistsError(
            f"{path} is a run: go on with it by 'zoedge resume {path}', or name another folder with --out"
        )
        if (path / "settings.json").exists():
            raise taken
        # A run that was killed before it had settings left an empty folder of checkpoints.
        if path.exists() and any(content.name != "checkpoints" or any(content.iterdir()) for content in path.iterdir()):
            raise FileExistsError(f"{path} holds other things: name another folder with --out")
        (path / "checkpoints").mkdir(parents=True, exist_ok=True)
        content = json.dumps({**about, "settings": to_mapping(settings)}, indent=2)
        # Of two processes that begin at once, one finds the file there.
        try:
            write_atomically(path / "settings.json", content.encode(), new=True)
        except FileExistsError:
            raise taken from None
        return cls(path)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.path.name

    @property
    def settings(self) -> Settings:
        """As they were when the run began."""
        where = self.path / "settings.json"
        try:
            return from_mapping(json.loads(where.read_text())["settings"], str(where))
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{where} is damaged: {error}") from None

    @property
    def status(self) -> Status:
        """How the run stands; one that was killed while it ran counts as interrupted."""
        path = self.path / "status.json"
        try:
            status = msgspec.json.decode(path.read_bytes(), type=Status) if path.is_file() else Status()
        except (msgspec.MsgspecError, UnicodeDecodeError):  # settings and checkpoints are all it takes to go on
            status = Status("interrupted", reason="its status.json is damaged")
        if status.state == "running" and not self._in_use():
            return replace(status, state="interrupted", reason="its process is gone")
        return status

    @status.setter
    def status(self, status: Status) -> None:
        write_atomically(self.path / "status.json", json.dumps(asdict(status), indent=2).encode())

    def _in_use(self) -> bool:
        try:
            with (self.path / "lock").open("a") as file:
                return not _lock(file)
        except OSError:  # somebody else's run, or a disk for reading: take their word
            return True

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder: two processes must not train in it at once."""
        with (self.path / "lock").open("a") as file:
            # Who looks whether the folder is in use holds it for an instant.
            for _ in range(10):
                if _lock(file):
                    break
                time.sleep(0.05)
            else:
                raise OSError(f"another process is training in {self.path}")
            yield

    @contextmanager
    def metrics_writer(self, size: int) -> Iterator["MetricsWriter"]:
        """Append to the metrics, after cutting off what came after the first ``size`` bytes."""
        with (self.path / "metrics.csv").open("ab") as file:
            file.truncate(size)
            file.seek(0, os.SEEK_END)
            if file.tell() == 0:
                file.write((",".join(COLUMNS) + "\n").encode())
            yield MetricsWriter(file)

    @property
    def metrics_size(self) -> int:
        """Bytes of the metrics."""
        path = self.path / "metrics.csv"
        return path.stat().st_size if path.is_file() else 0

    def clean_up(self) -> None:
        """Delete what a process left that was killed while it wrote; only for who holds the folder."""
        for file in (*self.path.glob(".*.json.*"), *self.path.glob("checkpoints/.*.safetensors.*")):
            file.unlink(missing_ok=True)

    def metrics(self) -> dict[str, list[float]]:
        """Columns by name; a last row that was cut off by a crash is left out."""
        path = self.path / "metrics.csv"
        content = path.read_bytes() if path.is_file() else b""
        columns: dict[str, list[float]] = {name: [] for name in COLUMNS}
        try:
            rows = csv.DictReader(content[: content.rfind(b"\n") + 1].decode().splitlines(), strict=True)
            for row in rows:
                for name, values in columns.items():
                    values.append(float(row.get(name, "nan")))
        except (ValueError, TypeError, csv.Error) as error:
            raise ValueError(f"{path} is damaged: {str(error)[:80]!r} after row {len(columns['step'])}") from None
        return columns

    def readings(self, of: str = "lower") -> dict[str, list[float]]:
        """The metrics of those steps at which curvature, or another column, was measured."""
        columns = self.metrics()
        measured = [i for i, value in enumerate(columns[of]) if not math.isnan(value)]
        return {name: [values[i] for i in measured] for name, values in columns.items()}


class MetricsWriter:
    """Appends rows."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    @property
    def size(self) -> int:
        """Bytes so far, on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def write(self, row: Mapping[str, float]) -> None:
        """Append a row; columns that are missing are ``nan``."""
        self._file.write((",".join(repr(row.get(name, math.nan)) for name in COLUMNS) + "\n").encode())


def write_atomically(path: Path, content: bytes, new: bool = False) -> None:
    """Write a file that is there as a whole or not at all; a new one must not be there before."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if new:
            os.link(beside, path)
            beside.unlink()
        else:
            beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _lock(file: TextIO) -> bool:
    """Whether the file could be locked, which lasts until it is closed."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def find_runs(root: Path) -> list[RunFolder]:
    """The runs in a folder, by name."""
    return [RunFolder(path.parent) for path in sorted(root.glob("**/settings.json"))]


def revision() -> str:
    """Of the git repository that the package is in, if there is one."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done: Any = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
