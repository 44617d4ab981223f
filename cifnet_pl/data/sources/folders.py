"""Read class folders as a data source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from cifnet_pl.data.sets import (
    TEST,
    TRAIN,
    FileSet,
    Source,
    SourceOptions,
    source_by_mask,
    split_by_seed,
)
from cifnet_pl.data.splitting import (
    NEAR,
    SINGLE,
    check_share,
    grouping,
    held_out_groups,
    held_out_together,
    number_of_name,
)
from cifnet_pl.images.archives import archive_part, archived_files
from cifnet_pl.images.files import (
    expanded,
    image_files,
    is_folder,
    listing,
    require_folder,
    shown_path,
    sub_folders,
)
from cifnet_pl.images.names import EXTENSIONS, is_image
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import (
    has_controls,
    is_or_are,
    listed,
    number_of,
    printable,
)

PART_NAMES = frozenset({*TRAIN, *TEST, "testing", "dev"})
"""Folder names that mean a split of a data set, not a class."""

WHAT = "a folder or Zip archive with one sub-folder of images per class"


def folder(options: SourceOptions) -> Source:
    """Read class folders.

    These are ``root/train/<class>/…`` with ``root/val/<class>/…``, or ``root/<class>/…``, of which
    a share is held out.

    Raises:
        UsageError: no root, or ``--data.group`` where there is a test split.
        DataError: no class folders, an empty class, or folders that are splits without a test
            split.
    """
    with listing():
        root = required_root(options, WHAT)
        parts = split_folders(root)
        if parts is None:
            return _class_folders(root, options)
        train, val = parts
        if options.group is not None:
            raise UsageError(
                f"{shown_path(root)} has {train.name} and {val.name} already, nothing is to be held out:"
                " leave --data.group out"
            )
        return _train_and_val(train, val)


def _class_folders(root: Path, options: SourceOptions) -> Source:
    """Read ``root/<class>/…``, and hold out a share of each class."""
    names = [path.name for path in sub_folders(root)]
    require_classes(names, root)
    if {name.lower() for name in names} <= PART_NAMES and "train" in names:
        raise DataError(
            f"{shown_path(root)} has {', '.join(names)}, expected train and val: call the held-out"
            f" folder val, or set --data.root to {shown_path(root / 'train')} to have a part of it"
            " held out"
        )
    whole = file_set(root, names)
    if options.group == SINGLE:
        source = split_by_seed(names, whole, options)
    elif options.group in (None, NEAR):
        source = _split_near(names, whole, options)
    else:
        source = _split_by_group(names, whole, options, options.group)
    notes = [*source.notes]
    for note in (nesting_message(whole, names), strays_message(root)):
        if note:
            notes.append(note)
    return replace(source, notes=tuple(notes))


def class_folders(root: Path) -> list[str]:
    """Return the names of the classes that :func:`folder` finds, without opening an image."""
    with listing():
        root = required_root(SourceOptions(root), WHAT)
        parts = split_folders(root)
        home = root if parts is None else parts[0]
        return [path.name for path in sub_folders(home)]


def _split_near(
    class_names: list[str], whole: FileSet, options: SourceOptions
) -> Source:
    """Hold out a share of each class; near-duplicates stay on one side where that is possible."""
    val = np.zeros(len(whole), dtype=bool)
    for rows in whole.rows_of.values():
        names = [whole.names[row] for row in rows]
        looks = whole.look(rows)
        val[rows] = held_out_together(
            names, looks, options.val_fraction, options.split_seed
        )
    return replace(source_by_mask(class_names, whole, val), held_out=True)


def _split_by_group(
    class_names: list[str], whole: FileSet, options: SourceOptions, kind: str
) -> Source:
    """Hold out about a share of each class's images, in whole groups.

    A class of a single group has none to hold out: it is learned, and untested.

    Raises:
        UsageError: an unknown kind of group, or a share outside of 0 to 1.
    """
    check_share(options.val_fraction)
    name_groups = grouping(kind)
    val = np.zeros(len(whole), dtype=bool)
    numbers = np.zeros(len(whole), dtype=np.int64)
    single_images = 0
    whole_classes: list[str] = []
    for label, rows in whole.rows_of.items():
        class_name = class_names[label]
        names = [whole.names[row] for row in rows]
        looks = whole.look(rows) if kind in ("day", "burst") else []
        groups = name_groups(names, looks)
        sizes = Counter(groups)
        numbers[rows] = [number_of_name(f"{class_name}\0{group}") for group in groups]
        for group, name in zip(groups, names, strict=True):
            single_images += group == name and sizes[group] == 1
        val[rows] = held_out_groups(
            groups, class_name, options.val_fraction, options.split_seed
        )
        if len(rows) > 1 and len(sizes) == 1:
            whole_classes.append(printable(class_name))
    notes = []
    # A single image may be a burst of its own.
    if single_images and (kind != "burst" or single_images == len(whole)):
        notes.append(_single_images_message(kind, single_images, len(whole)))
    if whole_classes:
        noun = "class" if len(whole_classes) == 1 else "each of the classes"
        notes.append(
            f"note: all images of {noun} {listed(whole_classes)} are one group by --data.group"
            f" {kind}, so that none is held out"
        )
    return replace(
        source_by_mask(class_names, whole, val),
        groups=numbers[~val],
        val_groups=numbers[val],
        notes=tuple(notes),
        held_out=True,
    )


WITHOUT_GROUP = {
    "day": "without a date",
    "folder": "in no sub-folder",
    "burst": "without another one of the same burst",
}
"""Kind of group → why an image is in no group."""


def _single_images_message(kind: str, count: int, total: int) -> str:
    """Say how many images are in no group: if most are, the split is a random one."""
    images = (
        f"all {total} images"
        if count == total
        else f"{number_of(count, 'image')} of {total}"
    )
    reason = WITHOUT_GROUP.get(kind, f"without a match of {kind}")
    return f"note: {images} {reason}: held out one by one"


def nesting_message(files: FileSet, class_names: Sequence[str]) -> str | None:
    """Ask whether the sub-folders of the only class are the classes.

    Args:
        files: all images.
        class_names: names of the classes.

    Returns:
        None where there are several classes, or no sub-folders.
    """
    if len(class_names) > 1:
        return None
    sub_folder_names = set()
    for name in files.names:
        inner = PurePosixPath(name).parts[1:-1]
        if not inner:
            return None
        sub_folder_names.add(inner[0])
    if len(sub_folder_names) < 2:
        return None
    return (
        f"note: there is one class, '{printable(class_names[0])}', with images in"
        f" {len(sub_folder_names)} sub-folders: if those are the classes, name the folder"
        f" {shown_path(files.root / class_names[0])} instead"
    )


def strays_message(*folders: Path) -> str | None:
    """Say how many images lie beside class folders, and are of no class; None if none do.

    Args:
        folders: each holds class folders.
    """
    strays = []
    for home in folders:
        part = archive_part(home)
        beside = sorted(home.iterdir()) if part is None else archived_files(part)
        for path in beside:
            if path.parent == home and is_image(path) and not is_folder(path):
                strays.append(path)
    if not strays:
        return None
    count = len(strays)
    them = "it" if count == 1 else "each"
    return (
        f"note: {number_of(count, 'image')} beside the class folders {is_or_are(count)} passed"
        f" over, the first is {shown_path(strays[0])}: move {them} into the folder of its class"
    )


def split_folders(root: Path) -> tuple[Path, Path] | None:
    """Return the folders of the training and the test split, such as ``train`` and ``val``.

    Returns:
        None without such folders.
    """
    train = _first_folder(root, TRAIN)
    held = _first_folder(root, ("val", *TEST))
    if train is None or held is None:
        return None
    return (train, held)


def _first_folder(root: Path, names: Sequence[str]) -> Path | None:
    for name in names:
        if is_folder(root / name):
            return root / name
    return None


def _train_and_val(train: Path, val: Path) -> Source:
    names = [path.name for path in sub_folders(train)]
    require_classes(names, train)
    known = set(names)
    for path in sub_folders(val):
        if path.name not in known:
            raise DataError(
                f"class '{printable(path.name)}' is in {shown_path(val)} but not in {shown_path(train)}: add"
                " its training images, or take it out"
            )
    note = strays_message(train, val)
    train_set = file_set(train, names)
    val_set = file_set(val, names, may_be_empty=True)
    return Source(names, train_set, val_set, notes=(note,) if note else ())


def file_set(root: Path, class_names: list[str], may_be_empty: bool = False) -> FileSet:
    """Return all images of some class folders, named by their paths below ``root``.

    Args:
        root: the folder that holds the class folders.
        class_names: names of the class folders; their order gives the labels.
        may_be_empty: whether a class folder may be without images.

    Raises:
        DataError: a folder without an image.
    """
    names: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(class_names):
        home = root / class_name
        files = image_files(home) if is_folder(home) else []
        if not files and not may_be_empty:
            known = " ".join(sorted(EXTENSIONS))
            raise DataError(
                f"class folder {shown_path(home)} holds no image ({known}): add images or remove the"
                " folder"
            )
        names += [path.relative_to(root).as_posix() for path in files]
        labels += [label] * len(files)
    return FileSet(root, names, labels)


def require_classes(names: Sequence[str], root: Path) -> None:
    """Check the names of class folders.

    Raises:
        DataError: there are none, or a name could not be shown or stored.
    """
    if not names:
        raise DataError(
            f"{shown_path(root)} has no sub-folders: expected one folder of images per class"
        )
    for name in names:
        if has_controls(name):
            raise DataError(
                f"class folder '{printable(name)}' in {shown_path(root)} has control characters:"
                " rename it"
            )


def required_root(options: SourceOptions, noun: str) -> Path:
    """Return the root folder.

    Args:
        options: options of the source.
        noun: what the folder should be, for messages.

    Raises:
        UsageError: no folder was given.
        DataError: there is no such folder.
    """
    if options.root is None:
        raise UsageError(f"no data folder was given: set --data.root to {noun}")
    root = expanded(options.root)
    require_folder(root, "--data.root", noun)
    return root
