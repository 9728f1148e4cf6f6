"""Keep freed memory in the process.

The C library gives large blocks back to the system as soon as they are freed, and a forward pass takes them again, page
by page.
"""

import ctypes
import sys

# Numbers of the options of glibc's mallopt, and values that are never reached.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER_TRIM, _NEVER_MAP = (1 << 31) - 1, 1 << 30


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory; whether it could be told (it can on Linux with glibc)."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _NEVER_MAP) and mallopt(_TRIM_THRESHOLD, _NEVER_TRIM))
