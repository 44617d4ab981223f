"""Read benchmarks as they are distributed: torchvision, ImageNet, CORe50, CIFAR-100 and others."""

from __future__ import annotations

import csv
import inspect
import json
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cifnet_pl.data.sets import (
    ArraySet,
    FileSet,
    SampleGroups,
    Source,
    SourceOptions,
    array_image,
    checked_source,
    dataset_image,
    held_out_rows,
    source_by_mask,
    source_of_splits,
    split_by_seed,
)
from cifnet_pl.data.sources.folders import (
    class_folders,
    file_set,
    find_splits,
    folder,
    required_root,
)
from cifnet_pl.data.sources.tables import open_table, parquet_schema
from cifnet_pl.images.files import is_folder, listing, shown_path
from cifnet_pl.images.names import PassedOver
from cifnet_pl.utilities.errors import DataError, UsageError, check_that, explained
from cifnet_pl.utilities.files import expanded
from cifnet_pl.utilities.names import split_of
from cifnet_pl.utilities.text import first_line

PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # Its test labels are not public.
    "CLEVRClassification": ({"split": "train"}, {"split": "val"}),
    "EMNIST": (
        {"split": "balanced", "train": True},
        {"split": "balanced", "train": False},
    ),
    "FGVCAircraft": ({"split": "trainval"}, {"split": "test"}),
    "ImageNet": ({"split": "train"}, {"split": "val"}),
    "Imagenette": ({"split": "train"}, {"split": "val"}),
    "OxfordIIITPet": ({"split": "trainval"}, {"split": "test"}),
    "Places365": ({"split": "train-standard"}, {"split": "val"}),
}
"""Arguments of the training and the test split, where these are not the usual ones.

The usual ones are ``train=True`` and ``False``, or ``split="train"`` and ``"test"``.
"""

DEFAULT_ROOT = Path("data")
"""Default folder of torchvision sets."""

NOT_FOR_CLASSIFICATION = {"FakeData", "ImageFolder", "DatasetFolder", "VisionDataset"}


def set_names() -> list[str]:
    """Return the names of torchvision's data sets."""
    from torchvision import datasets

    names = []
    for name in datasets.__all__:
        if inspect.isclass(getattr(datasets, name)):
            names.append(name)
    return sorted(set(names) - NOT_FOR_CLASSIFICATION)


