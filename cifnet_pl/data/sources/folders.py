"""Read class folders as a data source: what is a class, what is an image, and what is refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from cifnet_pl.data.sets import TEST, TRAIN, FileSet, Source, SourceOptions, in_two, split_by_seed
from cifnet_pl.data.splitting import (
    NEAR,
    SINGLE,
    check_share,
    grouping,
    held_out_groups,
    held_out_together,
    number_of_name,
)
from cifnet_pl.images.files import (
    EXTENSIONS,
    archived_files,
    expanded,
    image_files,
    is_folder,
    is_image,
    listing,
    place,
    require_folder,
    sub_folders,
    within,
)
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import has_controls, is_or_are, listed, number_of, printable

PART_NAMES = frozenset({*TRAIN, *TEST, "testing", "dev"})
"""Folder names that mean a part of a data set, not a class."""

WHAT = "a folder or Zip archive with one sub-folder of images per class"


def folder(options: SourceOptions) -> Source:
    """Read class folders: ``root/train/<class>/…`` with ``root/val/<class>/…``, or
    ``root/<class>/…`` split by seed.
    """
    with listing():
        root = existing(options, WHAT)
        parts = parts_of(root)
        if parts is not None:
            if options.group is not None:
                raise UsageError(
                    f"{place(root)} has {parts[0].name} and {parts[1].name} already, nothing is to"
                    " be held out: leave --data.group out"
                )
            return _train_and_val(*parts)
        names = [path.name for path in sub_folders(root)]
        require_classes(names, root)
        if {name.lower() for name in names} <= PART_NAMES and "train" in names:
            raise DataError(
                f"{place(root)} has {', '.join(names)}, expected train and val: call the held-out"
                f" folder val, or set --data.root to {place(root / 'train')} to have a part of it"
                " held out"
            )
        whole = file_set(root, names)
        if options.group == SINGLE:
            source = split_by_seed(names, whole, options)
        elif options.group in (None, NEAR):
            source = _split_near(names, whole, options)
        else:
            source = _split_by_group(names, whole, options, options.group)
        notes = (about_nesting(whole, names), about_strays(root))
        return replace(source, notes=(*source.notes, *(note for note in notes if note)))


def class_folders(root: Path) -> list[str]:
    """Return the names of the classes that :func:`folder` finds below a root; no image is
    opened.
    """
    with listing():
        root = existing(SourceOptions(root), WHAT)
        parts = parts_of(root)
        return [path.name for path in sub_folders(root if parts is None else parts[0])]


def _split_near(class_names: list[str], whole: FileSet, options: SourceOptions) -> Source:
    """Hold back a share of each class's images; if possible, images that look alike are all on the
    same side.
    """
    val = np.zeros(len(whole), dtype=bool)
    for rows in whole.rows_of.values():
        names = [whole.names[row] for row in rows]
        val[rows] = held_out_together(
            names, whole.look(rows), options.val_fraction, options.split_seed
        )
    return replace(in_two(class_names, whole, val), held_out=True)


def _split_by_group(
    class_names: list[str], whole: FileSet, options: SourceOptions, kind: str
) -> Source:
    """Hold back about a share of each class's images, in whole groups.

    A class of a single group has none to hold out: it is learned, and untested.

    Raises:
        UsageError: an unknown kind of group, or a share that is none.
    """
    check_share(options.val_fraction)
    group_of = grouping(kind)
    val = np.zeros(len(whole), dtype=bool)
    alone = 0
    whole_classes = list[str]()
    numbers = np.zeros(len(whole), dtype=np.int64)
    for label, rows in whole.rows_of.items():
        names = [whole.names[row] for row in rows]
        groups = group_of(names, whole.look(rows) if kind in ("day", "burst") else [])
        sizes = Counter(groups)
        numbers[rows] = [number_of_name(f"{class_names[label]}\0{group}") for group in groups]
        alone += sum(
            group == name and sizes[group] == 1 for group, name in zip(groups, names, strict=True)
        )
        val[rows] = held_out_groups(
            groups, class_names[label], options.val_fraction, options.split_seed
        )
        if len(rows) > 1 and len(sizes) == 1:
            whole_classes.append(printable(class_names[label]))
    notes = []
    if alone and (
        kind != "burst" or alone == len(whole)
    ):  # an image alone may be a burst of its own
        notes.append(_about_alone(kind, alone, len(whole)))
    if whole_classes:
        if len(whole_classes) == 1:
            classes = "class"
        else:
            classes = "each of the classes"
        notes.append(
            f"note: all images of {classes} {listed(whole_classes)} belong together by --data.group"
            f" {kind}, so that none is held out"
        )
    source = replace(in_two(class_names, whole, val), notes=tuple(notes), held_out=True)
    return replace(source, groups=numbers[~val], val_groups=numbers[val])


def _about_alone(kind: str, alone: int, total: int) -> str:
    """Say how many images belong to no group, so that a random split is not taken for one by
    groups.
    """
    without = {
        "day": "without a date",
        "folder": "in no sub-folder",
        "burst": "without another one of the same burst",
    }
    if alone == total:
        images = f"all {total} images"
    else:
        images = f"{number_of(alone, 'image')} of {total}"
    return f"note: {images} {without.get(kind, f'without a match of {kind}')}: held out one by one"


def about_nesting(files: FileSet, class_names: Sequence[str]) -> str | None:
    """Ask whether the sub-folders of the only class are the classes; None where there are several,
    or no sub-folders.

    Args:
        files: all images.
        class_names: names of the classes.
    """
    inside = {PurePosixPath(name).parts[1:-1][:1] for name in files.names}
    if len(class_names) > 1 or () in inside or len(inside) < 2:
        return None
    return (
        f"note: there is one class, '{printable(class_names[0])}', with images in {len(inside)}"
        " sub-folders: if those are the classes, name the folder"
        f" {place(files.root / class_names[0])} instead"
    )


def about_strays(*folders: Path) -> str | None:
    """Say how many images lie beside class folders, where they are of no class; None if there are
    none.

    Args:
        folders: each holds class folders.
    """
    strays = []
    for home in folders:
        if within(home) is not None:
            beside = archived_files(home)
        else:
            beside = sorted(home.iterdir())
        strays += [
            path
            for path in beside
            if path.parent == home and is_image(path) and not is_folder(path)
        ]
    if not strays:
        return None
    count = len(strays)
    return (
        f"note: {number_of(count, 'image')} beside the class folders {is_or_are(count)} passed"
        f" over, the first is {place(strays[0])}: move {'it' if count == 1 else 'each'} into the"
        " folder of its class"
    )


def parts_of(root: Path) -> tuple[Path, Path] | None:
    """Return the folders with images to learn and to test with, such as ``train`` and ``val``; None
    without such.
    """
    train = next((root / word for word in TRAIN if is_folder(root / word)), None)
    held = next((root / word for word in ("val", *TEST) if is_folder(root / word)), None)
    if train is None or held is None:
        return None
    return (train, held)


def _train_and_val(train: Path, val: Path) -> Source:
    names = [path.name for path in sub_folders(train)]
    require_classes(names, train)
    stray = [path.name for path in sub_folders(val) if path.name not in set(names)]
    if stray:
        raise DataError(
            f"class '{printable(stray[0])}' is in {place(val)} but not in {place(train)}: add its"
            " training images, or take it out"
        )
    note = about_strays(train, val)
    return Source(
        names,
        file_set(train, names),
        file_set(val, names, may_be_empty=True),
        notes=(note,) if note else (),
    )


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
        if not is_folder(home):
            continue
        files = image_files(home)
        names += [path.relative_to(root).as_posix() for path in files]
        labels += [label] * len(files)
    empty = sorted(set(range(len(class_names))) - set(labels))
    if empty and not may_be_empty:
        home = root / class_names[empty[0]]
        known = " ".join(sorted(EXTENSIONS))
        raise DataError(
            f"class folder {place(home)} holds no image ({known}): add images or remove the folder"
        )
    return FileSet(root, names, labels)


def require_classes(names: Sequence[str], root: Path) -> None:
    """Check the names of class folders.

    Raises:
        DataError: there are none, or a name could not be shown or stored.
    """
    if not names:
        raise DataError(
            f"{place(root)} has no sub-folders: expected one folder of images per class"
        )
    for name in names:
        if has_controls(name):
            raise DataError(
                f"class folder '{printable(name)}' in {place(root)} has control characters:"
                " rename it"
            )


def existing(options: SourceOptions, noun: str) -> Path:
    """Return the root folder.

    Args:
        options: of the source.
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
