"""From a description and tensors, both from outside and believed in nothing, to a model that holds together.

Nothing is executed and nothing is allocated before its size has been compared with what is really there.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeVar

from torch import Tensor

from cifnet_pl import heads
from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.checks import check_buffer, check_head, check_shapes, load_part
from cifnet_pl.classifier import Classifier, Event
from cifnet_pl.data.images import LARGEST_IMAGE, first_line, has_controls, printable
from cifnet_pl.errors import CheckpointError, unknown_name
from cifnet_pl.heads import Head
from cifnet_pl.precision import FLOAT32, PRECISIONS

T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]

FREE_BYTES = 2**29
"""Memory that a head may take whatever its stored tensors are; above, in proportion to them."""

SIZES = ("in_features", "width")
"""Settings of heads that memory depends on."""

HEADS: dict[str, type[Head]] = {name: getattr(heads, name) for name in heads.__all__ if name != "Head"}
"""The heads that can be stored: a file never names code to be imported."""


def assemble(
    description: Any, shapes: Shapes, read: Callable[[], Mapping[str, Tensor]], where: str, download: bool = False
) -> Classifier:
    """Build a model from what a file says.

    Args:
        description: as :meth:`Classifier.describe` gives it.
        shapes: shape of every tensor in the file.
        read: () → those tensors, called once the sizes are known to be right.
        where: the file, for messages.
        download: whether weights of the backbone that are not on this machine may be fetched.

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
        raise CheckpointError(f"{where} was learned in precision {_shown(precision)}, expected {', '.join(PRECISIONS)}")
    backbone = _backbone(entry.sub("backbone"), download)
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
    )


class Entry:
    """A JSON object whose entries are fetched with their types checked."""

    def __init__(self, content: Any, where: str, name: str = "its description"):
        if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
            raise CheckpointError(f"{where} is damaged or not a model: {name} is not a table")
        self.content, self.where, self.name = content, where, name

    def get(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """The entry ``key``, of one of the types ``kind``; a boolean does not count as a number."""
        kinds = kind if isinstance(kind, tuple) else (kind,)
        value = self.content.get(key)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.wrong(key, type(value).__name__, " or ".join(k.__name__ for k in kinds))
        if isinstance(value, float) and not math.isfinite(value):
            raise self.wrong(key, str(value), "a finite number")
        return value

    def sub(self, key: str) -> Entry:
        """The entry ``key``, which is an object itself."""
        return Entry(self.content.get(key), self.where, key)

    def wrong(self, key: str, given: str, expected: str) -> CheckpointError:
        """An error for an entry that is not as it should be."""
        return CheckpointError(f"{self.where} is damaged or not a model: {self.name}.{key} is {given}, not {expected}")


def class_names(names: Sequence[Any], where: str) -> list[str]:
    """``names``, if each is a plain, unique name that is safe to show and to use within a path.

    Raises:
        CheckpointError: no name, one that occurs twice or is not text, control characters, or a path that leads out of
            the folder it is joined to.
    """
    if not names:
        raise CheckpointError(f"{where} names no class")
    for name in names:
        if not isinstance(name, str) or not name or len(name) > 1000:
            raise CheckpointError(
                f"{where} has {_shown(name)} for a class name, expected a text of 1 to 1000 characters"
            )
        if has_controls(name):
            raise CheckpointError(f"{where} has control characters in class name {_shown(name)}: rename the class")
        if any(part in ("", ".", "..") for part in name.replace("\\", "/").split("/")):
            raise CheckpointError(f"{where} has a path for a class name, {_shown(name)}: rename the class")
    if len(set(names)) < len(names):
        raise CheckpointError(f"{where} has class {_shown(Counter(names).most_common(1)[0][0])} twice")
    return list(names)


def event(item: Any, where: str) -> Event:
    """An entry of the history."""
    kinds: dict[str, tuple[type, ...]] = {"what": (str,), "classes": (int,), "photos": (int, type(None))}
    kinds["energy_source"] = (str, type(None))
    entry = Entry(item, where, "history")
    known = [f.name for f in fields(Event)]
    if set(entry.content) != set(known):
        raise CheckpointError(f"{where} is damaged or not a model: its history has unknown entries")
    return Event(**{name: entry.get(name, kinds.get(name, (int, float, type(None)))) for name in known})


# ---------------------------------------------------------------------- parts


def _backbone(entry: Entry, download: bool) -> Backbone:
    name, digest = entry.get("name", str), entry.get("sha256", str)
    backbone = build_backbone(name, entry.get("architecture", (str, type(None))), download)
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
        raise entry.wrong("in_features", _shown(settings.get("in_features")), f"the backbone's width {features}")
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
        raise entry.wrong("task_sizes", _shown(sizes), f"positive numbers with the sum {classes}")
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
        raise entry.wrong("held_back", _shown(values), "a share and a seed")
    return float(values[0]), values[1]


def _shown(value: Any) -> str:
    return f"'{printable(str(value)[:60])}'"
