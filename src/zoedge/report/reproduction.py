"""The files of a reproduced figure or table: drawings with and without the loss, and the data."""

import csv
from collections.abc import Sequence
from dataclasses import astuple, fields
from pathlib import Path

from zoedge.experiments.catalogue import Entry
from zoedge.experiments.folder import COLUMNS, RunFolder
from zoedge.experiments.table import Row
from zoedge.report.bands import Column, band_figure
from zoedge.theory import METHODS


def write_figure(entry: Entry, paths: list[list[Path]], folder: Path) -> list[Path]:
    """Write ``figure`` and ``figure-with-loss`` as PNG and SVG, and ``data.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    columns = [
        Column(panel.title, [RunFolder(path) for path in places], panel.labels)
        for panel, places in zip(entry.panels, paths, strict=True)
    ]
    files = []
    for name, rows in (("figure", entry.rows[1:]), ("figure-with-loss", entry.rows)):
        drawing = band_figure(columns, rows)
        for suffix in ("png", "svg"):
            files.append(folder / f"{name}.{suffix}")
            drawing.savefig(files[-1])
    files.append(folder / "data.csv")
    _write_data(columns, files[-1])
    return files


def write_table(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write ``table.md`` and ``data.csv``."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / "table.md", folder / "data.csv"]
    lines = [
        "| method | critical step size | the paper's bounds | second moment at 0.8 of it | at 1.25 of it |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        bounds = f"{row.lower:.3g} .. {row.upper:.3g}" if METHODS[row.method].zeroth_order else "exact"
        lines.append(
            f"| {METHODS[row.method].label} | {row.exact:.4g} +- {row.stderr:.1g} | {bounds} "
            f"| x {row.below:.2g} | x {row.above:.2g} |"
        )
    files[0].write_text("\n".join(lines) + "\n")
    with files[1].open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow([field.name for field in fields(Row)])
        writer.writerows(astuple(row) for row in rows)
    return files


def _write_data(columns: list[Column], file: Path) -> None:
    with file.open("w", newline="") as target:
        writer = csv.writer(target)
        writer.writerow(["panel", "run", *COLUMNS])
        for column in columns:
            for run, label in zip(column.runs, column.labels, strict=True):
                metrics = run.metrics()
                writer.writerows(
                    [column.title, label, *row] for row in zip(*(metrics[c] for c in COLUMNS), strict=True)
                )
