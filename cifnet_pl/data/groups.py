"""Group photos that must be held back together: those of one sub-folder, day or burst, or with similar names.

A random fifth of photos from one shelf tests nothing: each held-back photo has a twin among the learned ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import PurePosixPath

import numpy as np

from cifnet_pl.data.exif import taken_at
from cifnet_pl.data.image_sets import FileSet, Source, SourceOptions, hash_order
from cifnet_pl.data.similar_photos import held_back_together
from cifnet_pl.utilities.errors import UsageError, unknown_name
from cifnet_pl.utilities.text import number_of, printable

PAUSE = 30.0
"""Seconds without a photo that end a burst."""

NEAR, SINGLE = "near", "single"
"""The default, photos that look alike (:mod:`cifnet_pl.data.similar_photos`); and none, each photo for itself."""

NAMED = "name:"
"""Begins a group by a pattern of names: ``name:REGULAR EXPRESSION``; photos with the same match belong together."""


def _folders(files: FileSet, rows: np.ndarray) -> list[str]:
    """Return the folder of each photo within its class folder; a photo directly in the class folder stands alone."""
    parents = [PurePosixPath(files.names[row]).parent for row in rows]
    return [str(p) if len(p.parts) > 1 else files.names[row] for p, row in zip(parents, rows, strict=True)]


def _days(files: FileSet, rows: np.ndarray) -> list[str]:
    """Return the day on which each photo was taken; a photo without a date is its own group."""
    taken = [taken_at(files.root / files.names[row]) for row in rows]
    return [files.names[row] if t is None else t.date().isoformat() for t, row in zip(taken, rows, strict=True)]


def _bursts(files: FileSet, rows: np.ndarray) -> list[str]:
    """Return the first photo of the burst of each photo; a pause longer than ``PAUSE`` ends a burst."""
    taken = [taken_at(files.root / files.names[row]) for row in rows]
    groups = [files.names[row] for row in rows]
    timed = sorted((t, i) for i, t in enumerate(taken) if t is not None)
    for (before, previous), (after, i) in pairwise(timed):
        if (after - before).total_seconds() <= PAUSE:
            groups[i] = groups[previous]
    return groups


GROUPS: dict[str, Callable[[FileSet, np.ndarray], list[str]]] = {"folder": _folders, "day": _days, "burst": _bursts}
"""Name of a kind of group → function of the photos and the rows of one class that names the group of each."""


def grouping(kind: str) -> Callable[[FileSet, np.ndarray], list[str]]:
    """Return the function that names the groups of ``kind``.

    Raises:
        UsageError: an unknown kind, or a pattern that is no regular expression.
    """
    if kind in GROUPS:
        return GROUPS[kind]
    if not kind.startswith(NAMED):
        raise unknown_name("group of photos", kind, [NEAR, SINGLE, *GROUPS, f"{NAMED}REGULAR EXPRESSION"])
    try:
        pattern = re.compile(kind.removeprefix(NAMED))
    except re.error as error:
        raise UsageError(f"--data.group {kind} is no regular expression: {error}") from error

    def by_name(files: FileSet, rows: np.ndarray) -> list[str]:
        groups = []
        for row in rows:
            match = pattern.search(PurePosixPath(files.names[row]).name)
            groups.append(files.names[row] if match is None else "\0".join(match.groups("") or (match[0],)))
        return groups

    return by_name


def split_by_group(class_names: list[str], whole: FileSet, options: SourceOptions) -> Source:
    """Hold back about a share of each class's photos, in whole groups.

    A class of a single group has none to hold back: it is learned, and untested.

    Args:
        class_names: names of the classes.
        whole: all photos.
        options: kind of group, share and seed.

    Raises:
        UsageError: an unknown kind of group, or a share that is none.
    """
    assert options.group is not None
    if not 0 < options.val_fraction < 1:
        raise UsageError(f"val_fraction is {options.val_fraction:g}, expected a number between 0 and 1")
    group_of = grouping(options.group)
    val, alone, whole_classes = np.zeros(len(whole), dtype=bool), 0, list[str]()
    for label, rows in whole.rows_of.items():
        groups = group_of(whole, rows)
        sizes = Counter(groups)
        alone += sum(sizes[group] == 1 and group == whole.names[row] for group, row in zip(groups, rows, strict=True))
        chosen = _chosen(groups, class_names[label], options)
        val[rows] = [group in chosen for group in groups]
        if len(rows) > 1 and len(sizes) == 1:
            whole_classes.append(printable(class_names[label]))
    notes = [_about_alone(options.group, alone, len(whole)), _about_whole_classes(options.group, whole_classes)]
    return Source(
        class_names,
        whole.subset(np.flatnonzero(~val)),
        whole.subset(np.flatnonzero(val)),
        notes=tuple(filter(None, notes)),
    )


def _about_alone(kind: str, alone: int, total: int) -> str | None:
    """Say how many photos belong to no group, so that a random split is not taken for one by groups; None if all do.

    Args:
        kind: of the groups.
        alone: photos without one.
        total: all photos.
    """
    if not alone or (kind == "burst" and alone < total):  # a photo alone may be a burst of its own
        return None
    without = {"day": "without a date", "folder": "in no sub-folder", "burst": "without another one of the same burst"}
    photos = f"all {total} photos" if alone == total else f"{number_of(alone, 'photo')} of {total}"
    return f"note: {photos} {without.get(kind, f'without a match of {kind}')}: held back one by one"


def _about_whole_classes(kind: str, names: Sequence[str]) -> str | None:
    """Say of which classes nothing is held back because their photos are one group; None if there are none.

    Args:
        kind: of the groups.
        names: of the classes.
    """
    if not names:
        return None
    shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    classes = "class" if len(names) == 1 else "each of the classes"
    return f"note: all photos of {classes} {shown} belong together by --data.group {kind}, so that none is held back"


def split_near(class_names: list[str], whole: FileSet, options: SourceOptions) -> Source:
    """Hold back a share of each class's photos; if possible, photos that look alike are all on the same side.

    Args:
        class_names: of all classes.
        whole: the photos of all classes.
        options: the share (``val_fraction``) and the seed of the split.
    """
    val = np.zeros(len(whole), dtype=bool)
    for rows in whole.rows_of.values():
        names = [whole.names[row] for row in rows]
        files = [whole.root / name for name in names]
        val[rows] = held_back_together(names, files, options.val_fraction, options.split_seed)
    return Source(class_names, whole.subset(np.flatnonzero(~val)), whole.subset(np.flatnonzero(val)))


def _chosen(groups: Sequence[str], class_name: str, options: SourceOptions) -> set[str]:
    """Choose groups in the order of a seeded hash, as long as they bring the number of photos nearer to the share."""
    names, counts = np.unique(groups, return_counts=True)
    if len(names) < 2:
        return set()
    order = hash_order([f"{class_name}\0{name}" for name in names], options.split_seed)
    wanted, taken, chosen = options.val_fraction * len(groups), 0, set[str]()
    for i in order[:-1]:
        if not chosen or abs(taken + counts[i] - wanted) < abs(taken - wanted):
            chosen.add(str(names[i]))
            taken += int(counts[i])
    return chosen
