"""Let the GNU C library keep the large blocks that a network frees."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD = -1
M_MMAP_MAX = -4
"""Parameters of ``mallopt``, from malloc.h of the GNU C library."""


def keep_freed_memory() -> bool:
    """Make the GNU C library reuse large blocks, not return them to the system.

    On a CPU every activation of a layer is a block of many megabytes. By default each one is fresh
    from the system, which clears all of its pages: torch runs a small network 1.3 to 3 times as
    fast with this setting. The process then keeps the most memory that it ever used.

    Returns:
        Whether the setting was changed; other C libraries are left as they are.
    """
    try:
        library = ctypes.CDLL("libc.so.6")
    except OSError:
        return False
    return bool(
        library.mallopt(M_MMAP_MAX, 0) and library.mallopt(M_TRIM_THRESHOLD, -1)
    )
