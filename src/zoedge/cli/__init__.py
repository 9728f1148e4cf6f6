"""The command line: parsing, tables, progress."""

import difflib
import importlib
import os
import sys
from collections.abc import Callable

import zoedge

# Name, and what it does in a line. A command is the function of its name in the module of its name, loaded when it is
# needed: only some need PyTorch.
COMMANDS = {
    "threshold": "critical step sizes from a spectrum, or from trace and largest eigenvalue",
    "run": "train a model, measuring how near it is to the edge",
    "resume": "go on with a run that was interrupted",
    "sweep": "a grid of runs, several at once",
    "list": "the runs in a folder",
    "show": "settings, status and verdict of a run",
    "reproduce": "a figure of the paper, with a verdict on what it claims",
    "report": "the band figure of runs, and a page",
    "export": "the metrics of a run as csv or parquet",
}


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors of the user's go to stderr with exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        if arguments == ["--version"]:
            print(f"zoedge {zoedge.__version__}")
        elif not arguments or arguments[0] in ("-h", "--help"):
            print(_help())
        else:
            _command(arguments[0])(arguments[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (head, less) has had enough
        silence()
    except (ValueError, OSError, ImportError) as error:
        print(f"zoedge: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("zoedge: interrupted", file=sys.stderr)
        sys.exit(130)


def silence() -> None:
    """From here on what is printed goes nowhere, also what is flushed at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = "\n".join(f"  {name:{width}}  {text}" for name, text in COMMANDS.items())
    return (
        "usage: zoedge COMMAND ...\n\nZeroth-order optimization at the edge of stability.\n\n"
        f"{lines}\n\nEvery command explains itself: zoedge COMMAND --help. The version: zoedge --version"
    )


def _command(name: str) -> Callable[[list[str]], None]:
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        raise ValueError(f"unknown command {name!r}; {hint}")
    return importlib.import_module(f"zoedge.cli.{name}_command").main
