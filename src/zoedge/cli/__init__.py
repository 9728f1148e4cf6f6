"""The command line: parsing, tables, progress."""

import sys

import tyro

from zoedge.cli.threshold import threshold

COMMANDS = {"threshold": threshold}

DESCRIPTION = """Zeroth-order optimization at the edge of stability.

Every command explains itself: zoedge COMMAND --help
"""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors of the user's go to stderr with exit code 2."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS, prog="zoedge", description=DESCRIPTION, args=arguments, sort_subcommands=False
        )
    except (ValueError, OSError) as error:
        print(f"zoedge: error: {error}", file=sys.stderr)
        sys.exit(2)
