"""Divide a table of samples into those to learn and those to test with.

A random fifth of images from one shelf tests nothing: each held-out image has a near-duplicate
among the training images. So near-duplicates stay on one side where the wanted share allows it, and
the groups that a user names are never divided.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import PurePosixPath

import numpy as np
import pandas as pd

from cifnet_pl.data.samples import SampleTable, Source, SourceOptions, labelled
from cifnet_pl.images.duplicates import bursts, similar_groups
from cifnet_pl.images.image import UNREADABLE_HASH, Look
from cifnet_pl.utilities.errors import (
    DataError,
    UsageError,
    check_that,
    explained,
    unknown_name,
)
from cifnet_pl.utilities.text import is_or_are, listed, number_of, printable

NEAR = "near"
"""Kind of group, and the default of class folders: near-duplicates are held out together."""

SINGLE = "single"
"""Kind of group: each sample for itself."""

NAME_PATTERN = "name:"
"""Prefix of a kind of group, ``name:REGULAR EXPRESSION``: images with the same match are one."""

BURST_PAUSE = 30.0
"""Longest pause between two images of one burst, in seconds, where groups are bursts."""

LARGEST_EXCESS = 2.0
"""How many times the wanted number of images may be held out, so that groups stay whole."""

GroupOf = Callable[[str, datetime | None], str]
"""Function of an image's name and time: name of its group, or its own where it stands alone."""


# ---------------------------------------------------------------------- the two sets