def digits(options: SourceOptions) -> Source:
    """Load scikit-learn's bundled digits: 1797 real 8x8 scans of ten classes, split by seed."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    squares = pixels.reshape(-1, 8, 8)
    scaled = squares * (255 / 16)
    images = scaled.round().astype(np.uint8)
    class_names = [str(digit) for digit in range(10)]
    return split_by_seed(
        class_names, ArraySet(partial(array_image, images), labels), options
    )


# ---------------------------------------------------------------------- torchvision


def torchvision_set(name: str, options: SourceOptions) -> Source:
    """Load a classification set of torchvision: its two splits, or a split by seed of its only one.

    Args:
        name: name of the class in ``torchvision.datasets``.
        options: options of the source.

    Raises:
        UsageError: the set is not one of images with one class each.
        DataError: it is not on this machine, or damaged.
    """
    opened = []
    for arguments in _split_arguments(name):
        opened.append(_open(name, options, arguments))
    train_classes = getattr(opened[0], "classes", None)
    test_classes = getattr(opened[-1], "classes", None)
    if train_classes != test_classes:
        raise DataError(
            f"torchvision's {name} has other classes for testing than for training: fetch it again"
        )

    def make(part: int, labels: np.ndarray) -> ArraySet:
        read = partial(dataset_image, opened[part])
        return ArraySet(read, labels)

    labels = [_labels(part) for part in opened]
    class_names = _class_names(opened[0])
    return source_of_splits(labels, make, options, f"torchvision's {name}", class_names)


def _split_arguments(name: str) -> tuple[dict[str, Any], ...]:
    """Return the arguments that a torchvision set takes for each of its splits."""
    from torchvision import datasets

    builder = getattr(datasets, name)
    parameters = inspect.signature(builder).parameters
    if name in PARTS:
        return PARTS[name]
    if "train" in parameters:
        return ({"train": True}, {"train": False})
    if "split" in parameters:
        return ({"split": "train"}, {"split": "test"})
    return ({},)


def _open(name: str, options: SourceOptions, arguments: dict[str, Any]) -> Any:
    """Construct a torchvision set.

    Args:
        name: name of the class in ``torchvision.datasets``.
        options: options of the source.
        arguments: arguments of one split.
    """
    from torchvision import datasets

    builder = getattr(datasets, name)
    parameters = inspect.signature(builder).parameters
    given = expanded(options.root or DEFAULT_ROOT)
    root = given.absolute()
    keywords: dict[str, Any] = {"root": str(root), **arguments}
    # EMNIST and QMNIST take the option of their parent without naming it.
    if "download" in parameters or issubclass(builder, datasets.MNIST):
        keywords["download"] = options.download
    for parameter in parameters.values():
        optional_one = parameter.default is not parameter.empty
        variable = parameter.kind is parameter.VAR_KEYWORD
        if parameter.name not in keywords and not optional_one and not variable:
            raise _unsuitable(name, f"needs {parameter.name}")
    absent = f"torchvision's {name} is not in {shown_path(root)}"
    remedies = (
        "; set --data.root to the folder that holds it, or fetch it with --data.download"
        " true"
    )
    unmet = f"torchvision's {name} needs a package that is not installed"
    with (
        explained(DataError, absent, RuntimeError, OSError, end=remedies),
        explained(UsageError, unmet, ImportError),
    ):
        try:
            return builder(**keywords)
        except ValueError as error:
            raise _unsuitable(name, first_line(error)) from error


def _unsuitable(name: str, reason: str) -> UsageError:
    return UsageError(
        f"torchvision's {name} is not a set of images with one class each ({reason}): "
        "arrange its images in class folders and use --data.source folder"
    )


def _labels(dataset: Any) -> list[int]:
    """Return the label of each image, read without decoding any.

    Raises:
        UsageError: the set does not list them.
    """
    values = None
    for attribute in ("targets", "labels", "_labels", "y"):
        if values is None:
            values = getattr(dataset, attribute, None)
    if values is None and hasattr(dataset, "_samples"):
        values = [sample[1] for sample in dataset._samples]
    if values is None or not len(values):
        raise _unsuitable(type(dataset).__name__, "it does not list its labels")
    try:
        return [int(value) for value in values]
    except (TypeError, ValueError) as error:
        kind = type(dataset).__name__
        raise _unsuitable(kind, first_line(error)) from error


def _class_names(dataset: Any) -> list[str]:
    """Return the name of each label.

    A name that occurs twice (ImageNet has two cranes) gets its label behind it.
    """
    class_list = getattr(dataset, "classes", None)
    declared = class_list or getattr(dataset, "categories", None)
    if declared is None:
        largest = max(_labels(dataset))
        return [str(label) for label in range(largest + 1)]
    names = []
    for name in declared:
        if isinstance(name, tuple):
            text = ", ".join(name)
        else:
            text = str(name)
        names.append(text)
    counts = Counter(names)
    return [
        name if counts[name] == 1 else f"{name} ({label})"
        for label, name in enumerate(names)
    ]


# ---------------------------------------------------------------------- ImageNet

CLASSES = 100
IMAGENET_CLASSES = 1000
USUAL_SEED = 1993
"""Seed of the class orders of the literature."""

IMAGENET = (
    "the folder of ImageNet (ILSVRC 2012, from image-net.org) with train/<class>/*.JPEG and"
    " val/<class>/*.JPEG, the validation images sorted into class folders"
)
TINY = (
    "the unpacked tiny-imagenet-200.zip (from cs231n.stanford.edu), that is the folder"
    " tiny-imagenet-200 with train/<class>/images, val/images and val/val_annotations.txt, or the"
    " folder that holds it"
)


def imagenet100(options: SourceOptions) -> Source:
    """Read 100 classes of a tree ``train/<class>/…`` and ``val/<class>/…``.

    Of ImageNet's 1000 classes those are used that the literature draws, with NumPy's legacy
    generator and the seed 1993; of a tree of 100 classes all.

    Raises:
        DataError: no such tree, one of another number of classes, or one without validation images
            of a class.
    """
    with listing():
        root = required_root(options, IMAGENET)
        train = root / "train"
        val = root / "val"
        if not (train.is_dir() and val.is_dir()):
            raise DataError(
                f"{shown_path(root)} has no train and val: set --data.root to {IMAGENET}"
            )
        folders = class_folders(train)
        names = list(folders)
        if len(names) == IMAGENET_CLASSES:
            # The generator that the published draws were made with.
            generator = np.random.RandomState(USUAL_SEED)
            rows = generator.permutation(IMAGENET_CLASSES)[:CLASSES]
            usual = [names[i] for i in rows]
            names = sorted(usual)
        if len(names) != CLASSES:
            raise DataError(
                f"{shown_path(root)} has {len(names)} classes, expected {CLASSES} or"
                f" {IMAGENET_CLASSES}"
            )
        val_folders = class_folders(val)
        for name in names:
            if name not in val_folders:
                raise DataError(
                    f"class '{name}' is not in val of {shown_path(root)}: --data.root must be"
                    f" {IMAGENET}"
                )
        passed_over = PassedOver()
        train_folders = {name: folders[name] for name in names}
        train_set = file_set(train, train_folders, passed_over)
        tested_folders = {name: val_folders[name] for name in names}
        val_set = file_set(val, tested_folders, passed_over)
        notes = tuple(passed_over.notes())
        return Source(names, train_set, val_set, notes=notes)


def tinyimagenet(options: SourceOptions) -> Source:
    """Read Tiny-ImageNet-200 as it is distributed.

    The folders are ``train/<class>/images``, and ``val/images`` with ``val/val_annotations.txt``.

    Raises:
        DataError: no such tree, or a validation image that is listed but not there.
    """
    with listing():
        root = _inner_folder(required_root(options, TINY), "tiny-imagenet-200")
        annotations = root / "val" / "val_annotations.txt"
        if not annotations.is_file():
            raise DataError(
                f"{shown_path(root)} has no val/val_annotations.txt: set --data.root to {TINY}"
            )
        if not (root / "train").is_dir():
            raise DataError(
                f"{shown_path(root)} has no train: set --data.root to {TINY}"
            )
        folders = class_folders(root / "train")
        passed_over = PassedOver()
        train_set = file_set(root / "train", folders, passed_over)
        val_set = _validation(annotations, list(folders))
        notes = tuple(passed_over.notes())
        return Source(list(folders), train_set, val_set, notes=notes)


def _inner_folder(root: Path, name: str) -> Path:
    """Return the folder ``name`` in ``root`` if there is one, else ``root``."""
    inner = root / name
    if inner.is_dir():
        return inner
    return root


def _validation(annotations: Path, class_names: list[str]) -> FileSet:
    """Return the validation images of some classes, in the order of their annotations.

    Raises:
        DataError: no image of the classes, or one that is listed but not there.
    """
    images = annotations.parent / "images"
    if images.is_dir():
        present = {path.name for path in images.iterdir()}
    else:
        present = set()
    position = {}
    for i, name in enumerate(class_names):
        position[name] = i
    names: list[str] = []
    labels: list[int] = []
    with annotations.open(newline="", encoding="utf-8") as file:
        for row in csv.reader(file, delimiter="\t"):
            if len(row) < 2 or row[1] not in position:
                continue
            if row[0] not in present:
                raise _incomplete(
                    annotations, f"{row[0]}, which is not in {shown_path(images)}"
                )
            names.append(row[0])
            labels.append(position[row[1]])
    if not names:
        raise _incomplete(annotations, "no image of the classes in train")
    return FileSet(images, names, labels)


def _incomplete(annotations: Path, content: str) -> DataError:
    return DataError(
        f"{shown_path(annotations)} lists {content}: unpack the data set again"
    )


# ---------------------------------------------------------------------- CORe50

WHAT_CORE50 = (
    "the unpacked core50_128x128.zip from vlomonaco.github.io/core50, that is the folder"
    " core50_128x128 with s1/o1/C_01_01_000.png and so on, or the folder that holds it"
)
FRAME = re.compile(r"C_(\d+)_(\d+)_(\d+)\.png")
TEST_SESSIONS = {3, 7, 10}


class Core50Frame(NamedTuple):
    """An image of CORe50: its session, object and number there, and its path below the root."""

    session: int
    object: int
    number: int
    path: str


def core50(options: SourceOptions) -> Source:
    """Read the tree ``core50_128x128/sN/oM/C_NN_MM_FFF.png``; one class per object, o1 to o50.

    Sessions 3, 7 and 10 are for testing, as usual.

    Options:
        stride: keep every ``stride``-th frame of all frames in the order of session, object and
            frame; with 10, as in the paper, 16,486 of the 164,866.

    Raises:
        DataError: no such tree, or a class without training frames.
        UsageError: a stride that makes no sense.
    """
    stride = options.own.get("stride", 10)
    expected = "1 or more: keep every stride-th frame"
    check_that(type(stride) is int and stride > 0, "stride", stride, expected)
    with listing():
        root = _inner_folder(required_root(options, WHAT_CORE50), "core50_128x128")
        frames = _frames(root)
    sessions = sorted({frame.session for frame in frames})
    if not set(sessions) > TEST_SESSIONS:
        numbers = [f"s{session}" for session in sessions]
        present = ", ".join(numbers) or "no frame"
        raise DataError(
            f"{shown_path(root)} holds {present}, expected s1 to s11: set --data.root to"
            f" {WHAT_CORE50}"
        )
    objects = sorted({frame.object for frame in frames})
    # The stride-th frame and each stride-th one after it: ⌊n / stride⌋ of n.
    frames = frames[stride - 1 :: stride]
    labels = []
    for frame in frames:
        labels.append(objects.index(frame.object))
    paths = [frame.path for frame in frames]
    whole = FileSet(root, paths, labels)
    session_numbers = []
    for frame in frames:
        session_numbers.append(sessions.index(frame.session))
    domains = SampleGroups(
        [f"s{session}" for session in sessions],
        np.array(session_numbers, dtype=np.int64),
    )
    is_test = [frame.session in TEST_SESSIONS for frame in frames]
    test = np.array(is_test, dtype=bool)
    names = [f"o{number}" for number in objects]
    source = source_by_mask(names, whole, test, domains)
    return checked_source(source, f"{shown_path(root)} with stride {stride}")


def _frames(root: Path) -> list[Core50Frame]:
    """Return all frames in the order of session, object and number."""
    frames = []
    for session in root.glob("s[0-9]*"):
        for home in session.glob("o[0-9]*"):
            for path in home.iterdir():
                match = FRAME.fullmatch(path.name)
                if match is not None:
                    session_number, object_number, number = map(int, match.groups())
                    name = f"{session.name}/{home.name}/{path.name}"
                    frames.append(
                        Core50Frame(session_number, object_number, number, name)
                    )
    return sorted(frames)


# ---------------------------------------------------------------------- domains

WHAT_DOMAINS = (
    "a folder with one sub-folder per domain, each with one sub-folder of images per"
    " class"
)


def domains(options: SourceOptions) -> Source:
    """Read ``root/<domain>/<class>/…``; a share of each class in each domain is held out by seed.

    A class may be missing in some domains. Learn the domains one after the other with
    ``--data.stream Domains``.

    Raises:
        DataError: no such folders, or one without an image.
    """
    with listing():
        root = required_root(options, WHAT_DOMAINS)
        domain_folders = class_folders(root)
        if all(split_of(name) for name in domain_folders):
            named = ", ".join(domain_folders)
            raise DataError(
                f"{shown_path(root)} has {named}, which are splits and not domains: use"
                " --data.source folder"
            )
        folders_of_domain: list[dict[str, list[Path]]] = []
        for homes in domain_folders.values():
            folders: dict[str, list[Path]] = {}
            for home in homes:
                for name, paths in class_folders(home).items():
                    folders.setdefault(name, []).extend(paths)
            folders_of_domain.append(folders)
        class_names = sorted(set(chain.from_iterable(folders_of_domain)))
        passed_over = PassedOver()
        names: list[str] = []
        labels: list[int] = []
        numbers: list[int] = []
        for number, folders in enumerate(folders_of_domain):
            images = file_set(root, folders, passed_over)
            classes = list(folders)
            names += images.names
            labels += [class_names.index(classes[label]) for label in images.labels]
            numbers += [number] * len(images)
    whole = FileSet(root, names, labels)
    of_samples = np.array(numbers)
    groups = SampleGroups(list(domain_folders), of_samples)
    held = held_out_rows(
        whole, groups.numbers, options.val_fraction, options.split_seed
    )
    source = source_by_mask(class_names, whole, held, groups)
    return replace(source, notes=tuple(passed_over.notes()))


# ---------------------------------------------------------------------- CIFAR-100

PARQUET = ("train.parquet", "test.parquet")
IMAGE = "img"
LABEL = "fine_label"
"""Columns of the Parquet files: {"bytes": content of a PNG file, …}, and the class's number."""


