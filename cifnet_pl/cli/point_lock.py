"""Lock the folders of a sweep's points, so that two processes never run the same point at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from filelock import FileLock, Timeout


@contextmanager
def waiting_lock(folder: Path, name: str) -> Iterator[None]:
    """Hold the lock ``name`` of an experiment's folder, once no other process does; say that it is waited for."""
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
    """Hold the lock that a point's process has as long as it lives, whether or not its sweep still does."""
    return waiting_lock(folder, ".running")
