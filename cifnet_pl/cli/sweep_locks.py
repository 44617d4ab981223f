"""Lock the folders of a sweep's points, so that two processes never run the same point at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def waiting_lock(folder: Path, name: str) -> Iterator[None]:
    """Hold a lock of an experiment's folder; if another process holds it, say so and wait.

    Args:
        folder: of the experiment.
        name: of the lock's file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / name)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        print(f"waiting for {folder}, which another process is running", flush=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def running(folder: Path) -> AbstractContextManager[None]:
    """Return the lock that a point's process holds as long as it lives, even if its sweep was killed."""
    return waiting_lock(folder, ".running")
