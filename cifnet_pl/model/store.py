"""Load any stored model by one function: a run's folder, one of its checkpoints, or a bundle."""

from __future__ import annotations

import inspect
import math
import zipfile
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from pydantic import Field
from torch import Tensor

from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.backbones.engines import PRECISIONS
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import HEADS, Head
from cifnet_pl.heads.base import Samples, as_stored_now, fits
from cifnet_pl.model.bundle import is_bundle, open_bundle
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.description import (
    BackboneTable,
    Description,
    PhotoHashes,
    Table,
    check_format,
    class_names,
    outside_parts,
    parse,
    shown,
)
from cifnet_pl.model.hub import HubName, fetch, is_hub_name
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError, unknown_name
from cifnet_pl.utilities.plugins import import_part, names_import
from cifnet_pl.utilities.run_folders import CHECKPOINT, versions
from cifnet_pl.utilities.text import first_line, printable

Shapes = Mapping[str, tuple[int, ...]]


def check_shapes(
    head: Head, buffer: CalibrationBuffer | None, tasks: Sequence[int], shapes: Shapes, where: str
) -> None:
    """Compare the shapes in a file with those that a head and a buffer expect.

    Args:
        head: an empty head with the settings of the file.
        buffer: an empty buffer, or None.
        tasks: number of classes of each task.
        shapes: name of each stored tensor → its shape.
        where: what an error calls the file.

    Raises:
        CheckpointError: a tensor too many or too few, or of another shape.
    """
    shapes = as_stored_now(shapes)
    expected = {f"head.{name}": sizes for name, sizes in head.expected_shapes(tasks).items()}
    for name, sizes in expected.items():
        if not fits(shapes.get(name, (-1,)), sizes):
            raise CheckpointError(
                f"{where} is damaged or of another version: tensor {name} has shape {shapes.get(name)}, which "
                f"{sum(tasks)} classes in {len(tasks)} tasks and an embedding of width {head.in_features} do not have"
            )
    if buffer is not None:
        expected |= {f"buffer.{name}": () for name in buffer.state_dict()}
    if any(name.startswith("photos.") for name in shapes):
        expected |= {f"photos.{name}": () for name in PhotoHashes().state_dict()}
    # Empty tensors hold nothing: older versions stored some that their head had no use for.
    empty = {name for name, shape in shapes.items() if name.startswith("head.") and not math.prod(shape)}
    foreign = sorted(set(shapes) - set(expected) - empty)
    if foreign:
        raise CheckpointError(f"{where} holds a tensor '{printable(foreign[0][:60])}' that its head does not have")


