"""Data sources by name: where images and their classes come from. Adding one is one function in ``SOURCES``."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cifnet_pl.data.images import EXTENSIONS, image_files, read_square, square
from cifnet_pl.errors import DataError, UsageError, unknown_name


class ImageSet(ABC):
    """A fixed sequence of labelled images.

    Attributes:
        labels: (n,) int64, position of each image's class in the source's ``class_names``.
        names: identity of each image: its path relative to the root, or its index.
    """

    labels: np.ndarray
    names: Sequence[str]

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def square(self, index: int, size: int, crop_ratio: float) -> np.ndarray:
        """Image ``index`` as (size, size, 3) uint8."""

    @cached_property
    def rows_of(self) -> dict[int, np.ndarray]:
        """Class position → positions of its images, ascending."""
        order = np.argsort(self.labels, kind="stable")
        classes, starts = np.unique(self.labels[order], return_index=True)
        return dict(zip(classes.tolist(), np.split(order, starts[1:]), strict=True))


@dataclass
class Source:
    """A training and a validation set over the same classes."""

    class_names: list[str]
    train: ImageSet
    val: ImageSet


class FileSet(ImageSet):
    """Images in files below ``root``."""

    def __init__(self, root: Path, names: Sequence[str], labels: Sequence[int]):
        self.root, self.names = root, list(names)
        self.labels = np.asarray(labels, dtype=np.int64)

    def square(self, index: int, size: int, crop_ratio: float) -> np.ndarray:
        """Decode the file; raises what Pillow raises for an unreadable one."""
        return read_square(self.root / self.names[index], size, crop_ratio)


class ArraySet(ImageSet):
    """Images held in memory or in another data set's object, read through ``read(index)``."""

    def __init__(self, read: Callable[[int], Image.Image], labels: Sequence[int]):
        self.read = read
        self.labels = np.asarray(labels, dtype=np.int64)
        self.names = [str(i) for i in range(len(self.labels))]

    def square(self, index: int, size: int, crop_ratio: float) -> np.ndarray:
        """Resize and crop the image in memory."""
        return square(self.read(index), size, crop_ratio)


@dataclass(frozen=True)
class SourceOptions:
    """What every source is built from; a source takes what it has a use for."""

    root: Path | None = None
    val_fraction: float = 0.2
    split_seed: int = 0
    download: bool = False


def held_back(names: Sequence[str], fraction: float, seed: int) -> np.ndarray:
    """Which of one class's images are for validation: (n,) bool, at least one of two, never all.

    By a seeded hash of each name, so that images added later do not move earlier ones far, and the order of the
    files does not matter.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"val_fraction is {fraction:g}, expected a number between 0 and 1")
    count = min(max(round(len(names) * fraction), 1), len(names) - 1)
    ranks = [hashlib.blake2b(f"{seed}\0{name}".encode(), digest_size=8).digest() for name in names]
    chosen = np.zeros(len(names), dtype=bool)
    chosen[sorted(range(len(names)), key=ranks.__getitem__)[:count]] = True
    return chosen


class _Digits:
    """Reads one of scikit-learn's digits; an object, so that spawned workers can receive it."""

    def __init__(self, images: np.ndarray):
        self.images = images

    def __call__(self, index: int) -> Image.Image:
        return Image.fromarray(self.images[index])


