"""``python -m zoedge``."""

from zoedge.cli import main

if __name__ == "__main__":
    main()
