"""Set up the process for networks on a CPU: how memory is freed, and how threads wait."""

from __future__ import annotations

import logging
import os
import sys

from cifnet_pl.utilities.memory import M_MMAP_MAX, M_TRIM_THRESHOLD, gnu_c_library
from cifnet_pl.utilities.processes import is_first_process

SPINS = 40_000
"""Turns of the loop in which a thread of GNU's OpenMP waits for more work before it gives up its core."""


def keep_freed_memory() -> bool:
    """Tell the GNU C library's allocator to reuse large blocks instead of giving each back to the system.

    On a CPU every activation of a layer is a block of many megabytes. By default each block is fresh from the system
    and goes back at once, and the system clears every page of it: measured, up to three quarters of the time of a small
    network. With this setting the process keeps the largest amount of memory that it ever used.

    Returns:
        Whether the setting was changed; other C libraries are left as they are.
    """
    library = gnu_c_library()
    return library is not None and bool(library.mallopt(M_MMAP_MAX, 0) and library.mallopt(M_TRIM_THRESHOLD, -1))


def wait_briefly() -> None:
    """Shorten the time for which a network's idle threads keep their cores busy.

    By default a thread of GNU's OpenMP, which torch's Linux builds use, spins for 300,000 steps before it sleeps
    (measured: 9 ms), on the core on which a worker is to decode the next images; with ``SPINS`` steps it is 1 ms.
    Settings
    that the user made for OpenMP are not changed. Call this before torch is imported, which reads the environment then.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", str(SPINS))


class News(logging.Handler):
    """Handler that prints notes for the user, one line each, from the first process of a run."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print to the current standard error stream."""
        if is_first_process():
            print(f"cifnet: {record.getMessage()}", file=sys.stderr, flush=True)


def show_news() -> None:
    """Print on the standard error stream which engine runs the network, and why."""
    logger = logging.getLogger("cifnet_pl.backbones")
    if not logger.handlers:
        logger.addHandler(News())
    logger.setLevel(logging.INFO)
    logger.propagate = False
