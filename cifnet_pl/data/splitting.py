"""Divide a table of samples into those to learn and those to test with.

A random fifth of images from one shelf tests nothing: each held-out image has a near-duplicate
among the training images. So near-duplicates stay on one side where the wanted share allows it, and
the groups that a user names are never divided.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

import numpy as np
import pandas as pd

from cifnet_pl.data.samples import SampleTable, Source, SourceOptions, labelled
from cifnet_pl.images.duplicates import bursts, similar_groups
from cifnet_pl.images.image import Look
from cifnet_pl.utilities.errors import DataError, UsageError, explained, unknown_name
from cifnet_pl.utilities.text import is_or_are, listed, number_of, printable

NEAR = "near"
"""Kind of group, and the default of class folders: near-duplicates are held out together."""

SINGLE = "single"
"""Kind of group: each sample for itself."""

NAME_PATTERN = "name:"
"""Prefix of a kind of group, ``name:REGULAR EXPRESSION``: images with the same match are one."""

GROUPS = (NEAR, SINGLE, "folder", "day", "burst")
"""Kinds of group, beside those by the names of images."""

BURST_PAUSE = 30.0
"""Longest pause between two images of one burst, in seconds, where groups are bursts."""

LARGEST_EXCESS = 2.0
"""How many times the wanted number of images may be held out, so that groups stay whole."""

# ---------------------------------------------------------------------- the two sets


def split_table(
    samples: SampleTable,
    options: SourceOptions,
    group: str = SINGLE,
) -> Source:
    """Divide samples by their column ``split``, or hold out a share of each class.

    All sources share one rule: the test split is tested with; where there is none, the validation
    split. A validation split beside a test split is not used at all.

    Args:
        samples: with labels as the source gives them.
        options: share, seed and kind of group.
        group: kind of group where the options have none.

    Raises:
        UsageError: a kind of group, but nothing to hold out.
        DataError: no sample; a given split without a test sample, or without a training sample of a
            class; or as :func:`~cifnet_pl.data.samples.labelled`.
    """
    where = samples.where
    if not len(samples):
        raise DataError(f"{where}: there is no sample in it")
    class_names, whole = labelled(samples)
    for column in ("domain", "task"):
        if column in whole.table:
            whole = whole.with_columns(**{column: _sorted(whole.table[column])})
    if "split" not in whole.table:
        return _held_out_source(class_names, whole, options, options.group or group)
    if options.group is not None:
        raise UsageError(
            f"{where} has a test split already, nothing is to be held out: leave --data.group out"
        )
    split = whole.table["split"].to_numpy()
    tested = "test" if "test" in split else "val"
    train = whole.subset(split == "train")
    test = whole.subset(split == tested)
    if not len(test):
        raise DataError(f"{where}: the test split has no sample")
    for label, name in enumerate(class_names):
        if label not in train.rows_of:
            raise DataError(
                f"{where}: class '{printable(name)}' has no training sample: add some"
            )
    notes = whole.notes
    unused = len(whole) - len(train) - len(test)
    if unused:
        notes += (
            f"note: {where} has a validation and a test split: the test split is tested with, the"
            f" {number_of(unused, 'sample')} of the validation split {is_or_are(unused)} not used",
        )
    return Source(class_names, train, test, notes)


def _sorted(column: pd.Series[str]) -> pd.Series[str]:
    """Return a column of names as a categorical, unless it is one: sorted, numbers first."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column
    names = column.astype(str)
    present = sorted(names.unique())
    # Sorting is stable: other names stay in their order.
    present.sort(key=lambda name: int(name) if name.isdecimal() else np.inf)
    return names.astype(pd.CategoricalDtype(present, ordered=True))


