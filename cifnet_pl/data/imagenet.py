"""Read ImageNet-100, a choice of classes from an ImageNet tree, and Tiny-ImageNet as it is distributed."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np

from cifnet_pl.data.folders import class_folders, existing, file_set, listing
from cifnet_pl.data.image_sets import FileSet, Source, SourceOptions, expanded, place
from cifnet_pl.utilities.errors import DataError, UsageError

CLASSES = 100
IMAGENET_CLASSES = 1000
USUAL_SEED = 1993
IMAGENET = (
    "the folder of ImageNet (ILSVRC 2012, from image-net.org) with train/<class>/*.JPEG and val/<class>/*.JPEG, "
    "the validation images sorted into class folders"
)
TINY = (
    "the unpacked tiny-imagenet-200.zip (from cs231n.stanford.edu), that is the folder tiny-imagenet-200 with "
    "train/<class>/images, val/images and val/val_annotations.txt, or the folder that holds it"
)


def imagenet100(options: SourceOptions) -> Source:
    """Read 100 classes of a tree ``train/<class>/…`` and ``val/<class>/…``.

    Options:
        class_list: which classes: names; a file with one name on each line (what follows a blank is ignored); or a
            seed, which draws 100 of 1000 with NumPy's legacy generator as the literature does with 1993. Not needed
            if the tree holds 100 classes; for the 1000 of ImageNet the default is 1993.

    Raises:
        DataError: no such tree, or one without a class of the list.
        UsageError: a list that is needed or makes no sense.
    """
    with listing():
        root = existing(options, IMAGENET)
        if not ((root / "train").is_dir() and (root / "val").is_dir()):
            raise DataError(f"{place(root)} has no train and val: set --data.root to {IMAGENET}")
        present = [path.name for path in class_folders(root / "train")]
        names = _chosen(options.own.get("class_list"), present, root)
        missing = [n for n in names for split in ("train", "val") if not (root / split / n).is_dir()]
        if missing:
            raise DataError(
                f"class '{missing[0]}' is not in train and val of {place(root)}: --data.root must be {IMAGENET}"
            )
        return Source(names, file_set(root / "train", names), file_set(root / "val", names))


def _chosen(choice: Any, present: list[str], root: Path) -> list[str]:
    """Return the names of the classes to use, sorted."""
    if choice is None and len(present) == CLASSES:
        return present
    if choice is None and len(present) == IMAGENET_CLASSES:
        choice = USUAL_SEED
    if type(choice) is int:
        if len(present) != IMAGENET_CLASSES:
            raise UsageError(
                f"class_list is the seed {choice}, which draws from {IMAGENET_CLASSES} classes, but {place(root)} has "
                f"{len(present)}: give a file with the class names"
            )
        # The generator that the published draws were made with.
        rows = np.random.RandomState(choice).permutation(IMAGENET_CLASSES)[:CLASSES]
        return sorted(present[i] for i in rows)
    if isinstance(choice, str):
        choice = _read_list(expanded(Path(choice)))
    if not isinstance(choice, list) or not choice or not all(isinstance(name, str) for name in choice):
        raise UsageError(
            f"{place(root)} has {len(present)} classes: set --data.options.class_list to a file with the names of "
            f"{CLASSES} of them, one a line (given: {choice})"
        )
    if len(set(choice)) < len(choice):
        raise UsageError("class_list names a class twice")
    return sorted(choice)


def _read_list(path: Path) -> list[str]:
    if not path.is_file():
        raise UsageError(f"no file {place(path)}: --data.options.class_list names a file with one class name a line")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise UsageError(f"{place(path)} is not a text file: expected one class name a line") from error
    return [line.split()[0] for line in lines if line.split() and not line.startswith("#")]


def tinyimagenet(options: SourceOptions) -> Source:
    """Read Tiny-ImageNet-200 as it is distributed.

    The folders are ``train/<class>/images``, and ``val/images`` with ``val/val_annotations.txt``.

    Raises:
        DataError: no such tree, or a validation image that is listed but not there.
    """
    with listing():
        root = existing(options, TINY)
        root = root / "tiny-imagenet-200" if (root / "tiny-imagenet-200").is_dir() else root
        annotations = root / "val" / "val_annotations.txt"
        if not ((root / "train").is_dir() and annotations.is_file()):
            lacking = "train" if annotations.is_file() else "val/val_annotations.txt"
            raise DataError(f"{place(root)} has no {lacking}: set --data.root to {TINY}")
        names = [path.name for path in class_folders(root / "train")]
        return Source(names, file_set(root / "train", names), _validation(annotations, names))


def _validation(annotations: Path, names: list[str]) -> FileSet:
    """Return the validation images of the classes ``names``, in the order of their annotations."""
    folder = annotations.parent / "images"
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    position = {name: i for i, name in enumerate(names)}
    with annotations.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file, delimiter="\t") if len(row) > 1]
    files = [(row[0], position[row[1]]) for row in rows if row[1] in position]
    missing = [name for name, _ in files if name not in there]
    if missing or not files:
        problem = (
            f"lists {missing[0]}, which is not in {place(folder)}"
            if missing
            else "lists no image of the classes in train"
        )
        raise DataError(f"{place(annotations)} {problem}: unpack the data set again")
    return FileSet(folder, [name for name, _ in files], [label for _, label in files])
