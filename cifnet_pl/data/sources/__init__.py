"""Data sources by name: where images and their classes come from. Adding one is one function in ``SOURCES``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image

from cifnet_pl.data.sets import ArraySet, Source, SourceOptions, split_by_seed
from cifnet_pl.data.sources.benchmarks import core50, domains, imagenet100, set_names, tinyimagenet, torchvision_set
from cifnet_pl.data.sources.cifar100 import cifar100
from cifnet_pl.data.sources.embeddings import embeddings
from cifnet_pl.data.sources.folders import folder
from cifnet_pl.data.sources.hugging_face import hugging_face
from cifnet_pl.data.sources.manifests import manifest
from cifnet_pl.data.sources.tar_shards import webdataset
from cifnet_pl.utilities.errors import UsageError, unknown_name
from cifnet_pl.utilities.plugins import entry_point, import_part, names_import, naming, offered


def digits(options: SourceOptions) -> Source:
    """Load scikit-learn's bundled digits: 1797 real 8x8 scans of ten classes, split by seed."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    return split_by_seed([str(c) for c in range(10)], ArraySet(partial(_digit, images), labels), options)


def _digit(images: np.ndarray, index: int) -> Image.Image:
    return Image.fromarray(images[index])


def local_data_set(options: SourceOptions) -> Source:
    """Read a local folder or Parquet file by Hugging Face ``datasets``."""
    return hugging_face("", options)


SOURCES: dict[str, Callable[[SourceOptions], Source]] = {
    "digits": digits,
    "folder": folder,
    "cifar100": cifar100,
    "core50": core50,
    "domains": domains,
    "embeddings": embeddings,
    "hf": local_data_set,
    "imagenet100": imagenet100,
    "manifest": manifest,
    "tinyimagenet": tinyimagenet,
    "webdataset": webdataset,
}
"""Name → function that builds the source; other names are looked up in ``torchvision.datasets``, in any case."""

OWN_PHOTOS = {"folder", "domains", "manifest"}
"""Sources of the user's own photos, which may hold copies; benchmark sets are learned as others learn them."""

OWN_OPTIONS: dict[str, tuple[str, ...]] = {
    "core50": ("stride", "test_sessions"),
    "embeddings": ("embeddings", "labels", "ids", "split"),
    "hf": ("image", "label", "train", "test", "config"),
    "imagenet100": ("class_list",),
    "manifest": ("path", "label", "split", "task", "domain"),
    "webdataset": ("label", "classes"),
}
"""Name → options that this source alone has."""


def build_source(name: str, options: SourceOptions) -> Source:
    """Build a source by name: of ``SOURCES``, ``torchvision:<class>``, ``hf:<name>``, or from outside the package.

    A name with a dot is the import of a function like those of ``SOURCES``; an installed package offers others as entry
    points of the group ``cifnet_pl.sources``.

    Args:
        name: of the source.
        options: passed on to it.

    Raises:
        UsageError: unknown name, or an option that is missing.
        DataError: data that is missing or has no classes.
    """
    prefixed = name.startswith(("hf:", "torchvision:"))
    factory = (
        None if prefixed else name if names_import(name) else None if name in SOURCES else entry_point("sources", name)
    )
    if factory is not None:
        return _from_outside(factory, options)
    if options.group is not None and name != "folder":
        raise UsageError(f"--data.group is for photos in class folders: leave it out for data source {name}")
    known_options = OWN_OPTIONS.get("hf" if name.startswith("hf:") else name, ())
    unknown = [option for option in options.own if option not in known_options]
    if unknown and known_options:
        raise unknown_name(f"option of data source {name}", unknown[0], known_options)
    if unknown:
        raise UsageError(f"data source {name} has no options of its own: leave --data.options.{unknown[0]} out")
    if name.startswith("hf:"):
        return hugging_face(name.removeprefix("hf:"), options)
    if name in SOURCES:
        return SOURCES[name](options)
    known = {plain.lower(): plain for plain in set_names()}
    plain = known.get(name.removeprefix("torchvision:").lower())
    if plain is not None:
        return torchvision_set(plain, options)
    prefix = "torchvision:" if name.startswith("torchvision:") else ""
    names = [*SOURCES, *offered("sources"), *(prefix + plain for plain in known.values())]
    raise unknown_name("data source", name, names)


def _from_outside(name: str, options: SourceOptions) -> Source:
    make = import_part(name)
    with naming(f"data source {name}"):
        source = make(options)
    if not isinstance(source, Source):
        raise UsageError(
            f"data source {name} gives a {type(source).__name__}, expected a Source (docs/outside_parts.md)"
        )
    return source
