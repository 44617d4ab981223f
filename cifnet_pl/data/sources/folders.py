"""Read class folders as a data source."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from cifnet_pl.data.samples import SampleTable, SourceOptions, joined
from cifnet_pl.images.files import (
    PassedOver,
    archive_part,
    archived_files,
    images_below,
    is_image,
    matching_paths,
    require_folder,
    shown_path,
    sub_folders,
)
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.names import Split, class_name, class_names, split_in, split_of
from cifnet_pl.utilities.text import listed, printable

WHAT = "a folder or Zip archive with one sub-folder of images per class"


def folder(options: SourceOptions) -> SampleTable:
    """Read class folders.

    These are ``root/train/<class>/…`` with ``root/test/<class>/…``, or ``root/<class>/…``.

    Raises:
        UsageError: no root.
        DataError: no class folders, none with an image, or folders that are splits without a
            training and a test split.
    """
    root = required_root(options, WHAT)
    splits = find_splits(root)
    if splits is None:
        return class_samples(root)
    if len(splits.parts) == 1:
        return class_samples(splits.parts["train"], notes=splits.notes)
    return class_samples(root, splits.parts, splits.notes)


def class_samples(
    root: Path,
    parts: Mapping[Any, Path] | None = None,
    notes: Sequence[str] = (),
    only: Sequence[str] | None = None,
) -> SampleTable:
    """Return the images of all class folders.

    An empty folder is no class: a note says that it is left out.

    Args:
        root: folder or Zip archive that holds the class folders, or the splits with them.
        parts: split, or domain, → the folder within ``root`` that holds its class folders; None
            without any.
        notes: sentences about what was read before; others follow.
        only: names of the classes that are read; None for all.

    Raises:
        DataError: no class folder with an image.
    """
    passed_over = PassedOver()
    rows = []
    empty = []
    homes = parts or {"train": root}
    for split, home in homes.items():
        prefix = home.relative_to(root)
        for label, folders in class_folders(home).items():
            if only is not None and label not in only:
                continue
            found = [images_below(path, passed_over) for path in folders]
            files = list(chain.from_iterable(found))
            if not files:
                empty.append(shown_path(folders[0]))
            for file in files:
                name = file.relative_to(home).as_posix()
                rows.append([name, label, (prefix / name).as_posix(), split])
    where = shown_path(root)
    if not rows:
        raise DataError(f"no class folder in {where} holds an image: add images")
    columns = ["name", "label", "path", "split"]
    table = pd.DataFrame(rows, columns=columns, dtype=object)
    messages = [*notes, *passed_over.notes()]
    for home in homes.values():
        messages += _strays_notes(home)
    if empty:
        messages.append(f"note: class folders without images left out: {listed(empty)}")
    if not parts:
        table = table.drop(columns=["path", "split"])
    return SampleTable(
        table,
        root=root,
        where=where,
        notes=tuple(messages),
    )


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
    names = class_names(sorted(folders), shown_path(home))
    return {name: folders[name] for name in names}


# ---------------------------------------------------------------------- splits


class SplitFiles(NamedTuple):
    """Files of a data set whose names tell their splits.

    Attributes:
        files: in the order of their names.
        splits: that of each file; nothing where all are of one split, or tell none.
        notes: a sentence for the user, or nothing.
    """

    files: list[Path]
    splits: list[Split]
    notes: tuple[str, ...] = ()

    def read(self, read: Callable[[Path], SampleTable]) -> SampleTable:
        """Return the samples of all files, which ``read`` gives of one."""
        samples = joined([read(file) for file in self.files], self.splits)
        return replace(samples, notes=self.notes)


def required_files(
    root: Path | None,
    pattern: str,
    endings: Sequence[str],
    what: str,
) -> SplitFiles:
    """Find the files of a data set as :func:`find_files`, of which there must be some.

    Args:
        root, pattern, endings: as there.
        what: what the root should be, for messages.

    Raises:
        UsageError: no root was given.
        DataError: there is no such file.
    """
    if root is None:
        raise UsageError(f"no file was given: set --data.root to {what}")
    found = find_files(root, pattern, endings)
    if not found.files:
        raise DataError(f"no file {printable(str(root))}: expected {what}")
    return found


def find_files(root: Path, pattern: str, endings: Sequence[str]) -> SplitFiles:
    """Find the files of a data set, and the split of each by its name or those of its folders.

    The folder that holds all files does not count. Of files with and without a split in their
    names, those without are to be learned.

    Args:
        root: a file, a folder, or a pattern of files.
        pattern: of the files in a folder.
        endings: of their names, in small letters.
    """
    if root.is_dir():
        found = matching_paths(root / pattern)
        files = [file for file in found if file.suffix.lower() in endings]
    else:
        files = matching_paths(root)
    if not files:
        return SplitFiles([], [])
    common = os.path.commonpath([file.parent for file in files])
    splits = [split_in(os.path.relpath(file, common)) or "train" for file in files]
    if len(set(splits)) == 1:
        return SplitFiles(files, [])
    counts = [f"{count} {split}" for split, count in Counter(splits).items()]
    note = f"note: splits by the names of files: {', '.join(counts)}"
    return SplitFiles(files, splits, (note,))


class SplitFolders(NamedTuple):
    """The folders of the splits of a data set.

    Attributes:
        parts: split → the folder that holds its class folders.
        notes: sentences for the user about what is not used.
    """

    parts: dict[Split, Path]
    notes: list[str]


def find_splits(root: Path) -> SplitFolders | None:
    """Find the folders of the splits in a data set, such as ``train`` and ``test``, in any case.

    They may be Zip archives, and have more in their names where all have a split in it, such as
    ``scans-train`` and ``scans-val``. Which of them is tested with is the rule of
    :func:`~cifnet_pl.data.splitting.split_table`.

    Returns:
        None where the sub-folders are no splits, but classes.

    Raises:
        DataError: sub-folders that are splits without a training and a test split, or two folders
            of one split.
    """
    folders = sub_folders(root) or sorted(root.glob("[!.]*.zip"))
    read = split_of
    found = {split_in(path.name) for path in folders}
    if None not in found and len(found) > 1:
        read = split_in
    named = [path for path in folders if read(path.name)]
    splits = {split: path for path in named if (split := read(path.name))}
    if not splits or not _are_splits(folders, splits):
        return None
    where = shown_path(root)
    names = ", ".join(printable(path.name) for path in folders)
    if len(named) > len(splits):
        raise DataError(f"{where} has {names}: keep one of each split")
    if len(splits) == 1 or "train" not in splits:
        raise DataError(
            f"{where} has {names}, expected train and test: call the held-out folder test, or set"
            f" the folder to {shown_path(named[0])} to have a part of it held out"
        )
    notes = []
    for split in ("val", "test"):
        if split in splits and not sub_folders(splits[split]):
            unlabelled = splits.pop(split)
            notes.append(
                f"note: {shown_path(unlabelled)} has no class folders, and is not used: sort its"
                " images into class folders to test with them"
            )
    return SplitFolders(splits, notes)


def _are_splits(folders: Sequence[Path], splits: Mapping[Split, Path]) -> bool:
    """Return whether the sub-folders of a folder are splits, and not classes.

    They are if a training split lies beside a test or validation split, or alone, and one of them
    has class folders; or if all of several hold the same sub-folders, whatever their names.
    """
    if "train" in splits and (len(splits) > 1 or len(folders) == 1):
        return any(sub_folders(path) for path in splits.values())
    inner = set()
    for path in folders:
        inner.add(frozenset(sub_folder.name for sub_folder in sub_folders(path)))
    return len(folders) > 1 and len(inner) == 1 and inner != {frozenset()}


def _strays_notes(home: Path) -> list[str]:
    """Return a sentence about images beside class folders, which are of no class, or nothing.

    Args:
        home: folder or archive that holds the class folders.
    """
    part = archive_part(home)
    entries = sorted(home.iterdir()) if part is None else archived_files(part)
    strays = [path for path in entries if path.parent == home and is_image(path)]
    return [
        "note: images beside the class folders are passed over, the first is"
        f" {shown_path(path)}: move each into the folder of its class"
        for path in strays[:1]
    ]


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
    require_folder(options.root, "--data.root", noun)
    return options.root
