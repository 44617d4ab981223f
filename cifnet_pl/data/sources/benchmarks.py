"""Read benchmarks as they are distributed: torchvision, ImageNet, CORe50, CIFAR-100 and others."""

import inspect
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image

from cifnet_pl.data.samples import (
    SampleTable,
    SourceOptions,
    dataset_image,
    joined,
    table_of,
)
from cifnet_pl.data.sources.folders import (
    class_folders,
    class_samples,
    find_files,
    find_splits,
    folder,
    required_root,
)
from cifnet_pl.data.sources.tables import open_table, readable
from cifnet_pl.data.splitting import held_out_rows
from cifnet_pl.images.files import is_folder, shown_path
from cifnet_pl.utilities.errors import DataError, UsageError, check_that, explained
from cifnet_pl.utilities.names import class_name

SPLITS = {
    # Its test labels are not public.
    "CLEVRClassification": ("train", "val"),
    "FGVCAircraft": ("trainval", "test"),
    "ImageNet": ("train", "val"),
    "Imagenette": ("train", "val"),
    "OxfordIIITPet": ("trainval", "test"),
    "Places365": ("train-standard", "val"),
}
"""Names of the split to learn and the one to test with, where these are not train and test."""

DEFAULT_ROOT = Path("data")
"""Default folder of torchvision sets."""

NOT_FOR_CLASSIFICATION = {
    "DatasetFolder",
    "FakeData",
    "ImageFolder",
    "VisionDataset",
    "wrap_dataset_for_transforms_v2",
}


def set_names() -> list[str]:
    """Return the names of torchvision's data sets."""
    from torchvision import datasets

    return sorted(set(datasets.__all__) - NOT_FOR_CLASSIFICATION)


def digits(options: SourceOptions) -> SampleTable:
    """Load scikit-learn's bundled digits: 1797 real 8x8 scans of ten classes, split by seed."""
    from sklearn.datasets import load_digits

    scans = load_digits()
    scaled = scans.images * (255 / 16)
    images = scaled.round().astype(np.uint8)
    table = pd.DataFrame({"label": scans.target})
    return SampleTable(table, lambda row: Image.fromarray(images[row]))


# ---------------------------------------------------------------------- torchvision


def torchvision_set(name: str, options: SourceOptions) -> SampleTable:
    """Load a classification set of torchvision: its two splits, or a split by seed of its only one.

    Args:
        name: name of the class in ``torchvision.datasets``.
        options: options of the source.

    Raises:
        UsageError: the set is not one of images with one class each.
        DataError: it is not on this machine, or damaged.
    """
    from torchvision import datasets

    builder = getattr(datasets, name)
    parameters = inspect.signature(builder).parameters
    root = (options.root or DEFAULT_ROOT).absolute()
    keywords: dict[str, Any] = {"root": str(root)}
    # EMNIST and QMNIST take options of their parent without naming them.
    is_mnist = issubclass(builder, datasets.MNIST)
    if "download" in parameters or is_mnist:
        keywords["download"] = options.download
    if name == "EMNIST":
        keywords["split"] = "balanced"
    splits: list[dict[str, Any]] = [{}]
    if "train" in parameters or is_mnist:
        splits = [{"train": True}, {"train": False}]
    elif "split" in parameters:
        names = SPLITS.get(name, ("train", "test"))
        splits = [{"split": split} for split in names]
    absent = f"torchvision's {name} is not in {shown_path(root)}"
    remedies = (
        "; set --data.root to the folder that holds it, or fetch it with --data.download"
        " true"
    )
    unsuitable = f"torchvision's {name} cannot be read as images with one class each"
    unfit = (TypeError, ValueError, ImportError)
    instead = "; arrange its images in class folders and use --data.source folder"
    parts = []
    for arguments in splits:
        with (
            explained(DataError, absent, RuntimeError, OSError, end=remedies),
            explained(UsageError, unsuitable, *unfit, end=instead),
        ):
            opened = builder(**keywords, **arguments)
            labels = [int(label) for label in _labels(opened)]
            if not labels:
                raise ValueError("it does not list its labels")
        samples = SampleTable(
            pd.DataFrame({"label": labels}),
            partial(dataset_image, opened),
            class_names=_class_names(opened),
            where=f"torchvision's {name}",
        )
        parts.append(samples)
    return joined(parts, ["train", "test"])


