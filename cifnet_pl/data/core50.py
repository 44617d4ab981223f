"""Read CORe50: 50 objects in 11 video sessions, some of which are for testing; a session is a domain."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from cifnet_pl.data.folders import existing, listing
from cifnet_pl.data.image_sets import FileSet, Grouping, Source, SourceOptions, place
from cifnet_pl.utilities.errors import DataError, UsageError

WHAT = (
    "the unpacked core50_128x128.zip from vlomonaco.github.io/core50, that is the folder core50_128x128 "
    "with s1/o1/C_01_01_000.png and so on, or the folder that holds it"
)
FRAME = re.compile(r"C_(\d+)_(\d+)_(\d+)\.png")
Item = TypeVar("Item")


def core50(options: SourceOptions) -> Source:
    """Read the tree ``core50_128x128/sN/oM/C_NN_MM_FFF.png``; one class per object, ``o1`` … ``o50``.

    Options:
        stride: keep every ``stride``-th frame of all frames in the order of session, object and frame; with 10, as
            in the paper, 16,486 of the 164,866.
        test_sessions: sessions held out for testing, by default the standard 3, 7 and 10.

    Raises:
        DataError: no such tree, or a class without training frames.
        UsageError: a stride or sessions that make no sense.
    """
    stride = options.own.get("stride", 10)
    test = options.own.get("test_sessions", [3, 7, 10])
    if type(stride) is not int or stride < 1:
        raise UsageError(f"stride is {stride}, expected 1 or more: keep every stride-th frame")
    if not isinstance(test, list) or not test or not all(type(session) is int for session in test):
        raise UsageError(f"test_sessions is {test}, expected a list of session numbers such as [3, 7, 10]")
    with listing():
        root = existing(options, WHAT)
        root = root / "core50_128x128" if (root / "core50_128x128").is_dir() else root
        frames = _frames(root)
    sessions = {session for session, *_ in frames}
    if not set(test) <= sessions or not sessions - set(test):
        present = ", ".join(f"s{session}" for session in sorted(sessions)) or "no frame"
        raise DataError(
            f"{place(root)} holds {present}, expected the test sessions {', '.join(map(str, test))} and others for "
            f"training: set --data.root to {WHAT}"
        )
    objects = sorted({number for _, number, *_ in frames})
    frames = every(frames, stride)
    parts, groups, numbers = [], [], sorted(sessions)
    for held_out in (False, True):
        split = [frame for frame in frames if (frame[0] in test) is held_out]
        names = [name for *_, name in split]
        parts.append(FileSet(root, names, [objects.index(number) for _, number, *_ in split]))
        groups.append(np.array([numbers.index(session) for session, *_ in split], dtype=np.int64))
    empty = [number for i, number in enumerate(objects) if i not in parts[0].rows_of]
    if empty:
        raise DataError(f"object o{empty[0]} of {place(root)} has no training frame left: use a smaller stride")
    domains = Grouping([f"s{session}" for session in numbers], groups[0], groups[1])
    return Source([f"o{number}" for number in objects], parts[0], parts[1], domains)


def every(items: Sequence[Item], stride: int) -> list[Item]:
    """Return the ``stride``-th item and each ``stride``-th one after it: ⌊n / stride⌋ of n.

    Example:
        >>> every("abcdefg", 3)
        ['c', 'f']
    """
    return list(items[stride - 1 :: stride])


def _frames(root: Path) -> list[tuple[int, int, int, str]]:
    """Return (session, object, frame, path below ``root``) of all frames, in that order."""
    frames = []
    for session in root.glob("s[0-9]*"):
        for folder in session.glob("o[0-9]*"):
            matches = [FRAME.fullmatch(path.name) for path in folder.iterdir()]
            for match in (match for match in matches if match is not None):
                name = f"{session.name}/{folder.name}/{match[0]}"
                frames.append((int(match[1]), int(match[2]), int(match[3]), name))
    return sorted(frames)
