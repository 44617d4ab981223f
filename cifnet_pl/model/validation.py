"""Build a model from a description and tensors that come from a file, and check that they fit together.

Nothing in the file is executed, and no memory is allocated before the sizes have been compared with what is stored.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from cifnet_pl import heads
from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.backbones.precision import PRECISIONS
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.description import BackboneTable, Description, class_names, parse, shown
from cifnet_pl.model.photo_hashes import PhotoHashes
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
    about = parse(Description, description, where)
    names = class_names(about.class_names, where)
    if sum(about.task_sizes) != len(names):
        raise CheckpointError(
            f"{where} is damaged: its task_sizes are of {sum(about.task_sizes)} classes, not {len(names)}"
        )
    if about.precision not in PRECISIONS:
        raise CheckpointError(
            f"{where} was learned in precision {shown(about.precision)}, expected {', '.join(PRECISIONS)}"
        )
    backbone = _backbone(about.backbone, where, download, engine)
    head = _head(about.head, backbone.features, shapes, where)
    buffer = _buffer(about.buffer, where)
    check_shapes(head, buffer, about.task_sizes, shapes, where)
    tensors = read()
    load_part(head, "head.", tensors, where)
    check_head(head, about.task_sizes, where)
    if buffer is not None:
        load_part(buffer, "buffer.", tensors, where)
        check_buffer(buffer, head, where)
    photos = PhotoHashes()  # empty for files of versions that kept no hashes
    if any(name.startswith("photos.") for name in tensors):
        load_part(photos, "photos.", tensors, where)
        photos.check(head.classes, where)
    images = about.images
    return Classifier(
        backbone,
        head,
        buffer,
        names,
        images.image_size,
        images.crop_ratio,
        images.held_back,
        about.history,
        about.precision,
        engines=list(about.engines),
        photos=photos,
    )


# ---------------------------------------------------------------------- parts


def _backbone(about: BackboneTable, where: str, download: bool, engine: str) -> Backbone:
    backbone = build_backbone(about.name, about.architecture, download, engine)
    if backbone.sha256 != about.sha256:
        raise CheckpointError(
            f"{where} was made with other weights of {printable(about.name)} (sha256 {printable(about.sha256[:12])}…) "
            f"than those on this machine ({backbone.sha256[:12]}…): install the same version of the weights"
        )
    return backbone


def _head(about: Mapping[str, Any], features: int, shapes: Shapes, where: str) -> Head:
    settings = dict(about)
    name = settings.pop("class", None)
    if not isinstance(name, str) or name not in HEADS:
        raise CheckpointError(f"{where}: {unknown_name('head', printable(str(name)), HEADS)}")
    if settings.get("in_features") != features:
        raise _wrong(where, "head.in_features", settings.get("in_features"), f"the backbone's width {features}")
    defaults = inspect.signature(HEADS[name]).parameters
    for key, value in settings.items():
        kinds = (int,) if key in SIZES else _kinds(defaults[key].default if key in defaults else None)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _wrong(where, f"head.{key}", value, " or ".join(kind.__name__ for kind in kinds))
    width = max(features, settings.get("width") or 0)
    stored = 8 * sum(math.prod(shape) for shape in shapes.values())
    if 8 * width**2 > max(FREE_BYTES, 4 * stored):
        raise CheckpointError(f"{where} declares a head of width {width}, but stores only {stored} bytes")
    head = _made(HEADS[name].from_settings, settings, "head", where)
    if head.settings() != settings:
        raise CheckpointError(f"{where}: the settings of {name} are not complete: it is of another version")
    return head


def _kinds(default: Any) -> tuple[type, ...]:
    """What a setting may be whose default is ``default``; some numbers can be words too, like "gcv"."""
    if isinstance(default, bool | int):
        return (type(default),)
    return (int, float, str) if isinstance(default, float | str) else (int, float, str, bool, type(None))


def _buffer(about: Mapping[str, Any] | None, where: str) -> CalibrationBuffer | None:
    if about is None:
        return None
    if set(about) != set(CalibrationBuffer(1).settings()):
        raise CheckpointError(f"{where}: the settings of the buffer are not those of this version")
    kinds: dict[str, tuple[type, ...]] = {"per_class": (int, type(None)), "strategy": (str,), "oversample": (bool,)}
    for key, value in about.items():
        if type(value) not in kinds.get(key, (int,)):
            raise _wrong(where, f"buffer.{key}", value, kinds.get(key, (int,))[0].__name__)
    return _made(lambda known: CalibrationBuffer(**known), about, "buffer", where)


def _wrong(where: str, entry: str, given: Any, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{where} is damaged or not a model: {printable(entry)} is {shown(given)}, expected {expected}"
    )


def _made(make: Callable[[Mapping[str, Any]], T], settings: Mapping[str, Any], name: str, where: str) -> T:
    try:
        return make(settings)
    except Exception as error:  # settings from outside can make any constructor fail in its own way
        raise CheckpointError(f"{where}: the settings of {name} are refused: {first_line(error)}") from error