def _labels(dataset: Any) -> Any:
    """Return the label of each image, read without decoding any; none if they are not listed."""
    for attribute in ("targets", "labels", "_labels", "y"):
        values = getattr(dataset, attribute, None)
        if values is not None:
            return values
    return [sample[1] for sample in getattr(dataset, "_samples", ())]


def _class_names(dataset: Any) -> list[str] | None:
    """Return the name of each label, or None where the set has no names.

    A name that occurs twice (ImageNet has two cranes) gets its label behind it.
    """
    declared = getattr(dataset, "classes", None) or getattr(dataset, "categories", None)
    if declared is None:
        return None
    names = []
    for name in declared:
        if isinstance(name, tuple):
            names.append(", ".join(name))
        else:
            names.append(str(name))
    repeated = pd.Series(names, dtype=object).duplicated(keep=False)
    for label in np.flatnonzero(repeated).tolist():
        names[label] = f"{names[label]} ({label})"
    return names


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


def imagenet100(options: SourceOptions) -> SampleTable:
    """Read 100 classes of a tree ``train/<class>/…`` and ``val/<class>/…``.

    Of ImageNet's 1000 classes those are used that the literature draws, with NumPy's legacy
    generator and the seed 1993; of a tree of 100 classes all.

    Raises:
        DataError: no such tree, or one of another number of classes.
    """
    root = _inner_folder(options, IMAGENET, "", ("train", "val"))
    names = list(class_folders(root / "train"))
    if len(names) == IMAGENET_CLASSES:
        # The generator that the published draws were made with.
        generator = np.random.RandomState(USUAL_SEED)
        drawn = generator.permutation(IMAGENET_CLASSES)[:CLASSES]
        names = sorted(names[i] for i in drawn)
    if len(names) != CLASSES:
        raise DataError(
            f"{shown_path(root)} has {len(names)} classes, expected {CLASSES} or"
            f" {IMAGENET_CLASSES}"
        )
    parts = {split: root / split for split in ("train", "val")}
    return class_samples(root, parts, only=names)


def tinyimagenet(options: SourceOptions) -> SampleTable:
    """Read Tiny-ImageNet-200 as it is distributed.

    The folders are ``train/<class>/images``, and ``val/images`` with ``val/val_annotations.txt``.

    Raises:
        DataError: no such tree.
    """
    annotations = "val/val_annotations.txt"
    root = _inner_folder(options, TINY, "tiny-imagenet-200", ("train", annotations))
    train = class_samples(root, {"train": root / "train"})
    with readable(root / annotations):
        listed = pd.read_csv(
            root / annotations, sep="\t", header=None, dtype=str, keep_default_na=False
        )
    val = pd.DataFrame({"name": listed[0], "label": listed[1]})
    val["path"] = "val/images/" + val["name"]
    return joined([train, SampleTable(val, root=root)], ["train", "val"])


def _inner_folder(
    options: SourceOptions,
    what: str,
    name: str,
    needed: Sequence[str],
) -> Path:
    """Return the root of a benchmark, or the folder ``name`` in it if there is one.

    Args:
        options: of the source.
        what: what the root should be, for messages.
        name: of the folder.
        needed: what must be in it.

    Raises:
        DataError: something of this is missing.
    """
    root = required_root(options, what)
    if (root / name).is_dir():
        root /= name
    for path in needed:
        if not (root / path).exists():
            raise DataError(
                f"{shown_path(root)} has no {path}: set --data.root to {what}"
            )
    return root


# ---------------------------------------------------------------------- CORe50

WHAT_CORE50 = (
    "the unpacked core50_128x128.zip from vlomonaco.github.io/core50, that is the folder"
    " core50_128x128 with s1/o1/C_01_01_000.png and so on, or the folder that holds it"
)
FRAME = r"/C_(?P<session>\d+)_(?P<object>\d+)_(?P<frame>\d+)\.png$"
TEST_SESSIONS = {3, 7, 10}