def load_part(
    module: Head | CalibrationBuffer | PhotoHashes, prefix: str, tensors: Mapping[str, Tensor], where: str
) -> None:
    """Load the tensors whose names begin with ``prefix``.

    Args:
        module: it is changed in place.
        prefix: of the names of its tensors, with the dot.
        tensors: of the whole file.
        where: what an error calls the file.

    Raises:
        CheckpointError: one is not a dense, finite tensor whose memory is all there, or of another dtype.
    """
    state = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
    for key, value in state.items():
        if not _is_plain(value):
            raise CheckpointError(f"{where} holds '{printable(key)}', which is not a whole tensor of finite numbers")
    try:
        module.load_state_dict(state, strict=True)
    except CifnetError as error:
        raise CheckpointError(f"{where} is damaged: {error}") from error
    except Exception as error:  # tensors from outside can make loading fail in many ways
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"{where} does not fit a {type(module).__name__}: {reason}") from error
    for key, value in module.state_dict().items():
        if value.dtype != state[key].dtype:
            raise CheckpointError(f"{where} holds '{key}' in {state[key].dtype}, expected {value.dtype}")


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is dense, finite and complete: a view could claim any size, NaN would spread."""
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool)
        and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
        and bool(torch.isfinite(tensor).all())
    )


def check_head(head: Head, tasks: Sequence[int], where: str, solved: bool = True) -> None:
    """Check the numbers of a loaded head: whether it is solved, and scores its classes.

    Args:
        head: the loaded head.
        tasks: number of classes of each task.
        where: what an error calls the file.
        solved: whether it must be solved.

    Raises:
        CheckpointError: they do not fit together.
    """
    if solved != bool(head.solved) or bool(head.under_way):
        raise CheckpointError(f"{where} was stored in the middle of a task: go on with that run, then store it")
    classes, numbers = sum(tasks), head.task_of.tolist()
    in_order = numbers == [k for k, size in enumerate(tasks) for _ in range(size)]
    if len(set(head.classes)) < classes or not in_order:
        raise CheckpointError(f"{where} is damaged: the labels or tasks of its classes are not in order")
    if not float(head.temperature) > 0:
        raise CheckpointError(f"{where} is damaged: its temperature is {float(head.temperature):g}")
    for module in head.modules():
        if isinstance(module, Samples):
            same = len(module.z) == len(module.y) == len(module.weight)
            if not same or not set(module.y.tolist()) <= set(head.classes):
                raise CheckpointError(f"{where} is damaged: its samples are not all of classes that it knows")
    if not solved:
        if min(head.class_counts().values()) < 0:
            raise CheckpointError(f"{where} is damaged: it has a class with fewer than no samples")
        return
    try:
        counts = head.class_counts()
        scores = head(torch.zeros(1, head.in_features))
    except Exception as error:  # numbers that do not go together fail wherever they meet first
        raise CheckpointError(f"{where} is damaged: its tensors do not go together ({first_line(error)})") from error
    if min(counts.values()) < 1:
        raise CheckpointError(f"{where} is damaged: it has a class without photos")
    if scores.shape != (1, classes) or not torch.isfinite(scores).all():
        raise CheckpointError(f"{where} is damaged: its head does not give {classes} finite scores")


def check_buffer(buffer: CalibrationBuffer, head: Head, where: str) -> None:
    """Check the tensors of a loaded buffer, among themselves and against the head.

    Args:
        buffer: the loaded buffer.
        head: the loaded head.
        where: what an error calls the file.

    Raises:
        CheckpointError: they do not fit together.
    """
    z, y = buffer.items()
    whole = len(z) == len(y) == len(buffer.key) and z.is_floating_point()
    if not whole or (len(z) and z.shape[1] != head.in_features):
        raise CheckpointError(f"{where} is damaged: the parts of its buffer do not go together")
    if not set(y.tolist()) <= set(head.classes):
        raise CheckpointError(f"{where} is damaged: its buffer holds classes that the head does not know")


T = TypeVar("T")

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
        backbone: as for :func:`~cifnet_pl.model.store.read_bundle`.

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


MODULE = "CIFNetModule"


def load(
    path: Path | str,
    device: torch.device | str | None = None,
    download: bool = False,
    engine: str = "auto",
    trust: bool = False,
) -> Classifier:
    """Load a model that can classify, and go on learning.

    Args:
        path: a bundle, a run's folder (``lightning_logs/NAME/version_N``, or ``lightning_logs/NAME`` for the newest
            version), a checkpoint file, or ``hf:user/model`` of the Hugging Face hub.
        device: where to put it; None for the first GPU if there is one, else the CPU.
        download: whether a model of the hub, and weights of the backbone, may be fetched that are not on this machine.
        engine: what runs the backbone, :data:`cifnet_pl.backbones.engines.EngineChoice`.
        trust: whether a head or network from outside this package may be imported, which executes its code; without it
            nothing from the file is ever executed.

    Raises:
        UsageError: an unknown engine.
        CheckpointError: there is no such model, or the file is damaged, hostile, or of another version.
        CifnetError: its backbone cannot be built on this machine.
    """
    on_hub = is_hub_name(str(path))
    location = fetch(HubName.of(str(path)), download) if on_hub else Path(path).expanduser()
    if is_bundle(location):
        model = read_bundle(location, download, engine, trust)
    else:
        model = _from_checkpoint(checkpoint_of(location), download, engine, trust)
    return model.to(device if device is not None else "cuda" if torch.cuda.is_available() else "cpu")


def read_bundle(
    folder: Path,
    download: bool = False,
    engine: str = "auto",
    trust: bool = False,
    backbone: Backbone | None = None,
) -> Classifier:
    """Read the model of a bundle.

    Args:
        folder: of the bundle.
        download, engine, trust: as for :func:`load`.
        backbone: one that is in memory already; the model shares it if it is the one that the bundle names.

    Raises:
        CheckpointError, CifnetError, UsageError: as for :func:`load`.
    """
    with open_bundle(folder) as (description, shapes, read):
        return assemble(description, shapes, read, str(folder), download, engine, trust, backbone=backbone)


def checkpoint_of(path: Path) -> Path:
    """Find the checkpoint file of a run.

    Args:
        path: of the file, of a run's folder, or of an experiment, whose newest run is taken.

    Raises:
        CheckpointError: there is none.
    """
    if path.is_file():
        return path
    if not path.exists():
        raise CheckpointError(f"no model at {path}: expected a run's folder, a checkpoint file or a bundle")
    newest = [folder / CHECKPOINT for folder in reversed(versions(path))]
    for candidate in (path / CHECKPOINT, *newest):
        if candidate.is_file():
            return candidate
    raise CheckpointError(f"{path} is neither a bundle (no config.json) nor a run's folder (no {CHECKPOINT})")


OBJECTS = (
    "it holds more than tensors and plain containers, such as a whole module; loading these would execute code from "
    "the file"
)


def read_checkpoint(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint file of a run without executing anything from it.

    Args:
        path: the file.
        map_location: device for the tensors, as for ``torch.load``.

    Raises:
        CheckpointError: the file is missing, truncated, compressed (it could grow without bound), not of this package,
            or holds more than tensors and plain containers.
    """
    if not path.is_file():
        raise CheckpointError(f"no checkpoint at {path}: look in a run's folder for {CHECKPOINT}")
    try:
        with zipfile.ZipFile(path) as archive:
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                raise CheckpointError(f"{path} is compressed: it was not written by this package")
            damaged = archive.testzip()  # torch.load does not look at the checksums
            if damaged is not None:
                raise CheckpointError(f"{path} is damaged: the checksum of {printable(damaged)} is wrong; use a copy")
        content = torch.load(path, map_location=map_location, weights_only=True)
    except CheckpointError:
        raise
    except Exception as error:  # the unpickler fails in many ways on damaged or hostile files
        # torch's own advice is to execute the file, with escape codes for a terminal in it.
        objects = "Weights only load failed" in str(error)
        reason = OBJECTS if objects else printable(first_line(error))[:200]
        raise CheckpointError(f"cannot read checkpoint {path}, it is damaged or not a checkpoint: {reason}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, expected a checkpoint")
    missing = [key for key in ("cifnet", "state_dict", "pytorch-lightning_version") if key not in content]
    if missing:
        raise CheckpointError(f"{path} is no checkpoint of a run of this package: it has no '{missing[0]}'")
    return content


