"""``zoedge run``: train a model, measuring how near it is to the edge."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import tyro

from zoedge.experiments.settings import Settings, read_config

DESCRIPTION = """Train a model, measuring how near it is to the edge of stability.

Try:
  zoedge run --task digits --model vit --method zo-gdm --lr 2e-4 --momentum 0.9 --steps 5000 --measure-every 250
  zoedge run --config run.toml --lr 1e-3 --out runs/try

A config file holds the same settings (lr = 1e-3, data.per_class = 20, ...); flags go on top of it.
"""


@dataclass(frozen=True)
class RunArguments:
    """What to run.

    Args:
        settings: of the run.
        config: TOML file with settings.
        out: folder of the run; by default its name says what it is, in runs/.
        quiet: show nothing while it runs.
    """

    settings: Annotated[Settings, tyro.conf.arg(name="")]
    config: Path | None = None
    out: Path | None = None
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


Arguments = TypeVar("Arguments", bound=RunArguments)


def parse(arguments: list[str], kind: type[Arguments], prog: str, description: str) -> Arguments:
    """Parse settings: the defaults or a config file, then flags on top."""
    config = _value(arguments, "--config")
    base = read_config(Path(config)) if config else Settings()
    return tyro.cli(kind, default=kind(base), prog=prog, description=description, args=arguments)


def main(arguments: list[str]) -> None:
    """Parse and run."""
    parsed = parse(arguments, RunArguments, "zoedge run", DESCRIPTION)
    from zoedge.cli.training import finish, train
    from zoedge.experiments.folder import RunFolder
    from zoedge.experiments.run import default_path

    path = parsed.out or default_path(parsed.settings, Path("runs"))
    folder = RunFolder.create(path, parsed.settings)
    sys.exit(finish(folder, train(folder, parsed.quiet), parsed.quiet))


def _value(arguments: list[str], flag: str) -> str | None:
    """The value of a flag before everything is parsed, because the defaults depend on it."""
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            return arguments[i + 1]
        if argument.startswith(f"{flag}="):
            return argument.split("=", 1)[1]
    return None