def core50(options: SourceOptions) -> SampleTable:
    """Read the tree ``core50_128x128/sN/oM/C_NN_MM_FFF.png``; one class per object, o1 to o50.

    Sessions 3, 7 and 10 are for testing, as usual.

    Options:
        stride: keep every ``stride``-th frame of all frames in the order of session, object and
            frame; with 10, as in the paper, 16,486 of the 164,866.

    Raises:
        DataError: no such tree.
        UsageError: a stride that makes no sense.
    """
    stride = options.own.get("stride", 10)
    expected = "1 or more: keep every stride-th frame"
    check_that(type(stride) is int and stride > 0, "stride", stride, expected)
    root = _inner_folder(options, WHAT_CORE50, "core50_128x128", ())
    files = root.glob("s[0-9]*/o[0-9]*/*.png")
    found = [path.relative_to(root).as_posix() for path in files]
    names = pd.Series(found, dtype=object, name="name")
    numbers = names.str.extract(FRAME).dropna().astype(int)
    frames = numbers.join(names).sort_values(["session", "object", "frame"])
    sessions = sorted(set(frames["session"]))
    if not set(sessions) > TEST_SESSIONS:
        raise DataError(
            f"{shown_path(root)} holds the sessions {sessions}, expected s1 to s11: set --data.root"
            f" to {WHAT_CORE50}"
        )
    # The stride-th frame and each stride-th one after it: ⌊n / stride⌋ of n.
    kept = frames.iloc[stride - 1 :: stride].reset_index(drop=True)
    is_test = kept["session"].isin(TEST_SESSIONS)
    domains = [f"s{session}" for session in sessions]
    table = kept.assign(
        label=kept["object"],
        split=np.where(is_test, "test", "train"),
        domain=pd.Categorical("s" + kept["session"].astype(str), domains),
    )
    last = int(frames["object"].max())
    return SampleTable(
        table,
        root=root,
        class_names=[f"o{number}" for number in range(last + 1)],
        where=f"{shown_path(root)} with stride {stride}",
    )


# ---------------------------------------------------------------------- domains

WHAT_DOMAINS = (
    "a folder with one sub-folder per domain, each with one sub-folder of images per"
    " class"
)


def domains(options: SourceOptions) -> SampleTable:
    """Read ``root/<domain>/<class>/…``; a share of each class in each domain is held out by seed.

    A class may be missing in some domains. Learn the domains one after the other with
    ``--data.stream Domains``.

    Raises:
        DataError: no such folders, or one without an image.
    """
    root = required_root(options, WHAT_DOMAINS)
    homes = chain.from_iterable(class_folders(root).values())
    samples = class_samples(root, {home.name: home for home in homes})
    names = [class_name(name) for name in samples.table["split"]]
    codes, present = pd.factorize(np.array(names, dtype=object), sort=True)
    # No type is inferred: names may hold bytes that are not UTF-8.
    order = pd.Index(present, dtype=object)
    table = samples.table.assign(
        name=samples.table["path"],
        domain=pd.Categorical.from_codes(codes, order, ordered=True),
    )
    whole = replace(samples, table=table.drop(columns=["path", "split"]))
    held = held_out_rows(whole, options.val_fraction, options.split_seed)
    return whole.with_columns(split=np.where(held, "test", "train"))


# ---------------------------------------------------------------------- CIFAR-100

IMAGE = "img"
LABEL = "fine_label"
"""Columns of the Parquet files: {"bytes": content of a PNG file, …}, and the class's number."""


def cifar100(options: SourceOptions) -> SampleTable:
    """Read CIFAR-100; its classes are sorted by name, as torchvision's fine labels are.

    ``--data.root`` holds Parquet files of both splits, as the Hugging Face hub has them;
    or class folders in ``train`` and ``test``; or else what torchvision fetches.

    Raises:
        UsageError: the Parquet files need a package that is missing.
        DataError: none of the three is there, or a Parquet file is damaged or has other columns.
    """
    root = options.root or DEFAULT_ROOT
    files = find_files(root, "**/*", (".parquet",))
    if files.splits:
        return files.read(_parquet_images)
    if is_folder(root) and find_splits(root) is not None:
        return folder(options)
    return torchvision_set("CIFAR100", options)


def _parquet_images(file: Path) -> SampleTable:
    """Return the images of one Parquet file, as the contents of image files in memory.

    Raises:
        DataError: the file is damaged, or lacks a column.
    """
    table = open_table(file)
    images = table.array(IMAGE)
    labels = table.array(LABEL).tolist()
    from pyarrow.parquet import read_schema

    metadata = read_schema(file).metadata or {}
    description = json.loads(metadata.get(b"huggingface", b"{}"))
    features = description.get("info", {}).get("features", {})
    return SampleTable(
        table_of(label=labels),
        lambda row: images[row]["bytes"],
        class_names=features.get(LABEL, {}).get("names"),
        where=shown_path(file.parent),
    )
