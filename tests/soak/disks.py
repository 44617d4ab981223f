"""A small disk that can be filled."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CHUNK = bytes(2**16)


class SmallDisk:
    """A file system of its own; where this account may not mount one, a folder that never fills.

    Attributes:
        folder: its top folder.
        is_small: whether it can be filled.
    """

    def __init__(self, folder: Path, is_small: bool):
        self.folder = folder
        self.is_small = is_small
        self._filler = folder / "filler"

    def fill(self) -> None:
        """Write until the disk is full, to the last byte."""
        if not self.is_small:
            return
        with self._filler.open("ab", buffering=0) as file:
            size = len(CHUNK)
            while size:
                try:
                    file.write(CHUNK[:size])
                except OSError:
                    size //= 2

    def free(self) -> None:
        """Give the room back."""
        self._filler.unlink(missing_ok=True)


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk]:
    """Mount a file system of this size at a folder, as root may."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={megabytes}m", "none", str(folder)]
    try:
        is_small = subprocess.run(["mount", *options], check=False).returncode == 0
    except FileNotFoundError:
        is_small = False
    try:
        yield SmallDisk(folder, is_small)
    finally:
        if is_small:
            subprocess.run(["umount", "--lazy", str(folder)], check=True)
