"""Write docs/reproduction.md from stored verdicts.

zoedge reproduce all --out reproduction
python docs/reproduction.py reproduction/laptop    # takes over figures and verdicts, then writes the page
python docs/reproduction.py                        # writes the page again from what is stored
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from zoedge.experiments.catalogue import catalogue

HERE = Path(__file__).parent
STORED = HERE / "reproduction"
INTRODUCTION = """# The paper's figures

Every figure of the paper at a scale that two cores manage, each with the claims that it must show. This page is made
from stored verdicts (`python docs/reproduction.py`); nothing on it is written by hand. The same figures at the paper's
scale: `zoedge reproduce NAME --preset paper`.

The edge counts as reached from the first reading with an edge ratio (step size over critical step size) of 0.8 on, if
the median from there on is at least 0.8, too. Readings are [measured](curvature.md), with the exact curvature as a
dotted line; the settings are those of the [laptop presets](runs.md#presets). Seeds were not chosen: all are 0.

| figure | in the paper | claims that hold | runs at the edge | mean edge ratio | minutes of runs |
|---|---|---|---|---|---|
"""


def take_over(folder: Path) -> None:
    """Copy verdicts and pictures of a reproduction."""
    for verdict in sorted(folder.glob("*/verdict.json")):
        target = STORED / verdict.parent.name
        target.mkdir(parents=True, exist_ok=True)
        for name in ("verdict.json", "figure-with-loss.png", "table.md"):
            if (verdict.parent / name).exists():
                shutil.copy(verdict.parent / name, target / name)


def page() -> str:
    found = [json.loads((STORED / name / "verdict.json").read_text()) for name in names()]
    return INTRODUCTION + "\n".join(map(summary, found)) + "\n\n" + "\n".join(map(section, found))


def names() -> list[str]:
    return [name for name in catalogue("laptop") if (STORED / name / "verdict.json").exists()]


def summary(content: dict[str, Any]) -> str:
    claims, runs = content["claims"], content["runs"]
    holding = sum(claim["holds"] for claim in claims)
    at_edge = [run for run in runs if run["reached"] is not None]
    mean = f"{sum(run['edge_ratio'] for run in at_edge) / len(at_edge):.2f}" if at_edge else "-"
    minutes = sum(run["seconds"] for run in runs) / 60
    link = f"[{content['name']}](#{content['name']})"
    held, reached = f"{holding} of {len(claims)}", f"{len(at_edge)} of {len(runs)}"
    return f"| {link} | {content['paper']} | {held} | {reached} | {mean} | {minutes:.0f} |"


def section(content: dict[str, Any]) -> str:
    name = content["name"]
    lines = [f"## {name}", "", f"`zoedge reproduce {name}` ({content['paper']}): {content['shows']}.", ""]
    if (STORED / name / "table.md").exists():
        lines += [(STORED / name / "table.md").read_text()]
    else:
        lines += [f"![{content['shows']}](reproduction/{name}/figure-with-loss.png)", ""]
    lines += [paragraph(content), "", "| | claim | found |", "|---|---|---|"]
    for claim in content["claims"]:
        lines.append(
            f"| {'holds' if claim['holds'] else '**fails**'} | {claim['panel']}: {claim['text']} | {claim['numbers']} |"
        )
    return "\n".join(lines) + "\n"


def paragraph(content: dict[str, Any]) -> str:
    """What agrees and what does not."""
    claims, runs = content["claims"], content["runs"]
    at_edge = [run for run in runs if run["reached"] is not None]
    text = []
    if at_edge:
        ratios = [run["edge_ratio"] for run in at_edge]
        when = [run["reached"] / run["settings"]["steps"] for run in at_edge]
        text.append(
            f"{len(at_edge)} of {len(runs)} runs reach the edge, after {min(when):.0%} to {max(when):.0%} of their "
            f"steps; from there on their mean edge ratios lie between {min(ratios):.2f} and {max(ratios):.2f}."
        )
    for run in runs:
        if run["state"] == "diverged":
            text.append(f"The run {run['panel']}, {run['run']} diverged at step {run['steps']}.")
    failing = [claim for claim in claims if not claim["holds"]]
    if not failing:
        text.append("All claims of the paper's figure hold.")
    for claim in failing:
        text.append(f"For {claim['panel']} it does not hold that {claim['text']} ({claim['numbers']}).")
    if content["tried"]:
        text.append(f"Tried on the way: {content['tried']}.")
    return " ".join(text)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        take_over(Path(sys.argv[1]))
    (HERE / "reproduction.md").write_text(page())
