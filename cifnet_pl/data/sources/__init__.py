"""Data sources by name: where images and their classes come from. Adding one is one function in
``SOURCES``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cifnet_pl.data.sets import (
    ArraySet,
    SampleSet,
    Source,
    SourceOptions,
    item_of,
    of_parts,
    picture,
    split_by_seed,
)
from cifnet_pl.data.sources.benchmarks import (
    cifar100,
    core50,
    domains,
    imagenet100,
    set_names,
    tinyimagenet,
    torchvision_set,
)
from cifnet_pl.data.sources.folders import folder
from cifnet_pl.data.sources.hugging_face import hugging_face
from cifnet_pl.data.sources.tables import EmbeddingSet, embeddings, manifest
from cifnet_pl.data.sources.tar_shards import webdataset
from cifnet_pl.utilities.errors import UsageError, explained, unknown_name
from cifnet_pl.utilities.plugins import entry_point, import_part, names_import, naming, offered


def digits(options: SourceOptions) -> Source:
    """Load scikit-learn's bundled digits: 1797 real 8x8 scans of ten classes, split by seed."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    return split_by_seed(
        [str(c) for c in range(10)], ArraySet(partial(_of_array, images), labels), options
    )


SOURCES: dict[str, Callable[[SourceOptions], Source]] = {
    "digits": digits,
    "folder": folder,
    "cifar100": cifar100,
    "core50": core50,
    "domains": domains,
    "embeddings": embeddings,
    "hf": partial(hugging_face, ""),
    "imagenet100": imagenet100,
    "manifest": manifest,
    "tinyimagenet": tinyimagenet,
    "webdataset": webdataset,
}
"""Name → function that builds the source; other names are looked up in ``torchvision.datasets``, in
any case.
"""

OWN_IMAGES = {"folder", "domains", "manifest"}
"""Sources of the user's own images, which may hold copies; benchmark sets are learned as others
learn them.
"""

OWN_OPTIONS: dict[str, tuple[str, ...]] = {
    "core50": ("stride",),
    "embeddings": ("embeddings", "labels", "ids", "split"),
    "hf": ("image", "label", "train", "test", "config"),
    "manifest": ("path", "label", "split", "task", "domain"),
    "webdataset": ("label", "classes"),
}
"""Name → options that this source alone has."""


def build_source(name: str | Any, options: SourceOptions) -> Source:
    """Build a source by its name, or of Python objects as :func:`source_of`.

    A name is one of ``SOURCES``, ``torchvision:<class>``, ``hf:<name>``, or of a source from
    outside the package: one with a dot is the import of a function like those of ``SOURCES``; an
        installed package offers others as entry points
    of the group ``cifnet_pl.sources``.

    Args:
        name: of the source.
        options: passed on to it.

    Raises:
        UsageError: unknown name, or an option that is missing.
        DataError: data that is missing or has no classes.
    """
    if not isinstance(name, str):
        return source_of(name, options)
    outside = None
    if name not in SOURCES and not name.startswith(("hf:", "torchvision:")):
        outside = name if names_import(name) else entry_point("sources", name)
    if outside is not None:
        return _from_plugin(outside, options)
    if options.group is not None and name != "folder":
        raise UsageError(
            f"--data.group is for images in class folders: leave it out for data source {name}"
        )
    known_options = OWN_OPTIONS.get("hf" if name.startswith("hf:") else name, ())
    unknown = [option for option in options.own if option not in known_options]
    if unknown and known_options:
        raise unknown_name(f"option of data source {name}", unknown[0], known_options)
    if unknown:
        raise UsageError(
            f"data source {name} has no options of its own: leave --data.options.{unknown[0]} out"
        )
    if name.startswith("hf:"):
        return hugging_face(name.removeprefix("hf:"), options)
    if name in SOURCES:
        return SOURCES[name](options)
    known = {plain.lower(): plain for plain in set_names()}
    plain = known.get(name.removeprefix("torchvision:").lower())
    if plain is not None:
        return torchvision_set(plain, options)
    if name.startswith("torchvision:"):
        prefix = "torchvision:"
    else:
        prefix = ""
    names = [*SOURCES, *offered("sources"), *(prefix + plain for plain in known.values())]
    raise unknown_name("data source", name, names)


