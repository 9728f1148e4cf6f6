"""``zoedge resume``: go on with a run that was interrupted."""

import sys
from pathlib import Path
from typing import Annotated

import tyro


def resume(
    run: Annotated[Path, tyro.conf.Positional], /, *, quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
) -> None:
    """Go on with a run, after Ctrl-C or a crash, as if nothing had happened.

    Args:
        run: Folder of the run.
        quiet: Show nothing while it runs.
    """
    from zoedge.cli.training import finish, train
    from zoedge.experiments.folder import RunFolder

    folder = RunFolder(run)
    sys.exit(finish(folder, train(folder, quiet), quiet))


def main(arguments: list[str]) -> None:
    """Parse and run."""
    tyro.cli(resume, prog="zoedge resume", args=arguments)
