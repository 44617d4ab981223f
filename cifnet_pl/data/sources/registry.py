"""The registry of data sources. A new source is one function, and one line in ``SOURCES``."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from cifnet_pl.data.samples import SampleTable, Source, SourceOptions
from cifnet_pl.data.sources.benchmarks import (
    cifar100,
    core50,
    digits,
    domains,
    imagenet100,
    set_names,
    tinyimagenet,
    torchvision_set,
)
from cifnet_pl.data.sources.folders import folder
from cifnet_pl.data.sources.hugging_face import hugging_face
from cifnet_pl.data.sources.python_objects import source_of
from cifnet_pl.data.sources.tables import embeddings, manifest
from cifnet_pl.data.sources.tar_shards import webdataset
from cifnet_pl.data.splitting import NEAR, SINGLE, split_table
from cifnet_pl.utilities.errors import (
    DataError,
    UsageError,
    explained,
    unknown_name,
)
from cifnet_pl.utilities.plugins import (
    entry_point,
    failure,
    import_object,
    names_import,
    offered,
)

SOURCES: dict[str, Callable[[SourceOptions], SampleTable]] = {
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
"""Name → function that reads the samples.

Other names are looked up in ``torchvision.datasets``, in any case.
"""

OWN_IMAGES = {"folder", "domains", "manifest"}
"""Sources of the user's own images, which may hold duplicates.

Benchmark sets are learned as the literature learns them, duplicates included.
"""

OWN_OPTIONS: dict[str, tuple[str, ...]] = {
    "core50": ("stride",),
    "embeddings": ("embeddings", "labels", "ids", "split"),
    "hf": ("image", "label", "train", "test", "config"),
    "manifest": ("path", "label", "split", "task", "domain", "pattern"),
    "webdataset": ("label", "classes"),
}
"""Name → options that this source alone has."""

HUB_PREFIX = "hf:"
TORCHVISION_PREFIX = "torchvision:"


def build_source(name: str | Any, options: SourceOptions) -> Source:
    """Build a source by its name, or of Python objects as :func:`source_of`.

    A name is one of ``SOURCES``, a class of torchvision.datasets (``torchvision:`` may be left
    out), ``hf:<name>``, or that of a plug-in: a dotted import path of a function like those of
    ``SOURCES``, or an entry point of an installed package in the group ``cifnet_pl.sources``.

    Args:
        name: name of the source, or a Python object.
        options: options of the source.

    Raises:
        UsageError: unknown name, or an option that is missing or unknown.
        DataError: data that is missing or has no classes.
    """
    if isinstance(name, Source):
        return name
    group = SINGLE
    if isinstance(name, str) and name == "folder":
        group = NEAR
    elif options.group is not None:
        raise UsageError(
            "--data.group is for data source folder, images in class folders: leave it out"
        )
    if not isinstance(name, str):
        return split_table(source_of(name), options)
    if name in SOURCES:
        read = SOURCES[name]
    elif name.startswith(HUB_PREFIX):
        read = partial(hugging_face, name.removeprefix(HUB_PREFIX))
    else:
        outside = _plugin_samples(name, options)
        if outside is not None:
            return split_table(outside, options)
        read = partial(torchvision_set, _torchvision_class(name))
    check_own_options(name, options.own)
    unreadable = f"cannot read the data of source {name}"
    with explained(DataError, unreadable, OSError, end="; give this account access"):
        samples = read(options)
    return split_table(samples, options, group)


def check_own_options(name: str, own: Iterable[str]) -> None:
    """Raise UsageError for options, by their names, that a source of this package lacks."""
    kind = "hf" if name.startswith(HUB_PREFIX) else name
    known = OWN_OPTIONS.get(kind, ())
    for option in own:
        if option not in known:
            what = f"option of data source {name}"
            raise unknown_name(what, option, known or ["none"])


def _plugin_samples(name: str, options: SourceOptions) -> SampleTable | None:
    """Return the samples of a plug-in, by its import or entry point; None if there is none."""
    plugin = name if names_import(name) else entry_point("sources", name)
    if plugin is None:
        return None
    make = import_object(plugin)
    with explained(UsageError, f"data source {plugin} fails", reason=failure):
        samples: SampleTable = make(options)
    return samples


def _torchvision_class(name: str) -> str:
    """Return the name of a class of ``torchvision.datasets``, given in any case.

    Raises:
        UsageError: there is no such class.
    """
    names = set_names()
    wanted = name.removeprefix(TORCHVISION_PREFIX)
    for class_name in names:
        if class_name.lower() == wanted.lower():
            return class_name
    known = [*SOURCES, *offered("sources"), *names]
    raise unknown_name("data source", wanted, known)
