"""A report: figures as PNG and SVG, and one HTML page that holds everything."""

import html
import io
from pathlib import Path

from matplotlib.figure import Figure

from zoedge.experiments.folder import RunFolder
from zoedge.experiments.settings import to_mapping
from zoedge.experiments.verdicts import verdict
from zoedge.report.bands import Column, band_figure

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
table { border-collapse: collapse; margin: 1rem 0 }
th, td { padding: .3rem .8rem; text-align: right; white-space: nowrap }
th { border-bottom: 2px solid #888 } td { border-bottom: 1px solid #ddd }
th:first-child, td:first-child, th:last-child, td:last-child { text-align: left }
svg { width: 100%; max-width: 48rem; height: auto }
details { margin: .5rem 0 } pre { background: #f6f6f6; padding: .8rem }
"""
HEADER = ("run", "threshold", "lower term", "edge ratio", "range", "in the band", "verdict")


def write_report(runs: list[RunFolder], folder: Path) -> list[Path]:
    """Write ``bands.png``, ``bands.svg`` and ``report.html``."""
    folder.mkdir(parents=True, exist_ok=True)
    names = labels(runs)
    shown = ("loss", "band", "lr") if any(run.settings.lr == "edge" for run in runs) else ("loss", "band")
    figure = band_figure([Column("", runs, names)], shown)
    files = [folder / "bands.png", folder / "bands.svg", folder / "report.html"]
    figure.savefig(files[0])
    figure.savefig(files[1])
    files[2].write_text(_page(runs, names, figure))
    return files


def labels(runs: list[RunFolder]) -> list[str]:
    """What tells the runs apart: the settings in which they differ, or their names."""
    flat = [_flat(to_mapping(run.settings)) for run in runs]
    hidden = ("threads", "steps", "measure_every", "budget", "log_every", "checkpoint_every")
    differing = [
        key for key in flat[0] if key not in hidden and any(settings[key] != flat[0][key] for settings in flat)
    ]
    found = [", ".join(f"{key} {settings[key]}" for key in differing) for settings in flat]
    return found if all(found) and len(set(found)) == len(found) else [run.name for run in runs]


def rows(runs: list[RunFolder], names: list[str]) -> list[tuple[str, ...]]:
    """A row of ``HEADER`` for every run."""
    found = []
    for run, name in zip(runs, names, strict=True):
        try:
            v, status = verdict(run.readings()), run.status
        except ValueError as error:
            found.append((name, *["-"] * (len(HEADER) - 2), str(error)))
            continue
        text = f"{status.state} at step {status.step}" if status.state != "finished" else str(v)
        found.append(
            (
                name,
                f"{v.threshold:.4g}",
                f"{v.lower:.4g}",
                f"{v.edge_ratio:.2f}",
                f"{v.lowest:.2f} .. {v.highest:.2f}",
                f"{v.in_band:.0%}" if v.readings else "nan",
                text,
            )
        )
    return found


def _flat(mapping: dict, prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in mapping.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _page(runs: list[RunFolder], names: list[str], figure: Figure) -> str:
    drawing = io.StringIO()
    figure.savefig(drawing, format="svg")
    svg = drawing.getvalue()
    table = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows(runs, names)
    )
    head = "".join(f"<th>{name}</th>" for name in HEADER)
    settings = "".join(
        f"<details><summary>{html.escape(name)}</summary>"
        f"<pre>{html.escape((run.path / 'settings.json').read_text())}</pre></details>"
        for run, name in zip(runs, names, strict=True)
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>zoedge report</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        "<h1>Curvature and the edge of stability</h1>"
        f"{svg[svg.index('<svg') :]}"
        "<p>Above: training loss. Below: the paper's two curvature terms (lower solid, upper dash-dotted), the exact "
        "curvature (dotted) and the threshold (dashed). At the edge the threshold lies between the two terms, and the "
        "edge ratio, exact curvature over threshold, is 1.</p>"
        f"<table><tr>{head}</tr>{table}</table><h2>Settings</h2>{settings}</body></html>"
    )
