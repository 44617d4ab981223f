"""Read class folders as a data source: what is a class, what is an image, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path, PurePosixPath

from cifnet_pl.data.groups import NEAR, SINGLE, split_by_group, split_near
from cifnet_pl.data.sets import FileSet, Source, SourceOptions, expanded, place, split_by_seed
from cifnet_pl.photos.files import (
    EXTENSIONS,
    archived_files,
    archived_folders,
    is_folder,
    is_image,
    links_upwards,
    walk_images,
    within,
)
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import has_controls, printable


def image_files(folder: Path) -> list[Path]:
    """Return all images below the class folder ``folder``, which may be a Zip archive or in one, sorted.

    See :func:`cifnet_pl.photos.files.walk_images` for links.

    Raises:
        OSError: a folder cannot be read.
    """
    if within(folder) is not None:
        return [path for path in archived_files(folder) if is_image(path)]
    return [] if links_upwards(folder) else sorted(walk_images(folder))


def class_folders(root: Path) -> list[Path]:
    """Return the sub-folders of a folder (links included) or of a Zip archive, sorted by name; not the hidden ones.

    Args:
        root: the folder or archive.

    Raises:
        DataError: a link leads nowhere, so that a class may be missing.
    """
    if within(root) is not None:
        return archived_folders(root)
    entries = sorted(entry for entry in root.iterdir() if not entry.name.startswith((".", "__MACOSX")))
    broken = [entry for entry in entries if entry.is_symlink() and not os.path.exists(entry)]
    if broken:
        raise DataError(f"the link {place(broken[0])} leads nowhere: repair or remove it")
    return [entry for entry in entries if entry.is_dir()]


PART_NAMES = frozenset({"train", "training", "val", "valid", "validation", "test", "testing", "dev", "eval"})
"""Folder names that mean a part of a data set, not a class."""


def folder(options: SourceOptions) -> Source:
    """Read class folders: ``root/train/<class>/…`` with ``root/val/<class>/…``, or ``root/<class>/…`` split by seed."""
    with listing():
        root = existing(options, "a folder or Zip archive with one sub-folder of images per class")
        if has_parts(root) and options.group is not None:
            raise UsageError(
                f"{place(root)} has train and val already, nothing is to be held back: leave --data.group out"
            )
        if has_parts(root):
            return _train_and_val(root)
        names = [path.name for path in class_folders(root)]
        require_classes(names, root)
        if {name.lower() for name in names} <= PART_NAMES and "train" in names:
            raise DataError(
                f"{place(root)} has {', '.join(names)}, expected train and val: call the held-out folder val, "
                f"or set --data.root to {place(root / 'train')} to have a part of it held out"
            )
        whole = file_set(root, names)
        if options.group == SINGLE:
            source = split_by_seed(names, whole, options)
        else:
            source = (split_near if options.group in (None, NEAR) else split_by_group)(names, whole, options)
        nested = about_nesting(whole, names)
        return replace(source, notes=(*source.notes, nested)) if nested else source


def about_nesting(files: FileSet, class_names: Sequence[str]) -> str | None:
    """Ask whether the sub-folders of the only class are the classes; None where there are several, or no sub-folders.

    Args:
        files: all photos.
        class_names: names of the classes.
    """
    inside = {PurePosixPath(name).parts[1:-1][:1] for name in files.names}
    if len(class_names) > 1 or () in inside or len(inside) < 2:
        return None
    return (
        f"note: there is one class, '{printable(class_names[0])}', with photos in {len(inside)} sub-folders: if those "
        f"are the classes, name the folder {place(files.root / class_names[0])} instead"
    )


def has_parts(root: Path) -> bool:
    """Return whether ``root`` has separate photos to learn and to test with, in ``train`` and ``val``."""
    return is_folder(root / "train") and is_folder(root / "val")


def _train_and_val(root: Path) -> Source:
    names = [path.name for path in class_folders(root / "train")]
    require_classes(names, root / "train")
    stray = [path.name for path in class_folders(root / "val") if path.name not in set(names)]
    if stray:
        raise DataError(
            f"class '{printable(stray[0])}' is in {place(root / 'val')} but not in {place(root / 'train')}: "
            "add its training images, or take it out"
        )
    return Source(names, file_set(root / "train", names), file_set(root / "val", names, may_be_empty=True))


@contextmanager
def listing() -> Iterator[None]:
    """Raise DataError, with the folder's name, where the file system refuses to list one."""
    try:
        yield
    except OSError as error:
        where = printable(str(error.filename))
        raise DataError(f"cannot read {where}: {error.strerror}; give this account access to it") from error


def file_set(root: Path, class_names: list[str], may_be_empty: bool = False) -> FileSet:
    """Return all images of some class folders, named by their paths below ``root``.

    Args:
        root: the folder that holds the class folders.
        class_names: names of the class folders; their order gives the labels.
        may_be_empty: whether a class folder may be without images.

    Raises:
        DataError: two names for one folder, or a folder without an image.
    """
    names: list[str] = []
    labels: list[int] = []
    owner: dict[Path, str] = {}
    for label, class_name in enumerate(class_names):
        home = root / class_name
        if not is_folder(home):
            continue
        other = owner.setdefault(home.resolve(), class_name)
        if other != class_name:
            raise DataError(
                f"class folders '{printable(other)}' and '{printable(class_name)}' in {place(root)} are the same "
                "folder: remove one of the links"
            )
        files = image_files(home)
        names += [path.relative_to(root).as_posix() for path in files]
        labels += [label] * len(files)
    empty = sorted(set(range(len(class_names))) - set(labels))
    if empty and not may_be_empty:
        home, known = root / class_names[empty[0]], " ".join(sorted(EXTENSIONS))
        raise DataError(f"class folder {place(home)} holds no image ({known}): add images or remove the folder")
    return FileSet(root, names, labels)


def require_classes(names: Sequence[str], root: Path) -> None:
    """Check the names of class folders.

    Raises:
        DataError: there are none, or a name could not be shown or stored.
    """
    if not names:
        raise DataError(f"{place(root)} has no sub-folders: expected one folder of images per class")
    for name in names:
        if has_controls(name):
            raise DataError(f"class folder '{printable(name)}' in {place(root)} has control characters: rename it")


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


def require_folder(folder: Path, option: str, what: str) -> None:
    """Raise DataError where ``folder``, which ``option`` named, is neither a folder nor a Zip archive.

    Args:
        folder: which should be there.
        option: of the command line, such as ``--images``.
        what: what it should be set to, such as "a folder with photos".
    """
    if not is_folder(folder):
        kind = "Zip archive" if folder.suffix.lower() == ".zip" else "folder"
        raise DataError(f"no {kind} {place(folder)}: set {option} to {what}")
