"""Find the image files below a folder; every source and command that reads folders walks them with this."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from cifnet_pl.data.photo_files import is_image

SORTED_AT_ONCE = 10_000
"""Entries of one folder that are sorted by name before the next ones are read, so that memory stays bounded."""


def walk_images(folder: Path, depth: int | None = None) -> Iterator[Path]:
    """Yield the images below ``folder``, folder by folder; memory does not grow with their number.

    Hidden entries and files whose name is not that of an image are skipped. Links are followed, but no folder is
    entered twice. A link below ``folder`` to a folder that contains the link itself is not followed,
    because it would bring in the images of other folders.

    Args:
        folder: where to begin.
        depth: levels of folders to read, 1 for ``folder`` alone, or None for all.

    Raises:
        OSError: a folder cannot be read.
    """
    return _walk(folder, set(), depth)


def _walk(folder: Path, visited: set[str], depth: int | None) -> Iterator[Path]:
    real = os.path.realpath(folder)
    if real in visited:
        return
    visited.add(real)
    with os.scandir(folder) as entries:
        while chunk := sorted(islice(entries, SORTED_AT_ONCE), key=lambda entry: entry.name):
            for entry in chunk:
                path = folder / entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_dir():
                    if (depth is None or depth > 1) and not links_upwards(path):
                        yield from _walk(path, visited, None if depth is None else depth - 1)
                elif is_image(path):
                    yield path


def links_upwards(folder: Path) -> bool:
    """Return whether ``folder`` is a link to a folder that contains the link."""
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())
