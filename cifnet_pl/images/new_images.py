"""Watch a folder for new images, by looking at it again and again: every disk can do that."""

import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from cifnet_pl.images.files import (
    PassedOver,
    file_identity,
    images_below,
    read_bytes,
    shown_path,
)
from cifnet_pl.utilities.errors import DataError


class NewImage(NamedTuple):
    """An image that was not found before.

    Attributes:
        path: of its file.
        content: of its file.
    """

    path: Path
    content: bytes


class NewImages:
    """The images of a folder that were not found before, or were changed since.

    Args:
        folder: with its sub-folders.
        report: gets a sentence for each file that is skipped.
    """

    def __init__(self, folder: Path, report: Callable[[str], object]):
        self.folder = folder
        self._report = report
        self._passed_over = 0
        # The files by their sizes and times.
        self._last_seen: dict[Path, tuple[int, ...]] = {}
        self._found: dict[Path, tuple[int, ...]] = {}
        self._skipped: dict[Path, tuple[int, ...]] = {}

    def batches(
        self,
        size: int,
        pause: float,
        settled: bool = True,
    ) -> Iterator[list[NewImage]]:
        """Yield the new images, at most ``size`` at a time, for ever.

        After each look at the folder the list is empty, and a pause follows.

        Args:
            size: number of images.
            pause: seconds between two looks.
            settled: whether a file must be as it was at the look before, so that it is not still
                being written.
        """
        while True:
            found = self._look(settled)
            while batch := list(islice(found, size)):
                yield batch
            yield []
            time.sleep(pause)

    def find_again(self, image: NewImage) -> None:
        """Let the next look find an image once more."""
        self._found.pop(image.path, None)

    def _look(self, settled: bool) -> Iterator[NewImage]:
        """Yield new images; a folder that cannot be read has none for the time being."""
        passed_over = PassedOver()
        for path in images_below(self.folder, passed_over, tolerant=True):
            try:
                version = file_identity(path)
            except OSError:  # it is gone, or a link that leads nowhere yet
                continue
            if self._found.get(path) == version:
                continue
            is_written = not settled or self._last_seen.get(path) == version
            self._last_seen[path] = version
            if not is_written:
                continue
            try:
                content = read_bytes(path)
            except (OSError, DataError) as error:
                # The next look tries again, as the disk of another machine may be away for a while.
                if self._skipped.get(path) != version:
                    self._report(f"skipped {shown_path(path)}: {error}")
                self._skipped[path] = version
                continue
            self._found[path] = version
            yield NewImage(path, content)
        if passed_over.count > self._passed_over:
            for note in passed_over.notes():
                self._report(note)
        self._passed_over = passed_over.count
