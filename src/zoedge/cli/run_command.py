"""``zoedge run``: train a model, measuring how near it is to the edge."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar, get_args

import tyro

from zoedge.experiments.presets import PresetName, preset
from zoedge.experiments.settings import MethodName, ModelName, Settings, read_config

DESCRIPTION = """Train a model, measuring how near it is to the edge of stability.

Try:
  zoedge run --task digits --model vit --method zo-gdm --lr 2e-4 --momentum 0.9 --steps 5000 --measure-every 250
  zoedge run --preset laptop --model resnet20 --method zo-adam
  zoedge run --config run.toml --lr 1e-3 --out runs/try

A preset gives settings with which a model reaches the edge by a method: in minutes on two cores (laptop), or at the
paper's scale (paper, for a GPU). A config file holds the same settings as the flags (lr = 1e-3, data.per_class = 20,
...). Flags go on top of either.
"""


@dataclass(frozen=True)
class RunArguments:
    """What to run.

    Args:
        settings: of the run.
        config: TOML file with settings.
        preset: settings that suit the model and the method.
        out: folder of the run; by default its name says what it is, in runs/.
        quiet: show nothing while it runs.
    """

    settings: Annotated[Settings, tyro.conf.arg(name="")]
    config: Path | None = None
    preset: PresetName | None = None
    out: Path | None = None
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False


Arguments = TypeVar("Arguments", bound=RunArguments)


def parse(arguments: list[str], kind: type[Arguments], prog: str, description: str) -> Arguments:
    """Parse settings: the defaults, a preset or a config file, then flags on top."""
    return tyro.cli(kind, default=kind(_base(arguments)), prog=prog, description=description, args=arguments)


def _base(arguments: list[str]) -> Settings:
    config, name = _value(arguments, "--config"), _value(arguments, "--preset")
    if config and name:
        raise ValueError("give --config or --preset, not both")
    if config:
        return read_config(Path(config))
    known: dict[str, Sequence[str]] = {
        "--preset": get_args(PresetName), "--model": get_args(ModelName), "--method": get_args(MethodName)
    }  # fmt: skip
    given = {flag: _value(arguments, flag) for flag in known}
    if name is None or any(value is not None and value not in known[flag] for flag, value in given.items()):
        return Settings()  # the parser says what is wrong
    return preset(name, given["--model"] or Settings.model, given["--method"] or Settings.method)  # pyright: ignore[reportArgumentType]


def main(arguments: list[str]) -> None:
    """Parse and run."""
    parsed = parse(arguments, RunArguments, "zoedge run", DESCRIPTION)
    from zoedge.cli.training import finish, train
    from zoedge.experiments.folder import RunFolder
    from zoedge.experiments.run import default_path

    path = parsed.out or default_path(parsed.settings, Path("runs"))
    folder = RunFolder.create(path, parsed.settings)
    try:
        status = train(folder, parsed.quiet)
    except Exception:
        if folder.status.state == "new":  # settings that do not fit together leave nothing behind
            shutil.rmtree(path)
        raise
    sys.exit(finish(folder, status, parsed.quiet))


def _value(arguments: list[str], flag: str) -> str | None:
    """The value of a flag before everything is parsed, because the defaults depend on it."""
    value = None  # of several, the last counts, as for the parser
    for i, argument in enumerate(arguments):
        if argument == flag and i + 1 < len(arguments):
            value = arguments[i + 1]
        if argument.startswith(f"{flag}="):
            value = argument.split("=", 1)[1]
    return value