def _held_out_source(
    class_names: list[str],
    whole: SampleTable,
    options: SourceOptions,
    kind: str,
) -> Source:
    """Hold out a share of the samples of each class, by a kind of group."""
    fraction = options.val_fraction
    if not fraction:
        return Source(class_names, whole, whole.subset(np.arange(0)), whole.notes)
    seed = options.split_seed
    notes = whole.notes
    held = np.zeros(len(whole), dtype=bool)
    if kind in (SINGLE, NEAR):
        for rows in whole.rows_of.values():
            names = whole.names_of(rows)
            if kind == SINGLE:
                held[rows] = held_out(names, fraction, seed)
            else:
                held[rows] = held_out_together(names, whole.look(rows), fraction, seed)
    else:
        _check_kind(kind)
        numbers = np.zeros(len(whole), dtype=np.int64)
        alone = np.zeros(len(whole), dtype=bool)
        undivided = []
        for label, rows in whole.rows_of.items():
            class_name = class_names[label]
            groups = _groups(kind, whole, rows)
            held[rows] = held_out_groups(groups, class_name, fraction, seed)
            if not held[rows].any():
                undivided.append(printable(class_name))
            digests = [_hash(f"{class_name}\0{group}") for group in groups]
            numbers[rows] = np.frombuffer(b"".join(digests), ">i8")
            sizes = Counter(groups)
            alone[rows] = [
                group == name and sizes[group] == 1
                for group, name in zip(groups, whole.names_of(rows), strict=True)
            ]
        whole = whole.with_columns(group=numbers)
        notes += _group_notes(kind, alone, undivided)
    train = whole.subset(~held)
    test = whole.subset(held)
    return Source(class_names, train, test, notes, held_out=True)


def tuning_source(source: Source, fraction: float, seed: int) -> Source:
    """Replace the test samples by a share of the training samples of each class and domain.

    Args:
        source: its test samples are dropped.
        fraction: share of each class's training samples; none of a single one.
        seed: seed of the split.
    """
    # A seed of its own: the same one would choose the samples that a source holds out from those
    # that it left.
    held = held_out_rows(source.train, fraction, seed + 1)
    train = source.train.subset(~held)
    test = source.train.subset(held)
    return Source(source.class_names, train, test, source.notes)


# ---------------------------------------------------------------------- one by one


def held_out_rows(samples: SampleTable, fraction: float, seed: int) -> np.ndarray:
    """Choose a share of the samples of each class and domain by a seeded hash of their names.

    Args:
        samples: all samples.
        fraction: share to choose.
        seed: seed of the choice.

    Returns:
        (n,) bool.
    """
    table = samples.table
    # By numbers: names may hold bytes that are not UTF-8.
    keys = [
        pd.factorize(table[column].to_numpy())[0]
        for column in ("label", "domain")
        if column in table
    ]
    chosen = np.zeros(len(samples), dtype=bool)
    for rows in table.groupby(keys).indices.values():
        chosen[rows] = held_out(samples.names_of(rows), fraction, seed)
    return chosen


def held_out(names: Sequence[str], fraction: float, seed: int) -> np.ndarray:
    """Choose the held-out images of one class by a seeded hash of each name.

    Images that are added later hardly change the choice among earlier ones, and the order of the
    files does not matter.

    Args:
        names: names of the images.
        fraction: share to hold out.
        seed: seed of the choice.

    Returns:
        (n,) bool; at least one of two images is held out, never all.

    Example:
        >>> int(held_out(["a", "b", "c", "d"], 0.25, seed=0).sum())
        1
    """
    wanted = round(len(names) * fraction)
    largest = len(names) - 1
    count = min(max(wanted, 1), largest)
    chosen = np.zeros(len(names), dtype=bool)
    first = hash_order(names, seed)[:count]
    chosen[first] = True
    return chosen


def hash_order(names: Sequence[str], seed: int) -> list[int]:
    """Return the positions of names in the order of their seeded hashes."""
    hashes = [_hash(f"{seed}\0{name}") for name in names]
    return sorted(range(len(names)), key=hashes.__getitem__)


def _hash(name: str) -> bytes:
    content = name.encode("utf-8", "surrogateescape")
    return hashlib.blake2b(content, digest_size=8).digest()


# ---------------------------------------------------------------------- in groups


def held_out_together(
    names: Sequence[str],
    looks: Sequence[Look],
    fraction: float,
    seed: int,
) -> np.ndarray:
    """Choose the held-out images of one class; near-duplicates stay on the same side.

    Without near-duplicates this equals :func:`held_out`. Groups are visited in the order of the
    seeded hashes of their first images. If no group can be held out, or if more images than
    ``LARGEST_EXCESS`` times the wanted number would be, the images are divided one by one.

    Args:
        names: names of the images.
        looks: looks at the images.
        fraction: share to hold out.
        seed: seed of the choice.

    Returns:
        (n,) bool.
    """
    single = held_out(names, fraction, seed)
    groups = similar_groups(looks)
    # Unreadable images test nothing.
    sizes = np.bincount(groups[groups >= 0], minlength=1)
    if sizes.max() <= 1:
        return single
    wanted = int(single.sum())
    in_order = groups[hash_order(names, seed)]
    order = pd.unique(in_order[in_order >= 0])
    chosen = _nearest(order.tolist(), sizes, wanted)
    if not 0 < sizes[chosen].sum() <= LARGEST_EXCESS * wanted:
        return single
    return np.isin(groups, chosen)


