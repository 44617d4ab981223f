"""A small disk that can be filled, and a folder of entries that are no images."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.serving.services import image

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


class WatchedFolder:
    """A folder of images between entries that are none: pipes, devices, circles, broken links.

    Attributes:
        folder: the folder.
        names: of the images, each other's content.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.names: list[str] = []
        (folder / "a" / "b").mkdir(parents=True)
        for place in (folder, folder / "a"):
            os.mkfifo(place / "0 pipe.png")
            (place / "0 nowhere.png").symlink_to("gone.png")
            (place / "0 circle.png").symlink_to("0 circle.png")
            (place / "0 zeros.png").symlink_to("/dev/zero")
            (place / "0 empty.png").touch()
        (folder / "a" / "b" / "up").symlink_to(folder)

    def add(self) -> None:
        """Add one image."""
        number = len(self.names)
        name = f"a/b/{number}.png"
        (self.folder / name).write_bytes(image("watched", number))
        self.names.append(name)
