"""Read benchmarks as they are handed out: the sets of torchvision, ImageNet, Tiny-ImageNet, CORe50,
CIFAR-100.
"""

from __future__ import annotations

import csv
import inspect
import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cifnet_pl.data.sets import (
    ArraySet,
    FileSet,
    Source,
    SourceOptions,
    checked,
    held_out_rows,
    in_two,
    item_of,
    of_parts,
)
from cifnet_pl.data.sources.folders import existing, file_set, folder, parts_of, require_classes
from cifnet_pl.data.sources.tables import import_pyarrow, open_table
from cifnet_pl.images.files import expanded, listing, place, sub_folders
from cifnet_pl.utilities.errors import DataError, UsageError, check_that, explained
from cifnet_pl.utilities.text import first_line

PARTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "CLEVRClassification": ({"split": "train"}, {"split": "val"}),  # the test labels are not public
    "EMNIST": ({"split": "balanced", "train": True}, {"split": "balanced", "train": False}),
    "FGVCAircraft": ({"split": "trainval"}, {"split": "test"}),
    "ImageNet": ({"split": "train"}, {"split": "val"}),
    "Imagenette": ({"split": "train"}, {"split": "val"}),
    "OxfordIIITPet": ({"split": "trainval"}, {"split": "test"}),
    "Places365": ({"split": "train-standard"}, {"split": "val"}),
}
"""Arguments for the training and the validation part, where they are not train=True|False or
split="train"|"test".
"""

DEFAULT_ROOT = Path("data")
"""Where torchvision sets are looked for unless a root is given."""

NOT_FOR_CLASSIFICATION = {"FakeData", "ImageFolder", "DatasetFolder", "VisionDataset"}


def set_names() -> list[str]:
    """Return the names of torchvision's data sets."""
    from torchvision import datasets

    names = [name for name in datasets.__all__ if inspect.isclass(getattr(datasets, name))]
    return sorted(set(names) - NOT_FOR_CLASSIFICATION)


def torchvision_set(name: str, options: SourceOptions) -> Source:
    """Load a classification set of torchvision: its own two parts, or a split by seed if it has one
    part.

    Args:
        name: of the class in ``torchvision.datasets``.
        options: of the source.

    Raises:
        UsageError: the set is not one of images with one class each.
        DataError: it is not on this machine, or damaged.
    """
    from torchvision import datasets

    parameters = inspect.signature(getattr(datasets, name)).parameters
    parts: tuple[dict[str, Any], ...] = ({},)
    if name in PARTS:
        parts = PARTS[name]
    elif "train" in parameters:
        parts = ({"train": True}, {"train": False})
    elif "split" in parameters:
        parts = ({"split": "train"}, {"split": "test"})
    opened = [_open(name, options, part) for part in parts]
    first, last = (getattr(dataset, "classes", None) for dataset in (opened[0], opened[-1]))
    if first != last:
        raise DataError(
            f"torchvision's {name} has other classes for testing than for training: fetch it again"
        )

    def make(part: int, labels: np.ndarray) -> ArraySet:
        return ArraySet(partial(item_of, opened[part]), labels)

    return of_parts(
        [_labels(part) for part in opened],
        make,
        options,
        f"torchvision's {name}",
        _class_names(opened[0]),
    )


