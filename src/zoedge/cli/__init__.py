"""The command line: parsing, tables, progress."""

import os
import sys

import tyro

import zoedge
from zoedge.cli.threshold import threshold

COMMANDS = {"threshold": threshold}

DESCRIPTION = """Zeroth-order optimization at the edge of stability.

Every command explains itself: zoedge COMMAND --help. The version: zoedge --version
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors of the user's go to stderr with exit code 2."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments == ["--version"]:
        print(f"zoedge {zoedge.__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(COMMANDS, prog="zoedge", description=DESCRIPTION, args=arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (head, less) has had enough; a second flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, OSError) as error:
        print(f"zoedge: error: {error}", file=sys.stderr)
        sys.exit(2)
