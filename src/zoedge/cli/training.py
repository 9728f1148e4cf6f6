"""Training from the command line: progress, the closing lines, the exit code."""

import errno
import sys

from zoedge.cli.progress import RunProgress, say
from zoedge.experiments.folder import RunFolder, Status
from zoedge.experiments.memory import keep_freed_memory
from zoedge.experiments.run import resume
from zoedge.experiments.verdicts import verdict

EXIT_CODES = {"finished": 0, "diverged": 3}


def train(folder: RunFolder, quiet: bool) -> Status:
    """Go on with a run, showing its progress; Ctrl-C ends it cleanly."""
    if not quiet:
        say(f"{folder.path}")
    keep_freed_memory()
    try:
        with RunProgress(folder.settings.steps, quiet) as progress:
            return resume(folder, progress)
    except KeyboardInterrupt:
        print(f"interrupted at step {folder.status.step}; go on with: zoedge resume {folder.path}", file=sys.stderr)
        sys.exit(130)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise OSError(
            f"no space is left for {folder.path}; what is there is whole: make room, then zoedge resume {folder.path}"
        ) from None


def finish(folder: RunFolder, status: Status, quiet: bool) -> int:
    """Print how a run ended; its exit code."""
    if not quiet:
        share = status.measuring / status.seconds if status.seconds else 0.0
        say(f"{status.state} at step {status.step} after {status.seconds:.0f} s, {share:.0%} of them measuring")
        say(status.reason or f"verdict: {verdict(folder.readings())}")
    return EXIT_CODES[status.state]