def _open(name: str, options: SourceOptions, arguments: dict[str, Any]) -> Any:
    from torchvision import datasets

    builder = getattr(datasets, name)
    parameters = inspect.signature(builder).parameters
    root = expanded(options.root or DEFAULT_ROOT).absolute()
    keywords: dict[str, Any] = {"root": str(root), **arguments}
    # EMNIST and QMNIST take the option of their parent without naming it.
    if "download" in parameters or issubclass(builder, datasets.MNIST):
        keywords["download"] = options.download
    wanted = [
        p.name for p in parameters.values() if p.default is p.empty and p.kind is not p.VAR_KEYWORD
    ]
    if set(wanted) - keywords.keys():
        raise _unsuitable(name, f"needs {', '.join(sorted(set(wanted) - keywords.keys()))}")
    remedies = (
        "; set --data.root to the folder that holds it, or fetch it with --data.download true"
    )
    missing = explained(
        DataError,
        f"torchvision's {name} is not in {place(root)}",
        RuntimeError,
        OSError,
        end=remedies,
    )
    with (
        missing,
        explained(
            UsageError, f"torchvision's {name} needs a package that is not installed", ImportError
        ),
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
    """Return the label of each image, read without decoding any."""
    candidates = [
        getattr(dataset, attribute, None) for attribute in ("targets", "labels", "_labels", "y")
    ]
    values = next((v for v in candidates if v is not None), None)
    if values is None and hasattr(dataset, "_samples"):
        values = [sample[1] for sample in dataset._samples]
    if values is None or not len(values):
        raise _unsuitable(type(dataset).__name__, "it does not list its labels")
    try:
        return [int(value) for value in values]
    except (TypeError, ValueError) as error:
        raise _unsuitable(type(dataset).__name__, first_line(error)) from error


def _class_names(dataset: Any) -> list[str]:
    """Return the name of each label; a name that occurs twice (ImageNet has two cranes) gets its
    label behind it.
    """
    declared = getattr(dataset, "classes", None) or getattr(dataset, "categories", None)
    if declared is None:
        return [str(label) for label in range(max(_labels(dataset)) + 1)]
    names = [", ".join(name) if isinstance(name, tuple) else str(name) for name in declared]
    return [
        name if names.count(name) == 1 else f"{name} ({label})" for label, name in enumerate(names)
    ]


CLASSES = 100
IMAGENET_CLASSES = 1000
USUAL_SEED = 1993
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

    Of ImageNet's 1000 those are taken that the literature draws, with NumPy's legacy generator and
    the seed 1993; of a tree of 100 classes all.

    Raises:
        DataError: no such tree, one of another number of classes, or one without validation images
            of a class.
    """
    with listing():
        root = existing(options, IMAGENET)
        if not ((root / "train").is_dir() and (root / "val").is_dir()):
            raise DataError(f"{place(root)} has no train and val: set --data.root to {IMAGENET}")
        names = [path.name for path in sub_folders(root / "train")]
        if len(names) == IMAGENET_CLASSES:
            # The generator that the published draws were made with.
            rows = np.random.RandomState(USUAL_SEED).permutation(IMAGENET_CLASSES)[:CLASSES]
            names = sorted(names[i] for i in rows)
        if len(names) != CLASSES:
            raise DataError(
                f"{place(root)} has {len(names)} classes, expected {CLASSES} or {IMAGENET_CLASSES}"
            )
        missing = [name for name in names if not (root / "val" / name).is_dir()]
        if missing:
            raise DataError(
                f"class '{missing[0]}' is not in val of {place(root)}: --data.root must be"
                f" {IMAGENET}"
            )
        return Source(names, file_set(root / "train", names), file_set(root / "val", names))


def tinyimagenet(options: SourceOptions) -> Source:
    """Read Tiny-ImageNet-200 as it is distributed.

    The folders are ``train/<class>/images``, and ``val/images`` with ``val/val_annotations.txt``.

    Raises:
        DataError: no such tree, or a validation image that is listed but not there.
    """
    with listing():
        root = existing(options, TINY)
        if (root / "tiny-imagenet-200").is_dir():
            root = root / "tiny-imagenet-200"
        else:
            root = root
        annotations = root / "val" / "val_annotations.txt"
        if not ((root / "train").is_dir() and annotations.is_file()):
            if annotations.is_file():
                lacking = "train"
            else:
                lacking = "val/val_annotations.txt"
            raise DataError(f"{place(root)} has no {lacking}: set --data.root to {TINY}")
        names = [path.name for path in sub_folders(root / "train")]
        return Source(names, file_set(root / "train", names), _validation(annotations, names))


def _validation(annotations: Path, names: list[str]) -> FileSet:
    """Return the validation images of the classes ``names``, in the order of their annotations."""
    images = annotations.parent / "images"
    if images.is_dir():
        there = {path.name for path in images.iterdir()}
    else:
        there = set()
    position = {name: i for i, name in enumerate(names)}
    with annotations.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.reader(file, delimiter="\t") if len(row) > 1]
    files = [(row[0], position[row[1]]) for row in rows if row[1] in position]
    missing = [name for name, _ in files if name not in there]
    if missing or not files:
        if missing:
            listed = f"{missing[0]}, which is not in {place(images)}"
        else:
            listed = "no image of the classes in train"
        raise DataError(f"{place(annotations)} lists {listed}: unpack the data set again")
    return FileSet(images, [name for name, _ in files], [label for _, label in files])


WHAT_CORE50 = (
    "the unpacked core50_128x128.zip from vlomonaco.github.io/core50, that is the folder"
    " core50_128x128 with s1/o1/C_01_01_000.png and so on, or the folder that holds it"
)
FRAME = re.compile(r"C_(\d+)_(\d+)_(\d+)\.png")
TEST_SESSIONS = {3, 7, 10}


def core50(options: SourceOptions) -> Source:
    """Read the tree ``core50_128x128/sN/oM/C_NN_MM_FFF.png``; one class per object, ``o1`` …
    ``o50``.

    Sessions 3, 7 and 10 are for testing, as usual.

    Options:
        stride: keep every ``stride``-th frame of all frames in the order of session, object and
            frame; with 10, as in the paper, 16,486 of the 164,866.

    Raises:
        DataError: no such tree, or a class without training frames.
        UsageError: a stride that makes no sense.
    """
    stride = options.own.get("stride", 10)
    check_that(
        type(stride) is int and stride > 0,
        "stride",
        stride,
        "1 or more: keep every stride-th frame",
    )
    with listing():
        root = existing(options, WHAT_CORE50)
        if (root / "core50_128x128").is_dir():
            root = root / "core50_128x128"
        else:
            root = root
        frames = _frames(root)
    sessions = {session for session, *_ in frames}
    if not sessions > TEST_SESSIONS:
        present = ", ".join(f"s{session}" for session in sorted(sessions)) or "no frame"
        raise DataError(
            f"{place(root)} holds {present}, expected s1 to s11: set --data.root to {WHAT_CORE50}"
        )
    objects = sorted({number for _, number, *_ in frames})
    # The stride-th frame and each stride-th one after it: ⌊n / stride⌋ of n.
    numbers = sorted(sessions)
    frames = frames[stride - 1 :: stride]
    whole = FileSet(
        root, [name for *_, name in frames], [objects.index(number) for _, number, *_ in frames]
    )
    session_of = np.array([numbers.index(session) for session, *_ in frames], dtype=np.int64)
    held = np.array([session in TEST_SESSIONS for session, *_ in frames], dtype=bool)
    domains = [f"s{session}" for session in numbers], session_of
    source = in_two([f"o{number}" for number in objects], whole, held, domains=domains)
    return checked(source, f"{place(root)} with stride {stride}")


def _frames(root: Path) -> list[tuple[int, int, int, str]]:
    """Return (session, object, frame, path below ``root``) of all frames, in that order."""
    frames = []
    for session in root.glob("s[0-9]*"):
        for home in session.glob("o[0-9]*"):
            matches = [FRAME.fullmatch(path.name) for path in home.iterdir()]
            for match in (match for match in matches if match is not None):
                name = f"{session.name}/{home.name}/{match[0]}"
                frames.append((int(match[1]), int(match[2]), int(match[3]), name))
    return sorted(frames)


WHAT_DOMAINS = (
    "a folder with one sub-folder per domain, each with one sub-folder of images per class"
)


def domains(options: SourceOptions) -> Source:
    """Read ``root/<domain>/<class>/…``; a share of each class in each domain is held out by seed.

    A class may be missing in some domains. Learn the domains one after the other with
    ``--data.stream Domains``.

    Raises:
        DataError: no such folders, or one without an image.
    """
    with listing():
        root = existing(options, WHAT_DOMAINS)
        domain_classes = {
            home.name: [path.name for path in sub_folders(home)] for home in sub_folders(root)
        }
        require_classes(list(domain_classes), root)
        for name, classes in domain_classes.items():
            require_classes(classes, root / name)
        class_names = sorted({name for classes in domain_classes.values() for name in classes})
        names: list[str] = []
        labels: list[int] = []
        groups: list[int] = []
        for i, (domain, classes) in enumerate(domain_classes.items()):
            domain_set = file_set(root / domain, classes)
            names += [f"{domain}/{name}" for name in domain_set.names]
            labels += [class_names.index(classes[label]) for label in domain_set.labels]
            groups += [i] * len(domain_set)
    whole = FileSet(root, names, labels)
    domain_of = np.array(groups)
    held = held_out_rows(whole, domain_of, options.val_fraction, options.split_seed)
    return in_two(class_names, whole, held, domains=(list(domain_classes), domain_of))


PARQUET = ("train.parquet", "test.parquet")
IMAGE = "img"
LABEL = "fine_label"
"""Columns of the Parquet files: {"bytes": content of a PNG file, …}, and the number of its
class.
"""


def cifar100(options: SourceOptions) -> Source:
    """Read CIFAR-100; its classes are in the order of their names, which is that of torchvision's
    fine labels.

    ``--data.root`` holds ``train.parquet`` and ``test.parquet``, as the Hugging Face hub has them;
    or class folders in ``train`` and ``test``; or else what torchvision fetches.

    Raises:
        UsageError: the Parquet files need a package that is missing.
        DataError: none of the three is there; one Parquet file without the other, damaged, or with
            other columns.
    """
    root = expanded(options.root or DEFAULT_ROOT)
    files = [root / name for name in PARQUET]
    missing = [file.name for file in files if not file.is_file()]
    if len(missing) == 1:
        raise DataError(
            f"{place(root)} has no {missing[0]}, which belongs to the other Parquet file: add it"
        )
    if missing:
        if parts_of(root) is not None:
            return folder(options)
        return torchvision_set("CIFAR100", options)
    parts = [ParquetImages(file) for file in files]

    def make(part: int, positions: np.ndarray) -> ArraySet:
        return ArraySet(parts[part], positions, where=f"{place(files[part])}#")

    return of_parts(
        [part.labels for part in parts], make, options, place(root), parts[0].class_names
    )


class ParquetImages:
    """The images of one Parquet file, as the bytes of image files, in memory.

    Attributes:
        file: where they are from.
        labels: of each image, as the file has it.
        class_names: name of class 0, 1, …, or None where the file does not tell them.

    Raises:
        DataError: the file is damaged, or lacks a column.
    """

    def __init__(self, file: Path):
        table = open_table(file)
        self.file = file
        self._images = table.array(IMAGE)
        self.labels: list[Any] = table.array(LABEL).tolist()
        about = json.loads(
            (import_pyarrow().parquet.read_schema(file).metadata or {}).get(b"huggingface", b"{}")
        )
        self.class_names: list[str] | None = (
            about.get("info", {}).get("features", {}).get(LABEL, {}).get("names")
        )

    def __call__(self, row: int) -> bytes:
        """Return the content of an image's file; DataError if there is none."""
        cell = self._images[row]
        content = cell.get("bytes") if isinstance(cell, dict) else None
        if not isinstance(content, bytes):
            raise DataError(
                f"{place(self.file)}: row {row} of column {IMAGE} (counted from 0) holds no image"
            )
        return content
