"""Find the GNU C library's allocator, and give memory that was freed back to the system."""

from __future__ import annotations

import ctypes
import sys
import threading
from functools import cache

from threadpoolctl import ThreadpoolController

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4
"""Parameters of ``mallopt``, from malloc.h of the GNU C library."""


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


def return_large_blocks(size: int = 2**20, most: int = 65_536) -> bool:
    """Let the GNU C library's allocator take each large block from the system, and return it as soon as it is freed.

    Models and photos that come and go then leave no holes between what stays. Networks in ONNX Runtime are as fast as
    before, because it keeps memory of its own; with torch, see :mod:`cifnet_pl.cli.terminal`.

    Args:
        size: bytes from which a block is large.
        most: number of such blocks at a time.

    Returns:
        Whether the setting was changed; other C libraries are left as they are.
    """
    library = gnu_c_library()
    return library is not None and bool(library.mallopt(M_MMAP_THRESHOLD, size) and library.mallopt(M_MMAP_MAX, most))


class OneThread:
    """Limits BLAS to one thread while any thread of Python is within the block.

    The limit is the process's. Code that sets it restores the number that it found, which may be the limit of another
    thread. So all code that limits BLAS, such as scikit-learn's k-means, has to run within this block.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._limit = _controller().limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


@cache
def _controller() -> ThreadpoolController:
    """Return the libraries of this process, among them scipy's BLAS; looking for them takes 20 ms."""
    return ThreadpoolController()


one_thread = OneThread()
"""The only one of a process."""
