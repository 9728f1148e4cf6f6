"""``python -m zoedge``."""

from zoedge.cli import main

main()