def divided(
    samples: SampleTable, options: SourceOptions, group: str = SINGLE
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
    train = whole.subset(np.flatnonzero(split == "train"))
    val = whole.subset(np.flatnonzero(split == tested))
    if not len(val):
        raise DataError(f"{where}: the test split has no sample")
    for label, name in enumerate(class_names):
        if label not in train.rows_of:
            raise DataError(
                f"{where}: class '{printable(name)}' has no training sample: add some"
            )
    notes = whole.notes
    unused = len(whole) - len(train) - len(val)
    if unused:
        notes += (
            f"note: {where} has a validation and a test split: the test split is tested with, the"
            f" {number_of(unused, 'sample')} of the validation split {is_or_are(unused)} not used",
        )
    return Source(class_names, train, val, notes)


def _sorted(column: pd.Series[str]) -> pd.Series[str]:
    """Return a column of names as a categorical, sorted unless it is one, numbers as numbers."""
    if isinstance(column.dtype, pd.CategoricalDtype):
        return column
    names = column.astype(str)
    kind = pd.CategoricalDtype(sorted(names.unique(), key=_number_order), ordered=True)
    return names.astype(kind)


def _number_order(name: str) -> tuple[bool, int, str]:
    """Return a key that sorts numbers by their value, and before other names."""
    if name.isdecimal():
        return (False, int(name), name)
    return (True, 0, name)


def _held_out_source(
    class_names: list[str], whole: SampleTable, options: SourceOptions, kind: str
) -> Source:
    """Hold out a share of the samples of each class, by a kind of group."""
    fraction = options.val_fraction
    seed = options.split_seed
    notes = whole.notes
    if kind == SINGLE:
        held = held_out_rows(whole, fraction, seed)
    elif kind == NEAR:
        held = np.zeros(len(whole), dtype=bool)
        for rows in whole.rows_of.values():
            looks = whole.look(rows)
            held[rows] = held_out_together(whole.names_of(rows), looks, fraction, seed)
    else:
        grouped = _grouped(class_names, whole, kind)
        whole = whole.with_columns(group=grouped["number"])
        held = np.zeros(len(whole), dtype=bool)
        for label, rows in whole.rows_of.items():
            groups = grouped["group"].to_numpy()[rows]
            held[rows] = held_out_groups(groups, class_names[label], fraction, seed)
        notes += _group_notes(class_names, grouped, kind)
    train = whole.subset(np.flatnonzero(~held))
    val = whole.subset(np.flatnonzero(held))
    return Source(class_names, train, val, notes, held_out=True)


def tuning_source(source: Source, fraction: float, seed: int) -> Source:
    """Replace the test samples by a share of the training samples of each class and domain.

    Args:
        source: its test samples are dropped.
        fraction: share of each class's training samples; none of a single one.
        seed: seed of the split.

    Raises:
        UsageError: the fraction is not between 0 and 1.
    """
    expected = "a share between 0 and 1 of the training images"
    check_that(0 < fraction < 1, "--data.tune", fraction, expected)
    # A seed of its own: the same one would choose the samples that a source holds out from those
    # that it left.
    by = ["label"]
    if "domain" in source.train.table:
        by.append("domain")
    held = held_out_rows(source.train, fraction, seed + 1, by)
    train = source.train.subset(np.flatnonzero(~held))
    val = source.train.subset(np.flatnonzero(held))
    return Source(source.class_names, train, val)


# ---------------------------------------------------------------------- one by one


def held_out_rows(
    samples: SampleTable, fraction: float, seed: int, by: Sequence[str] = ("label",)
) -> np.ndarray:
    """Choose a share of the samples of each class by a seeded hash of their names.

    Args:
        samples: all samples.
        fraction: share to choose.
        seed: seed of the choice.
        by: columns; of samples that are equal in all of them the same share is chosen.

    Returns:
        (n,) bool.
    """
    chosen = np.zeros(len(samples), dtype=bool)
    for rows in samples.table.groupby(list(by), observed=True).indices.values():
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
    names: Sequence[str], looks: Sequence[Look], fraction: float, seed: int
) -> np.ndarray:
    """Choose the held-out images of one class; near-duplicates stay on the same side.

    Without near-duplicates this equals :func:`held_out`. Groups are visited in the order of the
    seeded hashes of their first images. If no group can be held out, or too many images would be,
    the images are divided one by one.

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
    readable = groups[groups >= 0]  # unreadable images test nothing
    sizes = np.bincount(readable, minlength=1)
    if sizes.max() <= 1:
        return single
    wanted = int(single.sum())
    in_order = groups[hash_order(names, seed)]
    order = [group for group in dict.fromkeys(in_order.tolist()) if group >= 0]
    chosen, count = _nearest(order, sizes, wanted, len(names) - 1)
    if not 0 < count <= LARGEST_EXCESS * wanted:
        return single
    return np.isin(groups, chosen)


def held_out_groups(
    groups: Sequence[str], class_name: str, fraction: float, seed: int
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
    chosen, _ = _nearest(order[1:], counts, wanted, len(groups), order[:1])
    return np.isin(groups, names[chosen])


def _nearest(
    order: Sequence[int],
    sizes: np.ndarray,
    wanted: float,
    most: int,
    first: Sequence[int] = (),
) -> tuple[list[int], int]:
    """Choose each group that brings the number of chosen images nearer to the wanted one.

    Args:
        order: groups in the order in which they are visited.
        sizes: number of images of each group.
        wanted: number of images.
        most: largest number of images.
        first: groups that are chosen in any case.

    Returns:
        The chosen groups, and the number of their images.
    """
    chosen = list(first)
    count = int(sizes[chosen].sum())
    for group in order:
        larger = count + int(sizes[group])
        is_closer = abs(larger - wanted) < abs(count - wanted)
        if is_closer and larger <= most:
            chosen.append(group)
            count = larger
    return chosen, count


# ---------------------------------------------------------------------- kinds of group


def _grouped(class_names: list[str], whole: SampleTable, kind: str) -> pd.DataFrame:
    """Return a table with the group of each sample: its class, name and number."""
    group_of = groups_by(kind)
    table = pd.DataFrame({"label": whole.labels, "name": whole.names}, dtype=object)
    table["group"] = table["name"]
    for rows in whole.rows_of.values():
        names = whole.names_of(rows)
        looks = [Look(UNREADABLE_HASH)] * len(rows)
        if kind in ("day", "burst"):
            looks = whole.look(rows)
        groups = []
        for name, look in zip(names, looks, strict=True):
            groups.append(group_of(name, look.taken))
        if kind == "burst":
            for earlier, later in bursts(looks, BURST_PAUSE):
                groups[later] = groups[earlier]
        table.loc[rows, "group"] = np.array(groups, dtype=object)
    numbers = []
    for label, group in zip(table["label"], table["group"], strict=True):
        digest = _hash(f"{class_names[label]}\0{group}")
        numbers.append(int.from_bytes(digest, "big", signed=True))
    table["number"] = numbers
    return table


def _group_notes(
    class_names: list[str], grouped: pd.DataFrame, kind: str
) -> tuple[str, ...]:
    """Say how many images are in no group, and which classes are one group."""
    notes = []
    by_number = grouped.groupby("number")["label"]
    is_single = by_number.transform("size") == 1
    alone = int((is_single & (grouped["group"] == grouped["name"])).sum())
    if alone:
        images = number_of(len(grouped), "image")
        notes.append(
            f"note: {alone} of {images} in no group by --data.group {kind}: held out one by one"
        )
    groups_of_class = grouped.groupby("label")["number"].agg(["nunique", "size"])
    whole = groups_of_class.query("nunique == 1 and size > 1").index
    if len(whole):
        names = [printable(class_names[label]) for label in whole]
        notes.append(
            f"note: all images of {listed(names)} are one group by --data.group {kind}, so that"
            " none is held out"
        )
    return tuple(notes)


def groups_by(kind: str) -> GroupOf:
    """Return the function that names the group of an image.

    Args:
        kind: ``folder``, ``day``, ``burst`` or ``name:REGULAR EXPRESSION``.

    Raises:
        UsageError: an unknown kind, or a pattern that is no regular expression.
    """
    if kind in GROUPS:
        return GROUPS[kind]
    if not kind.startswith(NAME_PATTERN):
        by_name = f"{NAME_PATTERN}REGULAR EXPRESSION"
        known = [NEAR, SINGLE, *GROUPS, by_name]
        raise unknown_name("group of images", kind, known)
    with explained(UsageError, f"--data.group {kind} is no regular expression"):
        pattern = re.compile(kind.removeprefix(NAME_PATTERN))

    def match(name: str, taken: datetime | None) -> str:
        found = pattern.search(PurePosixPath(name).name)
        if found is None:
            return name
        return "\0".join(found.groups("") or (found[0],))

    return match


def _folder(name: str, taken: datetime | None) -> str:
    """Return the sub-folder of an image; one directly in the class folder stands alone."""
    parent = PurePosixPath(name).parent
    if len(parent.parts) > 1:
        return str(parent)
    return name


def _day(name: str, taken: datetime | None) -> str:
    """Return the day on which an image was taken; one without a date stands alone."""
    if taken is None:
        return name
    return taken.date().isoformat()


def _alone(name: str, taken: datetime | None) -> str:
    """Return the image itself: bursts are joined by :func:`bursts`."""
    return name


GROUPS: dict[str, GroupOf] = {"folder": _folder, "day": _day, "burst": _alone}
"""Kind of group → function that names the group of an image."""
