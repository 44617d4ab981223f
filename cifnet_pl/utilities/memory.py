"""Give memory that was freed back to the system."""

from __future__ import annotations

import ctypes
import sys


def give_back_freed_memory() -> bool:
    """Give freed blocks of the GNU C library's allocator back to the system.

    Each thread frees into an arena of its own, where blocks of other sizes and other threads do not fit. A process
    that runs for days and now and then copies a model would keep most of what each copy took.

    Returns:
        Whether there was anything to give back; False with other C libraries.
    """
    if not sys.platform.startswith("linux"):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "malloc_trim"):
        return False
    return bool(library.malloc_trim(0))