def cifar100(options: SourceOptions) -> Source:
    """Read CIFAR-100; its classes are sorted by name, as torchvision's fine labels are.

    ``--data.root`` holds ``train.parquet`` and ``test.parquet``, as the Hugging Face hub has them;
    or class folders in ``train`` and ``test``; or else what torchvision fetches.

    Raises:
        UsageError: the Parquet files need a package that is missing.
        DataError: none of the three is there; one Parquet file without the other, damaged, or with
            other columns.
    """
    root = expanded(options.root or DEFAULT_ROOT)
    files = [root / name for name in PARQUET]
    missing = []
    for file in files:
        if not file.is_file():
            missing.append(file.name)
    if len(missing) == 1:
        raise DataError(
            f"{shown_path(root)} has no {missing[0]}, which belongs to the other Parquet file:"
            " add it"
        )
    if missing:
        if is_folder(root) and find_splits(root) is not None:
            return folder(options)
        return torchvision_set("CIFAR100", options)
    parts = [ParquetImages(file) for file in files]

    def make(part: int, positions: np.ndarray) -> ArraySet:
        where = f"{shown_path(files[part])}#"
        return ArraySet(parts[part], positions, where=where)

    labels = [part.labels for part in parts]
    class_names = parts[0].class_names
    return source_of_splits(labels, make, options, shown_path(root), class_names)


class ParquetImages:
    """The images of one Parquet file, as the bytes of image files, in memory.

    Attributes:
        file: the Parquet file.
        labels: label of each image, as the file has it.
        class_names: name of class 0, 1, …, or None where the file does not tell them.

    Raises:
        DataError: the file is damaged, or lacks a column.
    """

    def __init__(self, file: Path):
        table = open_table(file)
        self.file = file
        self._images = table.array(IMAGE)
        self.labels: list[Any] = table.array(LABEL).tolist()
        metadata = parquet_schema(file).metadata or {}
        description = json.loads(metadata.get(b"huggingface", b"{}"))
        features = description.get("info", {}).get("features", {})
        label_feature = features.get(LABEL, {})
        self.class_names: list[str] | None = label_feature.get("names")

    def __call__(self, row: int) -> bytes:
        """Return the content of an image's file; DataError if there is none."""
        cell = self._images[row]
        content = None
        if isinstance(cell, dict):
            content = cell.get("bytes")
        if not isinstance(content, bytes):
            raise DataError(
                f"{shown_path(self.file)}: row {row} of column {IMAGE} (counted from 0) holds no"
                " image"
            )
        return content
