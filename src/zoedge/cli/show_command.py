"""``zoedge show``: settings, status and verdict of a run."""

import json
from pathlib import Path
from typing import Annotated

import tyro


def show_run(run: Annotated[Path, tyro.conf.Positional], /) -> None:
    """Show settings, status, last band and verdict of a run.

    Args:
        run: Folder of the run.
    """
    from zoedge.experiments.folder import RunFolder
    from zoedge.experiments.verdicts import verdict

    folder = RunFolder(run)
    status, readings = folder.status, folder.readings()
    print(json.dumps(json.loads((run / "settings.json").read_text()), indent=2))
    print(f"\nstatus    {status.state}, step {status.step} of {folder.settings.steps}, {status.seconds:.0f} s")
    if status.reason:
        print(f"reason    {status.reason}")
    if readings["step"]:
        last = {name: values[-1] for name, values in readings.items()}
        terms = "  ".join(
            f"{name} {last[name]:.4g} +- {last[f'{name}_stderr']:.2g}" for name in ("lower", "exact", "upper")
        )
        print(f"last band step {last['step']:.0f}: {terms}  threshold {last['threshold']:.4g}")
    print(f"verdict   {'none, it diverged' if status.state == 'diverged' else verdict(readings)}")


def main(arguments: list[str]) -> None:
    """Parse and run."""
    tyro.cli(show_run, prog="zoedge show", args=arguments)
