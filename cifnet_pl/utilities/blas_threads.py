"""Have one thread of numpy's and scipy's BLAS compute, where several would wait for each other."""

from __future__ import annotations

import threading
from functools import cache

from threadpoolctl import ThreadpoolController


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