class SettingsTable(Table):
    """The settings of a run: the class of its module, and in files of format 1 head and buffer as well."""

    module: str
    head: dict[str, Any] = Field(default_factory=dict)
    buffer: dict[str, Any] = Field(default_factory=dict)


class RunTable(Table):
    """The state of a run, as far as a model needs it."""

    under_way: bool
    settings: SettingsTable


class RecordTable(Table):
    """Measurements of the tasks of a run."""

    rows: list[dict[str, Any]]
    dates: list[str | None] = Field(default_factory=list)


def _from_checkpoint(path: Path, download: bool, engine: str, trust: bool) -> Classifier:
    content, where = read_checkpoint(path), str(path)
    description = content["cifnet"]
    if isinstance(description, dict):
        check_format(description.get("format"), where)
    run = parse(RunTable, description, where)
    if run.settings.module != MODULE:
        raise CheckpointError(f"{path} is of a {printable(run.settings.module)}, expected a {MODULE}")
    if run.under_way:
        raise CheckpointError(f"{path} was saved in the middle of a task: finish the run with --ckpt_path last first")
    if description["format"] == 1:
        empty = run.settings.buffer == {"capacity": 0}
        description = {**description, "head": run.settings.head, "buffer": None if empty else run.settings.buffer}
    history = _history(content.get("callbacks"), description, where)
    if isinstance(sizes := description.get("task_sizes"), list):
        # Tasks that only brought more samples of known classes are none to the head.
        description = {**description, "task_sizes": [size for size in sizes if size != 0]}
    tensors = _tensors(content["state_dict"], where)
    shapes = {key: tuple(value.shape) for key, value in tensors.items()}
    return assemble({**description, "history": history}, shapes, lambda: tensors, where, download, engine, trust)


def _tensors(state: Any, where: str) -> dict[str, Tensor]:
    if not isinstance(state, dict):
        raise CheckpointError(f"{where} is damaged or not a model: its state_dict is not a table")
    wrong = [key for key, value in state.items() if not isinstance(key, str) or not isinstance(value, Tensor)]
    if wrong:
        raise CheckpointError(f"{where} is damaged: '{printable(str(wrong[0]))}' is not a tensor")
    return dict(state)


def _history(callbacks: Any, description: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    """Return the tasks of a run's record as events with dates and class names."""
    record = callbacks.get("TaskMetrics") if isinstance(callbacks, Mapping) else None
    table = parse(RecordTable, record, where) if record is not None else RecordTable(rows=[])
    rows, names = table.rows, iter(description.get("class_names", []))
    dates = table.dates if len(table.dates) == len(rows) else [None] * len(rows)
    tasks = [list(islice(names, size)) for size in description.get("task_sizes", [])]
    told: list[dict[str, Any]] = [{"date": date} for date in dates]
    if len(tasks) == len(rows):
        told = [{**event, "class_names": task} for event, task in zip(told, tasks, strict=True)]
    columns = {"classes": "classes_seen", "accuracy": "A_k", "seconds": "train_seconds"}
    columns |= {name: name for name in ("energy_kwh", "energy_source")}
    return [
        {"what": "task", **{ours: row.get(theirs) for ours, theirs in columns.items()}, **event}
        for row, event in zip(rows, told, strict=True)
    ]
