"""From a description and tensors, both from outside and believed in nothing, to a model that holds together.

Nothing is executed and nothing is allocated before its size has been compared with what is really there.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor

from cifnet_pl import heads
from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.backbones.engines import ENGINES
from cifnet_pl.backbones.precision import FLOAT32, PRECISIONS
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.data.images import LARGEST_IMAGE
from cifnet_pl.heads import Head
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.description import Entry, class_names, event, shown
from cifnet_pl.model.tensor_checks import check_buffer, check_head, check_shapes, load_part
from cifnet_pl.utilities.errors import CheckpointError, unknown_name
from cifnet_pl.utilities.text import first_line, printable

T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]

FREE_BYTES = 2**29
"""Memory that a head may take whatever its stored tensors are; above, in proportion to them."""

SIZES = ("in_features", "width")
"""Settings of heads that memory depends on."""

HEADS: dict[str, type[Head]] = {name: getattr(heads, name) for name in heads.__all__ if name != "Head"}
"""The heads that can be stored: a file never names code to be imported."""


def assemble(
    description: Any,
    shapes: Shapes,
    read: Callable[[], Mapping[str, Tensor]],
    where: str,
    download: bool = False,
    engine: str = "auto",
) -> Classifier:
    """Build a model from what a file says.

    Args:
        description: as :meth:`Classifier.describe` gives it.
        shapes: shape of every tensor in the file.
        read: () → those tensors, called once the sizes are known to be right.
        where: the file, for messages.
        download: whether weights of the backbone that are not on this machine may be fetched.
        engine: what is to run the backbone from now on.

    Raises:
        CheckpointError: anything about the file that is not as it should be.
        CifnetError: the backbone cannot be built on this machine.
    """
    entry = Entry(description, where)
    names = class_names(entry.get("class_names", list), where)
    history = [event(item, where) for item in entry.get("history", list)]
    images = entry.sub("images")
    image_size = images.get("image_size", int)
    crop_ratio = float(images.get("crop_ratio", (int, float)))
    if not 1 <= image_size <= LARGEST_IMAGE or not 0 < crop_ratio <= 1:
        raise images.wrong("image_size", f"{image_size} with crop_ratio {crop_ratio:g}", f"1 to {LARGEST_IMAGE} pixels")
    precision = entry.get("precision", str) if "precision" in entry.content else FLOAT32  # not told by older models
    if precision not in PRECISIONS:
        raise CheckpointError(f"{where} was learned in precision {shown(precision)}, expected {', '.join(PRECISIONS)}")
    backbone = _backbone(entry.sub("backbone"), download, engine)
    head = _head(entry.sub("head"), backbone.features, shapes)
    buffer = _buffer(entry)
    tasks = _task_sizes(entry, len(names))
    check_shapes(head, buffer, tasks, shapes, where)
    tensors = read()
    load_part(head, "head.", tensors, where)
    check_head(head, tasks, where)
    if buffer is not None:
        load_part(buffer, "buffer.", tensors, where)
        check_buffer(buffer, head, where)
    held_back = images.get("held_back", (list, type(None)))
    return Classifier(
        backbone,
        head,
        buffer,
        names,
        image_size,
        crop_ratio,
        _held_back(held_back, images) if held_back else None,
        history,
        precision,
        engines=_engines(entry),
    )


# ---------------------------------------------------------------------- parts


def _engines(entry: Entry) -> list[str]:
    """The engines that embedded what was learned; older models do not tell, and knew only torch."""
    if "engines" not in entry.content:
        return ["torch"]
    names = entry.get("engines", list)
    known = [name for name in ENGINES if name != "auto"]
    if not all(isinstance(name, str) and name in known for name in names) or len(set(names)) < len(names):
        raise entry.wrong("engines", shown(names), f"a list of {' and '.join(known)}")
    return list(names)


def _backbone(entry: Entry, download: bool, engine: str) -> Backbone:
    name, digest = entry.get("name", str), entry.get("sha256", str)
    backbone = build_backbone(name, entry.get("architecture", (str, type(None))), download, engine)
    if backbone.sha256 != digest:
        raise CheckpointError(
            f"{entry.where} was made with other weights of {printable(name)} (sha256 {printable(digest[:12])}…) "
            f"than those on this machine ({backbone.sha256[:12]}…): install the same version of the weights"
        )
    return backbone


def _head(entry: Entry, features: int, shapes: Shapes) -> Head:
    settings = dict(entry.content)
    name = settings.pop("class", None)
    if not isinstance(name, str) or name not in HEADS:
        raise CheckpointError(f"{entry.where}: {unknown_name('head', printable(str(name)), HEADS)}")
    if settings.get("in_features") != features:
        raise entry.wrong("in_features", shown(settings.get("in_features")), f"the backbone's width {features}")
    defaults = inspect.signature(HEADS[name]).parameters
    for key in settings:
        entry.get(key, (int,) if key in SIZES else _kinds(defaults[key].default if key in defaults else None))
    width = max(features, settings.get("width") or 0)
    stored = 8 * sum(math.prod(shape) for shape in shapes.values())
    if 8 * width**2 > max(FREE_BYTES, 4 * stored):
        raise CheckpointError(f"{entry.where} declares a head of width {width}, but stores only {stored} bytes")
    head = _made(HEADS[name].from_settings, settings, entry)
    if head.settings() != settings:
        raise CheckpointError(f"{entry.where}: the settings of {name} are not complete: it is of another version")
    return head


def _kinds(default: Any) -> tuple[type, ...]:
    """What a setting may be whose default is ``default``; some numbers can be words too, like "gcv"."""
    if isinstance(default, bool | int):
        return (type(default),)
    return (int, float, str) if isinstance(default, float | str) else (int, float, str, bool, type(None))


def _buffer(entry: Entry) -> CalibrationBuffer | None:
    if entry.get("buffer", (dict, type(None))) is None:
        return None
    settings = entry.sub("buffer")
    if set(settings.content) != set(CalibrationBuffer(1).settings()):
        raise CheckpointError(f"{entry.where}: the settings of the buffer are not those of this version")
    kinds: dict[str, tuple[type, ...]] = {"per_class": (int, type(None)), "strategy": (str,), "oversample": (bool,)}
    checked = {key: settings.get(key, kinds.get(key, (int,))) for key in settings.content}
    return _made(lambda known: CalibrationBuffer(**known), checked, settings)


def _task_sizes(entry: Entry, classes: int) -> list[int]:
    sizes = entry.get("task_sizes", list)
    if not all(type(size) is int and size > 0 for size in sizes) or sum(sizes) != classes:
        raise entry.wrong("task_sizes", shown(sizes), f"positive numbers with the sum {classes}")
    return list(sizes)


def _made(make: Callable[[Mapping[str, Any]], T], settings: Mapping[str, Any], entry: Entry) -> T:
    try:
        return make(settings)
    except Exception as error:  # settings from outside can make any constructor fail in its own way
        raise CheckpointError(
            f"{entry.where}: the settings of {entry.name} are refused: {first_line(error)}"
        ) from error


def _held_back(values: Sequence[Any], entry: Entry) -> tuple[float, int]:
    if len(values) != 2 or type(values[0]) not in (int, float) or type(values[1]) is not int or not 0 < values[0] < 1:
        raise entry.wrong("held_back", shown(values), "a share and a seed")
    return float(values[0]), values[1]
