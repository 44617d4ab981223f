"""Find the GNU C library's allocator, and give memory that was freed back to the system."""

from __future__ import annotations

import ctypes
import sys


def gnu_c_library() -> ctypes.CDLL | None:
    """Return the GNU C library, whose allocator can be tuned; None with other libraries, which are left as they are."""
    if not sys.platform.startswith("linux"):
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None


def give_back_freed_memory() -> bool:
    """Give freed blocks of the GNU C library's allocator back to the system.

    Each thread frees into an arena of its own, where blocks of other sizes and other threads do not fit. A process
    that runs for days and now and then copies a model would keep most of what each copy took.

    Returns:
        Whether there was anything to give back; False with other C libraries.
    """
    library = gnu_c_library()
    return library is not None and bool(library.malloc_trim(0))
