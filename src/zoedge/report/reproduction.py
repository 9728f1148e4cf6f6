"""The files of a reproduced figure or table: drawings with and without the loss, and the data."""

import csv
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from zoedge.experiments.catalogue import Entry
from zoedge.experiments.folder import COLUMNS, RunFolder
from zoedge.experiments.reproduce import runs_of, write_verdict
from zoedge.experiments.table import ABOVE, BELOW, Row, measured_spectrum, stability_table, table_claims
from zoedge.report.bands import Column, band_figure
from zoedge.theory import METHODS


def write_reproduction(entry: Entry, root: Path, folder: Path) -> tuple[list[Path], dict]:
    """Write the drawings or the table, the data, and the verdict; returns the files and the verdict."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = runs_of(entry, root)
    if entry.kind == "table":
        rows = stability_table(*(measured_spectrum(run) for run in runs[0]))
        files, claims = write_table(rows, folder), table_claims(rows)
    else:
        files, claims = write_figure(entry, runs, folder), []
    verdict = folder / "verdict.json"
    return [*files, verdict], write_verdict(entry, runs, verdict, claims)


def write_figure(entry: Entry, runs: Sequence[Sequence[RunFolder]], folder: Path) -> list[Path]:
    """Write ``figure`` and ``figure-with-loss`` as PNG and SVG, and ``data.csv``."""
    columns = [Column(panel.title, row, panel.labels) for panel, row in zip(entry.panels, runs, strict=True)]
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
    files = [folder / "table.md", folder / "data.csv"]
    lines = [
        f"| method | critical step size | the paper's bounds | second moment at {BELOW:g} and {ABOVE:g} of it, a step "
        "| the same simulated, over 150 steps |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        bounds = f"{row.lower:.3g} .. {row.upper:.3g}" if METHODS[row.method].zeroth_order else "exact"
        lines.append(
            f"| {METHODS[row.method].label} | {row.exact:.4g} +- {row.stderr:.1g} | {bounds} "
            f"| {row.below.rate:.4f}, {row.above.rate:.4f} | x {row.below}, x {row.above} |"
        )
    files[0].write_text("\n".join(lines) + "\n")
    with files[1].open("w", newline="") as target:
        flat = [_flat(asdict(row)) for row in rows]
        writer = csv.DictWriter(target, list(flat[0]))
        writer.writeheader()
        writer.writerows(flat)
    return files


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    """Nested values by names joined with an underscore."""
    return {
        f"{name}_{inner}" if inner else name: number
        for name, value in row.items()
        for inner, number in (value.items() if isinstance(value, dict) else [("", value)])
    }


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