def digits(options: SourceOptions) -> Source:
    """scikit-learn's bundled digits: 1797 real 8x8 scans of ten classes, split by seed."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    val = np.zeros(len(labels), dtype=bool)
    for c in range(10):
        rows = np.flatnonzero(labels == c)
        val[rows] = held_back([str(i) for i in rows], options.val_fraction, options.split_seed)
    parts = [ArraySet(_Digits(images[rows]), labels[rows]) for rows in (~val, val)]
    for part, rows in zip(parts, (~val, val), strict=True):
        part.names = [str(i) for i in np.flatnonzero(rows)]
    return Source([str(c) for c in range(10)], *parts)


def class_folders(root: Path) -> list[Path]:
    """Sub-folders of ``root`` (links included), sorted by name; hidden ones are passed over."""
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__MACOSX")))


def folder(options: SourceOptions) -> Source:
    """Class folders: ``root/train/<class>/…`` with ``root/val/<class>/…``, or ``root/<class>/…`` split by seed."""
    root = existing(options, "a folder with one sub-folder of images per class")
    if (root / "train").is_dir() and (root / "val").is_dir():
        names = [path.name for path in class_folders(root / "train")]
        require_classes(names, root / "train")
        stray = [path.name for path in class_folders(root / "val") if path.name not in set(names)]
        if stray:
            raise DataError(f"class '{stray[0]}' is in {root / 'val'} but not in {root / 'train'}")
        return Source(names, _file_set(root / "train", names), _file_set(root / "val", names, may_be_empty=True))
    names = [path.name for path in class_folders(root)]
    require_classes(names, root)
    whole = _file_set(root, names)
    val = np.zeros(len(whole), dtype=bool)
    for rows in whole.rows_of.values():
        val[rows] = held_back([whole.names[i] for i in rows], options.val_fraction, options.split_seed)
    train, held = ([i for i in range(len(whole)) if val[i] == flag] for flag in (False, True))
    parts = [FileSet(root, [whole.names[i] for i in rows], whole.labels[rows].tolist()) for rows in (train, held)]
    return Source(names, *parts)


def _file_set(root: Path, class_names: list[str], may_be_empty: bool = False) -> FileSet:
    names: list[str] = []
    labels: list[int] = []
    for label, class_name in enumerate(class_names):
        place = root / class_name
        files = image_files(place) if place.is_dir() else []
        if not files and not may_be_empty:
            known = " ".join(sorted(EXTENSIONS))
            raise DataError(f"class folder {place} holds no image ({known}): add images or remove the folder")
        names += [path.relative_to(root).as_posix() for path in files]
        labels += [label] * len(files)
    return FileSet(root, names, labels)


def require_classes(names: Sequence[str], root: Path) -> None:
    """Raise DataError where a folder has no class folders."""
    if not names:
        raise DataError(f"{root} has no sub-folders: expected one folder of images per class")


def existing(options: SourceOptions, what: str) -> Path:
    """The root folder, or an error that says what was looked for, where, and the remedy."""
    if options.root is None:
        raise UsageError(f"no data folder was given: set --data.root to {what}")
    root = Path(options.root).expanduser()
    if not root.is_dir():
        raise DataError(f"no folder {root}: set --data.root to {what}")
    return root


class _TorchvisionItem:
    """Reads the image of one item of a torchvision data set."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __call__(self, index: int) -> Image.Image:
        image = self.dataset[index][0]
        assert isinstance(image, Image.Image)
        return image


def torchvision_set(name: str, options: SourceOptions) -> Source:
    """Any torchvision classification set with ``train=True|False`` or ``split="train"|"val"|"test"``."""
    import inspect

    from torchvision import datasets

    builder = getattr(datasets, name)
    root = Path(options.root or "data").expanduser()
    parameters = inspect.signature(builder).parameters
    parts = []
    for is_train in (True, False):
        kwargs: dict[str, Any] = {"root": str(root)}
        if "train" in parameters:
            kwargs["train"] = is_train
        elif "split" in parameters:
            kwargs["split"] = "train" if is_train else ("val" if name in ("ImageNet", "Places365") else "test")
        else:
            raise UsageError(f"torchvision's {name} has no training and test part: use source folder instead")
        if "download" in parameters:
            kwargs["download"] = options.download
        try:
            parts.append(builder(**kwargs))
        except (RuntimeError, FileNotFoundError, OSError) as error:
            raise DataError(
                f"torchvision's {name} is not in {root.absolute()} ({str(error).splitlines()[0]}): "
                "set --data.root to the folder that holds it, or fetch it with --data.download true"
            ) from error
    labels = [_targets(part) for part in parts]
    names = [str(c) for c in getattr(parts[0], "classes", range(int(max(labels[0])) + 1))]
    return Source(names, *(ArraySet(_TorchvisionItem(p), y) for p, y in zip(parts, labels, strict=True)))


def _targets(dataset: Any) -> list[int]:
    for attribute in ("targets", "labels", "_labels"):
        values = getattr(dataset, attribute, None)
        if values is not None:
            return [int(v) for v in values]
    raise UsageError(f"torchvision's {type(dataset).__name__} does not list its labels: use source folder instead")


def cifar100(options: SourceOptions) -> Source:
    """CIFAR-100 of torchvision."""
    return torchvision_set("CIFAR100", options)


SOURCES: dict[str, Callable[[SourceOptions], Source]] = {
    "digits": digits,
    "folder": folder,
    "cifar100": cifar100,
}
"""Name → function that builds the source. Names that are not here are looked up in ``torchvision.datasets``."""


def build_source(name: str, options: SourceOptions) -> Source:
    """Build a source by name: one of ``SOURCES`` or ``torchvision:<class name>``.

    Raises:
        UsageError: unknown name, or an option that is missing.
        DataError: data that is missing or has no classes.
    """
    if name in SOURCES:
        return SOURCES[name](options)
    from torchvision import datasets

    plain = name.removeprefix("torchvision:")
    if plain in datasets.__all__ and plain not in ("ImageFolder", "DatasetFolder", "FakeData"):
        return torchvision_set(plain, options)
    raise unknown_name("data source", name, [*SOURCES, *(f"torchvision:{n}" for n in datasets.__all__)])
