"""Build a model from a description and tensors that come from a file, and check that they fit together.

Nothing in the file is executed, and no memory is allocated before the sizes have been compared with what is stored.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor

from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.backbones.precision import PRECISIONS
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import HEADS, Head
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.description import BackboneTable, Description, class_names, outside_parts, parse, shown
from cifnet_pl.model.photo_hashes import PhotoHashes
from cifnet_pl.model.tensor_checks import check_buffer, check_head, check_shapes, load_part
from cifnet_pl.utilities.errors import CheckpointError, UsageError, unknown_name
from cifnet_pl.utilities.plugins import import_part, names_import
from cifnet_pl.utilities.text import first_line, printable

T = TypeVar("T")
Shapes = Mapping[str, tuple[int, ...]]

FREE_BYTES = 2**29
"""Memory that a head may always take; above that, in proportion to its stored tensors."""

SIZES = ("in_features", "width")
"""Settings of heads that memory depends on."""


def assemble(
    description: Any,
    shapes: Shapes,
    read: Callable[[], Mapping[str, Tensor]],
    where: str,
    download: bool = False,
    engine: str = "auto",
    trust: bool = False,
    solved: bool = True,
    backbone: Backbone | None = None,
) -> Classifier:
    """Build a model from what a file says.

    Args:
        description: as :meth:`Classifier.describe` gives it.
        shapes: shape of every tensor in the file.
        read: () → those tensors, called once the sizes are known to be right.
        where: the file, for messages.
        download: whether weights of the backbone that are not on this machine may be fetched.
        engine: what is to run the backbone from now on.
        trust: whether what the file names may be imported from outside the package, which executes it.
        solved: whether the file is of a model that can predict, not of sums alone.
        backbone: as for :func:`~cifnet_pl.model.loading.read_bundle`.

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
    _refuse_imports(about, where, trust)
    if backbone is None or backbone.describe() != about.backbone.model_dump():
        backbone = _backbone(about.backbone, where, download, engine)
    head = _head(about.head, backbone.features, shapes, where)
    buffer = _buffer(about.buffer, where)
    check_shapes(head, buffer, about.task_sizes, shapes, where)
    tensors = read()
    load_part(head, "head.", tensors, where)
    check_head(head, about.task_sizes, where, solved)
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


def _refuse_imports(about: Description, where: str, trust: bool) -> None:
    """Raise CheckpointError if the model needs code from outside the package, unless the user trusts it."""
    wanted = outside_parts(about.head.get("class"), about.backbone.name, about.backbone.architecture)
    if wanted and not trust:
        listed = " and ".join(printable(name)[:200] for name in wanted)
        raise CheckpointError(
            f"{where} needs code from outside cifnet_pl, loading it would import {listed}: "
            "add --trust (Python: trust=True) if you know that code and trust it"
        )


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
    kind = _kind_of_head(name, where)
    if settings.get("in_features") != features:
        raise _wrong(where, "head.in_features", settings.get("in_features"), f"the backbone's width {features}")
    defaults = inspect.signature(kind).parameters
    for key, value in settings.items():
        kinds = (int,) if key in SIZES else _kinds(defaults[key].default if key in defaults else None)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise _wrong(where, f"head.{key}", value, " or ".join(kind.__name__ for kind in kinds))
    width = max(features, settings.get("width") or 0)
    stored = 8 * sum(math.prod(shape) for shape in shapes.values())
    if 8 * width**2 > max(FREE_BYTES, 4 * stored):
        raise CheckpointError(f"{where} declares a head of width {width}, but stores only {stored} bytes")
    head = _made(kind.from_settings, settings, "head", where)
    if head.settings() != settings:
        raise CheckpointError(f"{where}: the settings of {name} are not complete: it is of another version")
    return head


def _kind_of_head(name: Any, where: str) -> type[Head]:
    """Return the class of a head of this package, or of one from outside that the user trusts."""
    if isinstance(name, str) and name in HEADS:
        return HEADS[name]
    if not isinstance(name, str) or not names_import(name):
        raise CheckpointError(f"{where}: {unknown_name('head', printable(str(name)), HEADS)}")
    try:
        kind = import_part(name)
    except UsageError as error:
        raise CheckpointError(f"{where}: {error}") from error
    if not isinstance(kind, type) or not issubclass(kind, Head):
        raise CheckpointError(f"{where}: {name} is no head, expected a subclass of cifnet_pl.heads.Head")
    return kind


def _kinds(default: Any) -> tuple[type, ...]:
    """Return the types that a setting with this default may have; some numbers can also be words such as "gcv"."""
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


def _wrong(where: str, entry: str, value: Any, expected: str) -> CheckpointError:
    return CheckpointError(
        f"{where} is damaged or not a model: {printable(entry)} is {shown(value)}, expected {expected}"
    )


def _made(make: Callable[[Mapping[str, Any]], T], settings: Mapping[str, Any], name: str, where: str) -> T:
    try:
        return make(settings)
    except Exception as error:  # settings from outside can make any constructor fail in its own way
        raise CheckpointError(f"{where}: the settings of {name} are refused: {first_line(error)}") from error
