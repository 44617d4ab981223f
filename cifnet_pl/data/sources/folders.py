"""Read class folders as a data source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from cifnet_pl.data.sets import (
    FileSet,
    Source,
    SourceOptions,
    require_class_names,
    source_by_mask,
    split_by_seed,
)
from cifnet_pl.data.splitting import (
    NEAR,
    SINGLE,
    check_fraction,
    groups_by,
    held_out_groups,
    held_out_together,
    name_hash,
)
from cifnet_pl.images.archives import archive_part, archived_files
from cifnet_pl.images.files import (
    image_files,
    is_folder,
    listing,
    require_folder,
    shown_path,
    sub_folders,
)
from cifnet_pl.images.names import EXTENSIONS, PassedOver, is_image
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.files import expanded
from cifnet_pl.utilities.names import Split, class_name, split_of
from cifnet_pl.utilities.text import is_or_are, listed, number_of, printable

WHAT = "a folder or Zip archive with one sub-folder of images per class"


def folder(options: SourceOptions) -> Source:
    """Read class folders.

    These are ``root/train/<class>/…`` with ``root/test/<class>/…``, or ``root/<class>/…``, of which
    a share is held out.

    Raises:
        UsageError: no root, or ``--data.group`` where there is a test split.
        DataError: no class folders, an empty class, or folders that are splits without a training
            and a test split.
    """
    with listing():
        root = required_root(options, WHAT)
        splits = find_splits(root)
        if splits is None:
            return _held_out_source(root, options)
        if splits.test is None:
            source = _held_out_source(splits.train, options)
        elif options.group is not None:
            raise UsageError(
                f"{shown_path(root)} has {splits.train.name} and {splits.test.name} already,"
                " nothing is to be held out: leave --data.group out"
            )
        else:
            source = _train_and_test(splits.train, splits.test)
        notes = (*splits.notes, *source.notes)
        return replace(source, notes=notes)


def _held_out_source(root: Path, options: SourceOptions) -> Source:
    """Read ``root/<class>/…``, and hold out a share of each class."""
    folders = class_folders(root)
    names = list(folders)
    passed_over = PassedOver()
    whole = file_set(root, folders, passed_over)
    if options.group == SINGLE:
        source = split_by_seed(names, whole, options)
    elif options.group in (None, NEAR):
        source = _split_near(names, whole, options)
    else:
        source = _split_by_group(names, whole, options, options.group)
    notes = [*source.notes, *passed_over.notes()]
    messages = (nesting_message(whole, names), strays_message(root))
    for note in messages:
        if note:
            notes.append(note)
    return replace(source, notes=tuple(notes))


def class_folders(home: Path) -> dict[str, list[Path]]:
    """Find the class folders in a folder or Zip archive, sorted by the names of the classes.

    Folders whose names are one name in Unicode (NFC and NFD) are one class.

    Args:
        home: the folder that holds them.

    Returns:
        Name of each class → its folders.

    Raises:
        DataError: there are none, or a name cannot be that of a class.
    """
    folders: dict[str, list[Path]] = {}
    for path in sub_folders(home):
        of_class = folders.setdefault(class_name(path.name), [])
        of_class.append(path)
    if not folders:
        raise DataError(
            f"{shown_path(home)} has no sub-folders: expected one folder of images per class"
        )
    names = sorted(folders)
    require_class_names(names, shown_path(home))
    return {name: folders[name] for name in names}


# ---------------------------------------------------------------------- splits


class SplitFolders(NamedTuple):
    """The folders of the splits of a data set.

    Attributes:
        train: class folders to learn.
        test: class folders to test with; None where the test split has no labels.
        notes: sentences for the user about what is not used.
    """

    train: Path
    test: Path | None
    notes: tuple[str, ...] = ()


def find_splits(root: Path) -> SplitFolders | None:
    """Find the folders of the splits in a data set, such as ``train`` and ``test``, in any case.

    The rule is that of :func:`~cifnet_pl.data.sets.choose_splits`.

    Returns:
        None where the sub-folders are no splits, but classes.

    Raises:
        DataError: sub-folders that are splits without a training and a test split, or two folders
            of one split.
    """
    folders = sub_folders(root)
    splits: dict[Split, Path] = {}
    for path in folders:
        split = split_of(path.name)
        if split is None:
            continue
        if split in splits:
            raise DataError(
                f"{shown_path(root)} has {splits[split].name} and {path.name}: keep one of them"
            )
        splits[split] = path
    if not splits or not _are_splits(folders, splits):
        return None
    names = [printable(path.name) for path in folders]
    named = ", ".join(names)
    if "train" not in splits:
        raise DataError(
            f"{shown_path(root)} has {named}, but no train: expected train and test"
        )
    train = splits.pop("train")
    labelled = {split: path for split, path in splits.items() if sub_folders(path)}
    if not splits:
        raise DataError(
            f"{shown_path(root)} has {named}, expected train and test: call the held-out folder"
            f" test, or set the folder to {shown_path(train)} to have a part of it held out"
        )
    notes = []
    for split, path in splits.items():
        if split not in labelled:
            notes.append(
                f"note: {shown_path(path)} has no class folders, and is not used: sort its images"
                " into class folders to test with them"
            )
    if "test" in labelled and "val" in labelled:
        notes.append(
            f"note: {shown_path(root)} has {labelled['val'].name} and {labelled['test'].name}:"
            f" {labelled['test'].name} is tested with, {labelled['val'].name} is not used"
        )
    test = labelled.get("test", labelled.get("val"))
    return SplitFolders(train, test, tuple(notes))


def _are_splits(folders: Sequence[Path], splits: Mapping[Split, Path]) -> bool:
    """Return whether the sub-folders of a folder are splits, and not classes.

    They are if a training split lies beside a test or validation split, or alone, and they hold
    class folders or nothing; or if all of several hold the same sub-folders, whatever their names.
    """
    if "train" in splits and (len(splits) > 1 or len(folders) == 1):
        with_classes = [sub_folders(path) for path in splits.values()]
        has_classes = any(with_classes)
        return has_classes or not _images_beside(splits["train"])
    inner = []
    for path in folders:
        inner.append({sub_folder.name for sub_folder in sub_folders(path)})
    return len(folders) > 1 and _all_equal(inner)


def _all_equal(names: Iterable[set[str]]) -> bool:
    """Return whether all sets of names are the same, and not empty."""
    first, *others = names
    same = [other == first for other in others]
    return bool(first) and all(same)


def _train_and_test(train: Path, test: Path) -> Source:
    folders = class_folders(train)
    test_folders: dict[str, list[Path]] = {name: [] for name in folders}
    for name, paths in class_folders(test).items():
        if name not in folders:
            raise DataError(
                f"class '{printable(name)}' is in {shown_path(test)} but not in"
                f" {shown_path(train)}: add its training images, or take it out"
            )
        test_folders[name] = paths
    note = strays_message(train, test)
    passed_over = PassedOver()
    train_set = file_set(train, folders, passed_over)
    test_set = file_set(test, test_folders, passed_over, may_be_empty=True)
    notes = passed_over.notes()
    if note:
        notes.append(note)
    notes_of_source = tuple(notes)
    return Source(list(folders), train_set, test_set, notes=notes_of_source)


# ---------------------------------------------------------------------- held-out images


def _split_near(
    class_names: list[str], whole: FileSet, options: SourceOptions
) -> Source:
    """Hold out a share of each class; near-duplicates stay on one side where that is possible."""
    val = np.zeros(len(whole), dtype=bool)
    for rows in whole.rows_of.values():
        names = []
        for row in rows:
            names.append(whole.names[row])
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
    check_fraction(options.val_fraction)
    name_groups = groups_by(kind)
    val = np.zeros(len(whole), dtype=bool)
    numbers = np.zeros(len(whole), dtype=np.int64)
    single_images = 0
    whole_classes: list[str] = []
    for label, rows in whole.rows_of.items():
        class_name = class_names[label]
        names = []
        for row in rows:
            names.append(whole.names[row])
        if kind in ("day", "burst"):
            looks = whole.look(rows)
        else:
            looks = []
        groups = name_groups(names, looks)
        sizes = Counter(groups)
        numbers[rows] = [name_hash(f"{class_name}\0{group}") for group in groups]
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
        message = _single_images_message(kind, single_images, len(whole))
        notes.append(message)
    if whole_classes:
        noun = "each of the classes"
        if len(whole_classes) == 1:
            noun = "class"
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
    if count == total:
        images = f"all {total} images"
    else:
        images = f"{number_of(count, 'image')} of {total}"
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
    images_beside = [_images_beside(home) for home in folders]
    strays = list(chain.from_iterable(images_beside))
    if not strays:
        return None
    count = len(strays)
    them = "each"
    if count == 1:
        them = "it"
    first_stray = shown_path(strays[0])
    return (
        f"note: {number_of(count, 'image')} beside the class folders {is_or_are(count)} passed"
        f" over, the first is {first_stray}: move {them} into the folder of its class"
    )


def _images_beside(home: Path) -> list[Path]:
    """Return the images right in a folder or archive, beside its sub-folders."""
    part = archive_part(home)
    if part is None:
        entries = sorted(home.iterdir())
    else:
        entries = archived_files(part)
    found = []
    for path in entries:
        if path.parent == home and is_image(path) and not is_folder(path):
            found.append(path)
    return found


def file_set(
    root: Path,
    folders: Mapping[str, Sequence[Path]],
    passed_over: PassedOver,
    may_be_empty: bool = False,
) -> FileSet:
    """Return all images of some class folders, named by their paths below ``root``.

    Args:
        root: the folder that holds the class folders.
        folders: folders of each class; their order gives the labels.
        passed_over: counts the files that are skipped although they may be images.
        may_be_empty: whether a class may be without images.

    Raises:
        DataError: a class without an image.
    """
    names: list[str] = []
    labels: list[int] = []
    for label, homes in enumerate(folders.values()):
        found = [image_files(home, passed_over) for home in homes]
        files = list(chain.from_iterable(found))
        if not files and not may_be_empty:
            known = " ".join(sorted(EXTENSIONS))
            raise DataError(
                f"class folder {shown_path(homes[0])} holds no image ({known}): add images or"
                " remove the folder"
            )
        relative = [path.relative_to(root).as_posix() for path in files]
        names += relative
        labels += [label] * len(files)
    return FileSet(root, names, labels)


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
