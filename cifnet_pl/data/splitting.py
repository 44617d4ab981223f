"""Split the images of a class into training and held-out images: one by one, or in whole groups.

A random fifth of images from one shelf tests nothing: each held-out image has a near-duplicate
among the training images. So near-duplicates stay on one side where the wanted share allows it, and
the groups that a user names are never divided.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from pathlib import PurePosixPath

import numpy as np

from cifnet_pl.images.duplicates import bursts, similar_groups
from cifnet_pl.images.image import Look
from cifnet_pl.utilities.errors import UsageError, check_that, explained, unknown_name

NEAR = "near"
"""Kind of group, and the default: near-duplicates are held out together."""

SINGLE = "single"
"""Kind of group: each image for itself."""

NAME_PATTERN = "name:"
"""Prefix of a kind of group, ``name:REGULAR EXPRESSION``: images with the same match are one."""

BURST_PAUSE = 30.0
"""Longest pause between two images of one burst, in seconds, where groups are bursts."""

LARGEST_EXCESS = 2.0
"""How many times the wanted number of images may be held out, so that groups stay whole."""

NameGroups = Callable[[Sequence[str], Sequence[Look]], list[str]]
"""Function of the names of one class's images, and the looks at them: name of each image's group.
"""


# ---------------------------------------------------------------------- one by one


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

    Raises:
        UsageError: the share is not between 0 and 1.

    Example:
        >>> int(held_out(["a", "b", "c", "d"], 0.25, seed=0).sum())
        1
    """
    check_fraction(fraction)
    wanted = round(len(names) * fraction)
    largest = len(names) - 1
    count = min(max(wanted, 1), largest)
    chosen = np.zeros(len(names), dtype=bool)
    first = hash_order(names, seed)[:count]
    chosen[first] = True
    return chosen


def check_fraction(fraction: float) -> None:
    """Raise UsageError unless a share to hold out is between 0 and 1."""
    check_that(0 < fraction < 1, "val_fraction", fraction, "a number between 0 and 1")


def hash_order(names: Sequence[str], seed: int) -> list[int]:
    """Return the positions of names in the order of their seeded hashes."""
    hashes = []
    for name in names:
        hashes.append(_hash(f"{seed}\0{name}"))
    positions = range(len(names))
    return sorted(positions, key=hashes.__getitem__)


def name_hash(name: str) -> int:
    """Return a hash of a name as a signed number of 64 bits."""
    return int.from_bytes(_hash(name), "big", signed=True)


def _hash(name: str) -> bytes:
    content = name.encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(content, digest_size=8)
    return digest.digest()


# ---------------------------------------------------------------------- in groups


def held_out_together(
    names: Sequence[str], looks: Sequence[Look], fraction: float, seed: int
) -> np.ndarray:
    """Choose the held-out images of one class; near-duplicates stay on the same side.

    Without near-duplicates this equals :func:`held_out`. Groups are visited in the order of the
    seeded hashes of their first images. A group is held out where it brings the number of held-out
    images nearer to the share. If no group can be held out so, or too many images would be,
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
    grouped = groups[groups >= 0]
    sizes = np.bincount(grouped, minlength=1)
    if sizes.max() <= 1:
        return single
    wanted = int(single.sum())
    chosen: list[int] = []
    count = 0
    in_order = groups[hash_order(names, seed)]
    for group in dict.fromkeys(in_order.tolist()):
        if group < 0:  # unreadable images test nothing
            continue
        larger = count + int(sizes[group])
        distance = abs(count - wanted)
        is_closer = abs(larger - wanted) < distance
        if is_closer and larger < len(names):
            chosen.append(group)
            count = larger
    if not 0 < count <= LARGEST_EXCESS * wanted:
        return single
    return np.isin(groups, chosen)


def held_out_groups(
    groups: Sequence[str], class_name: str, fraction: float, seed: int
) -> np.ndarray:
    """Choose whole groups of one class, in the order of their seeded hashes.

    A group is held out where it brings the number of held-out images nearer to the share.

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
    order = hash_order(keys, seed)
    wanted = fraction * len(groups)
    count = 0
    chosen: list[str] = []
    for i in order[:-1]:
        larger = count + int(counts[i])
        distance = abs(count - wanted)
        is_closer = abs(larger - wanted) < distance
        if not chosen or is_closer:
            chosen.append(names[i])
            count = larger
    return np.isin(groups, chosen)


# ---------------------------------------------------------------------- kinds of group


def groups_by(kind: str) -> NameGroups:
    """Return the function that names the groups of images of one class.

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

    def groups_by_pattern(names: Sequence[str], looks: Sequence[Look]) -> list[str]:
        return [_match(pattern, name) for name in names]

    return groups_by_pattern


def _match(pattern: re.Pattern[str], name: str) -> str:
    """Return a pattern's match in a file's name; a name without a match is its own group."""
    file_name = PurePosixPath(name).name
    found = pattern.search(file_name)
    if found is None:
        return name
    parts = found.groups("") or (found[0],)
    return "\0".join(parts)


def _folders(names: Sequence[str], looks: Sequence[Look]) -> list[str]:
    """Return the sub-folder of each image; an image directly in the class folder stands alone."""
    groups = []
    for name in names:
        parent = PurePosixPath(name).parent
        if len(parent.parts) > 1:
            group = str(parent)
        else:
            group = name
        groups.append(group)
    return groups


def _days(names: Sequence[str], looks: Sequence[Look]) -> list[str]:
    """Return the day on which each image was taken; an image without a date is its own group."""
    groups = []
    for name, look in zip(names, looks, strict=True):
        if look.taken is None:
            group = name
        else:
            group = look.taken.date().isoformat()
        groups.append(group)
    return groups


def _bursts(names: Sequence[str], looks: Sequence[Look]) -> list[str]:
    """Return the first image of each image's burst; a longer pause than ``BURST_PAUSE`` ends it."""
    groups = list(names)
    for earlier, later in bursts(looks, BURST_PAUSE):
        groups[later] = groups[earlier]
    return groups


GROUPS: dict[str, NameGroups] = {"folder": _folders, "day": _days, "burst": _bursts}
"""Kind of group → function that names the groups."""