def _from_plugin(name: str, options: SourceOptions) -> Source:
    make = import_part(name)
    with naming(f"data source {name}"):
        source = make(options)
    if not isinstance(source, Source):
        raise UsageError(
            f"data source {name} gives a {type(source).__name__}, not a Source (docs/plugins.md)"
        )
    return source


# ---------------------------------------------------------------------- what Python programs hold

EXPECTED = (
    "expected a name, arrays (X, y), a torch Dataset of (image, label), or a pair of these to learn"
    " and test with"
)


def source_of(given: Any, options: SourceOptions) -> Source:
    """Return a source of Python objects.

    Args:
        given: arrays (X, y), with X embeddings (n, d) of floats or images (n, h, w, 3) or (n, 3, h,
            w) of uint8, and y (n,) integers or names; a torch ``Dataset`` whose items are (image,
            label), an image being one of Pillow or an array of uint8; or a pair of either, to learn
            and to test with.
        options: share and seed of what is held out where there is nothing to test with.

    Raises:
        UsageError: something else.
        DataError: labels that do not fit, or a class without a training sample.
    """
    if isinstance(given, Source):
        return given
    if _is_pair(given) and all(_is_pair(part) or _is_data_set(part) for part in given):
        parts = list(given)
    else:
        parts = [given]
    read = [_read(part) for part in parts]

    def make(part: int, positions: np.ndarray) -> SampleSet:
        return read[part][2](positions)

    return of_parts([labels for labels, _, _ in read], make, options, "the data", read[0][1])


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2


def _is_data_set(given: Any) -> bool:
    unlike = isinstance(given, tuple) or hasattr(given, "shape")
    return hasattr(given, "__getitem__") and hasattr(given, "__len__") and not unlike


Read = tuple[Sequence[Any], Sequence[str] | None, Callable[[np.ndarray], SampleSet]]
"""Labels; names of the labels 0, 1, …, if there are some; and function of class positions (n,) that
makes the set.
"""


def _read(part: Any) -> Read:
    """Look at a pair of arrays or a data set."""
    tensors = getattr(part, "tensors", None)
    # of a TensorDataset
    if tensors is not None and len(tensors) == 2:
        part = tensors
    else:
        part = part
    if _is_pair(part):
        x = np.asarray(part[0])
        y = np.asarray(part[1])
        if y.shape != x.shape[:1]:
            raise UsageError(
                f"X has shape {x.shape} and y {y.shape}, expected a label for each sample:"
                f" {EXPECTED}"
            )
        if x.ndim == 2 and x.dtype.kind == "f":
            return y.tolist(), None, lambda labels: EmbeddingSet(x, labels, Path("X"))
        if x.dtype != np.uint8 or x.ndim not in (3, 4):
            raise UsageError(
                f"X has shape {x.shape} and dtype {x.dtype}, expected (n, d) floats or (n, h, w, 3)"
                " uint8"
            )
        return y.tolist(), None, partial(ArraySet, partial(_of_array, x))
    if not _is_data_set(part):
        raise UsageError(f"the data source is a {type(part).__name__}, {EXPECTED}")
    unlike = "the data are no pairs of sample and label"
    with explained(UsageError, unlike, TypeError, IndexError, KeyError, end=f": {EXPECTED}"):
        targets = getattr(part, "targets", None)
        if targets is None:
            given = [part[i][1] for i in range(len(part))]
        else:
            given = targets
        picture(part[0][0], "the first item of the data set")
    labels = [label.item() if hasattr(label, "item") else label for label in given]
    return labels, getattr(part, "classes", None), partial(ArraySet, partial(item_of, part))


def _of_array(pixels: np.ndarray, index: int) -> Image.Image:
    return picture(pixels[index], f"X[{index}]")