def held_out_groups(
    groups: Sequence[str],
    class_name: str,
    fraction: float,
    seed: int,
) -> np.ndarray:
    """Choose whole groups of one class, in the order of their seeded hashes.

    Args:
        groups: name of each image's group.
        class_name: name of the class.
        fraction: share of the images to hold out.
        seed: seed of the choice.

    Returns:
        (n,) bool; of a single group nothing is held out.
    """
    names, counts = np.unique(groups, return_counts=True)
    keys = [f"{class_name}\0{name}" for name in names]
    order = hash_order(keys, seed)[:-1]
    wanted = fraction * len(groups)
    chosen = _nearest(order[1:], counts, wanted, order[:1])
    return np.isin(groups, names[chosen])


def _nearest(
    order: Sequence[int],
    sizes: np.ndarray,
    wanted: float,
    first: Sequence[int] = (),
) -> list[int]:
    """Choose each group that brings the number of chosen images nearer to the wanted one.

    All of them are never chosen.

    Args:
        order: groups in the order in which they are visited.
        sizes: number of images of each group.
        wanted: number of images.
        first: groups that are chosen in any case.
    """
    chosen = list(first)
    total = sizes.sum()
    count = sizes[chosen].sum()
    for group in order:
        larger = count + sizes[group]
        is_closer = abs(larger - wanted) < abs(count - wanted)
        if is_closer and larger < total:
            chosen.append(group)
            count = larger
    return chosen


# ---------------------------------------------------------------------- kinds of group


def _group_notes(
    kind: str,
    alone: np.ndarray,
    undivided: Sequence[str],
) -> tuple[str, ...]:
    """Say how many images are in no group, and of which classes nothing is held out.

    Args:
        kind: of group.
        alone: (n,) bool, which images are in no group.
        undivided: classes that are one group.
    """
    notes: tuple[str, ...] = ()
    if alone.any():
        images = number_of(len(alone), "image")
        notes += (
            f"note: {alone.sum()} of {images} in no group by --data.group {kind}: held out one by"
            " one",
        )
    if undivided:
        notes += (
            f"note: nothing of {listed(undivided)} is held out: it is one group by --data.group"
            f" {kind}",
        )
    return notes


def _check_kind(kind: str) -> None:
    """Raise UsageError for an unknown kind of group, or a pattern that is no regular expression."""
    if kind.startswith(NAME_PATTERN):
        with explained(UsageError, f"--data.group {kind} is no regular expression"):
            re.compile(kind.removeprefix(NAME_PATTERN))
    elif kind not in GROUPS:
        known = [*GROUPS, f"{NAME_PATTERN}REGULAR EXPRESSION"]
        raise unknown_name("group of images", kind, known)


def _groups(kind: str, samples: SampleTable, rows: np.ndarray) -> list[str]:
    """Return the name of the group of each image of a class; its own name where it stands alone.

    Args:
        kind: of group.
        samples: with the images.
        rows: those of the class.
    """
    groups = samples.names_of(rows)
    if kind == "burst":
        for earlier, later in bursts(samples.look(rows), BURST_PAUSE):
            groups[later] = groups[earlier]
    elif kind == "day":
        for i, look in enumerate(samples.look(rows)):
            if look.taken is not None:
                groups[i] = look.taken.date().isoformat()
    else:
        groups = [_group_by_name(kind, name) for name in groups]
    return groups


def _group_by_name(kind: str, name: str) -> str:
    """Return the sub-folder of an image, or what the pattern of a kind of group finds in its name.

    An image directly in the class folder, or without a match, stands alone.
    """
    path = PurePosixPath(name)
    if kind == "folder":
        if len(path.parent.parts) > 1:
            return str(path.parent)
        return name
    found = re.search(kind.removeprefix(NAME_PATTERN), path.name)
    if found is None:
        return name
    return "\0".join(found.groups("") or (found[0],))
