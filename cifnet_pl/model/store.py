"""Load any stored model by one function: a run's folder, one of its checkpoints, or a bundle."""

from __future__ import annotations

import inspect
import math
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.backbones.weight_files import load_tensors
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import HEADS, Head
from cifnet_pl.heads.samples import Samples
from cifnet_pl.images.archives import unsafe_entry_message
from cifnet_pl.model.bundle import (
    CONFIG,
    BackboneTable,
    Description,
    Table,
    check_format,
    class_names,
    is_bundle,
    open_bundle,
    parse,
    plugin_imports,
    shown,
)
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.hub import HubName, fetch, is_hub_name
from cifnet_pl.utilities.errors import (
    CheckpointError,
    explained,
    prefixed,
    unknown_name,
)
from cifnet_pl.utilities.growing_tensors import fits
from cifnet_pl.utilities.plugins import import_part, names_import
from cifnet_pl.utilities.run_folders import CHECKPOINT, COMPLETE, versions
from cifnet_pl.utilities.text import printable

Shapes = Mapping[str, tuple[int, ...]]

LARGEST_RATIO = 100
"""Unpacked bytes per byte of a zipped bundle: numbers hardly shrink."""

FREE_BYTES = 2**29
"""Memory that a head may always take; above that, in proportion to its stored tensors."""


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
    """Build a model from what a file says; nothing is executed, and sizes are checked before memory
    is taken.

    Args:
        description: as :meth:`Classifier.describe` gives it.
        shapes: shape of every tensor in the file.
        read: () → those tensors, called once the sizes are known to be right.
        where: the file, for messages.
        download: whether weights of the backbone that are not on this machine may be fetched.
        engine: what is to run the backbone from now on.
        trust: whether what the file names may be imported from outside the package, which executes
            it.
        solved: whether the file is of a model that can predict, not of sums alone.
        backbone: as for :func:`~cifnet_pl.model.store.read_bundle`.

    Raises:
        CheckpointError: anything about the file that is not as it should be.
        CifnetError: the backbone cannot be built on this machine.
    """
    about = parse(Description, description, where)
    names = class_names(about.class_names, where)
    tasks = about.task_sizes
    _require(
        sum(tasks) == len(names),
        where,
        f"its task_sizes are of {sum(tasks)} classes, not {len(names)}",
    )
    wanted = plugin_imports(
        about.head.get("class"), about.backbone.name, about.backbone.architecture
    )
    if wanted and not trust:
        listed = " and ".join(printable(name)[:200] for name in wanted)
        raise CheckpointError(
            f"{where} needs code from outside cifnet_pl, loading it would import {listed}: "
            "add --trust (Python: trust=True) if you know that code and trust it"
        )
    if backbone is None or backbone.describe() != about.backbone.model_dump():
        backbone = build_backbone(
            about.backbone.name, about.backbone.architecture, download, engine
        )
        if not backbone.stored:  # else the file has its weights
            _check_weights(backbone, about.backbone, where)
    head = _head(about.head, backbone.features, shapes, where)
    buffer = None
    if about.buffer is not None:
        with prefixed(f"{where}: the settings of buffer are refused", CheckpointError):
            buffer = CalibrationBuffer(**about.buffer.model_dump())
    model = Classifier(
        backbone,
        head,
        buffer,
        names,
        **vars(about.images),
        history=about.history,
        precision=about.precision,
    )
    model.record_engines(about.engines)
    _check_shapes(model, tasks, shapes, where)
    tensors = read()
    for name, part in model.stored_modules.items():
        _load(part, f"{name}.", tensors, where)
    _check_weights(backbone, about.backbone, where)
    if solved != bool(head.solved) or bool(head.under_way):
        raise CheckpointError(
            f"{where} was stored in the middle of a task: go on with that run, then store it"
        )
    _check_head(head, tasks, where, solved)
    _check_samples(model, where)
    return model


def _require(fits: bool, where: str, problem: str) -> None:
    """Raise CheckpointError about a ``problem`` of the file ``where``, unless what it holds
    ``fits``.
    """
    if not fits:
        raise CheckpointError(f"{where} is damaged or not a model: {problem}")


# ---------------------------------------------------------------------- parts


def _check_weights(backbone: Backbone, about: BackboneTable, where: str) -> None:
    """Raise CheckpointError unless a backbone has the weights that a model was learned with."""
    if backbone.sha256 != about.sha256:
        raise CheckpointError(
            f"{where} was made with other weights of {printable(about.name)} (sha256"
            f" {printable(about.sha256[:12])}…) than those on this machine"
            f" ({backbone.sha256[:12]}…): install the same version of the weights"
        )


def _head(about: Mapping[str, Any], features: int, shapes: Shapes, where: str) -> Head:
    """Return an empty head; its constructor checks the settings, once numbers of wrong kinds and
    sizes are excluded.
    """
    settings = dict(about)
    kind = _kind_of_head(settings.pop("class", None), where)
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(kind).parameters.items()
    }
    kinds = {
        name: type(default)
        for name, default in defaults.items()
        if isinstance(default, bool | int)
    }
    for name, expected in {**kinds, "in_features": int, "width": int}.items():
        value = settings.get(name)
        fits = name not in settings or type(value) is expected
        _require(
            fits, where, f"head.{name} is {shown(value)}, expected {expected.__name__}"
        )
    declared = settings.get("in_features")
    problem = f"head.in_features is {shown(declared)}, expected the backbone's width {features}"
    _require(declared == features, where, problem)
    products = settings.get("product_features", 0.0)
    if isinstance(products, float) and 0 <= products < math.inf:
        beside = features * products
    else:
        beside = 0
    width = max(features + int(beside), settings.get("width", 0))
    stored = 8 * sum(math.prod(shape) for shape in shapes.values())
    small = 8 * width**2 <= max(FREE_BYTES, 4 * stored)
    _require(
        small,
        where,
        f"it declares a head of width {width}, but stores only {stored} bytes",
    )
    refused = f"{where}: the settings of head are refused"
    with explained(CheckpointError, refused), prefixed(refused, CheckpointError):
        head = kind.from_settings(settings)
    _require(
        head.settings() == settings,
        where,
        f"the settings of {kind.__name__} are those of another version",
    )
    return head


def _kind_of_head(name: Any, where: str) -> type[Head]:
    """Return the class of a head of this package, or of one from outside that the user trusts."""
    if isinstance(name, str) and name in HEADS:
        return HEADS[name]
    if not isinstance(name, str) or not names_import(name):
        raise CheckpointError(
            f"{where}: head.class: {unknown_name('head', printable(str(name)), HEADS)}"
        )
    with prefixed(where, CheckpointError):
        kind = import_part(name)
    if not isinstance(kind, type) or not issubclass(kind, Head):
        raise CheckpointError(
            f"{where}: {name} is no head, expected a subclass of cifnet_pl.heads.Head"
        )
    return kind


# ---------------------------------------------------------------------- tensors


def _check_shapes(
    model: Classifier, tasks: Sequence[int], shapes: Shapes, where: str
) -> None:
    """Raise CheckpointError unless the tensors of a file are those of an empty model's head, and of
    its other parts.
    """
    head = model.head
    expected = {
        f"head.{name}": sizes for name, sizes in head.expected_shapes(tasks).items()
    }
    for name, sizes in expected.items():
        asked = (
            f"{sum(tasks)} classes in {len(tasks)} tasks and an embedding of width"
            f" {head.in_features}"
        )
        problem = (
            f"tensor {name} has shape {shapes.get(name)}, which {asked} do not have"
        )
        _require(fits(shapes.get(name, (-1,)), sizes), where, problem)
    others = [key for key in model.tensors() if not key.startswith("head.")]
    foreign = sorted(set(shapes) - set(expected) - set(others))
    _require(
        not foreign,
        where,
        f"it holds tensors that its head does not have: {shown(foreign[:1])}",
    )


def _load(
    module: nn.Module, prefix: str, tensors: Mapping[str, Tensor], where: str
) -> None:
    """Load the tensors whose names begin with ``prefix``: dense, finite, and of the module's
    types.
    """
    state = {
        key.removeprefix(prefix): value
        for key, value in tensors.items()
        if key.startswith(prefix)
    }
    for key, value in state.items():
        _require(
            _is_plain(value),
            where,
            f"'{printable(key)}' is not a whole tensor of finite numbers",
        )
    unlike = explained(
        CheckpointError, f"{where} does not fit a {type(module).__name__}"
    )
    with unlike, prefixed(f"{where} is damaged", CheckpointError):
        module.load_state_dict(state, strict=True)
    for key, value in module.state_dict().items():
        _require(
            value.dtype == state[key].dtype,
            where,
            f"'{key}' is in {state[key].dtype}, expected {value.dtype}",
        )


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is dense, finite and complete: a view could claim any size, NaN would
    spread.
    """
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype
        in (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.bool,
        )
        and tensor.numel() * tensor.element_size() <= tensor.untyped_storage().nbytes()
        and bool(torch.isfinite(tensor).all())
    )


def _check_head(head: Head, tasks: Sequence[int], where: str, solved: bool) -> None:
    """Raise CheckpointError unless the numbers of a loaded head go together, and it scores its
    classes.
    """
    in_order = head.task_of.tolist() == [
        k for k, size in enumerate(tasks) for _ in range(size)
    ]
    distinct = len(set(head.classes)) == sum(tasks)
    _require(
        in_order and distinct,
        where,
        "the labels or tasks of its classes are not in order",
    )
    temperature = float(head.temperature)
    power = float(head.odds_power)
    plausible = temperature > 0 and 0 < power <= 1
    _require(
        plausible,
        where,
        f"its temperature is {temperature:g}, the power of its odds {power:g}",
    )
    with explained(
        CheckpointError, f"{where} is damaged: its tensors do not go together"
    ):
        least = min(head.class_counts().values())
        if solved:
            scores = head(torch.zeros(1, head.in_features))
        else:
            scores = torch.zeros(1, sum(tasks))
    _require(
        least >= solved, where, "it has a class without images"
    )  # sums of a part of the images may have none
    whole = scores.shape == (1, sum(tasks)) and bool(torch.isfinite(scores).all())
    _require(whole, where, f"its head does not give {sum(tasks)} finite scores")


def _check_samples(model: Classifier, where: str) -> None:
    """Raise CheckpointError unless what is loaded of samples and their hashes goes together with
    the head.
    """
    head = model.head
    buffer = model.buffer
    images = model.images
    calibration = model.calibration
    sets = [
        ("samples", part.z, part.y, part.weight)
        for part in head.modules()
        if isinstance(part, Samples)
    ]
    sets.append(("calibration", calibration.z, calibration.y, calibration.key))
    if buffer is not None:
        sets.append(("buffer", buffer.z, buffer.y, buffer.key))
    for name, z, y, others in sets:
        whole = len(z) == len(y) == len(others) and z.is_floating_point()
        whole &= name == "samples" or not len(y) or z.shape[1] == head.in_features
        known = set(y.tolist()) <= set(head.classes)
        _require(
            whole and known,
            where,
            f"its {name} does not go together, or with its classes",
        )
    whole = (
        len(calibration.given) == len(calibration.given_key)
        and calibration.is_plausible()
    )
    whole &= len(calibration.groups) in (0, 0 if buffer is None else len(buffer.y))
    _require(whole, where, "its calibration does not go together with its samples")
    labels = images.labels.tolist()
    sizes = images.counts.tolist()
    whole = len(labels) == len(sizes) == len(set(labels)) and sum(sizes) == len(
        images.content
    )
    counts = {label: count for label, count in head.class_counts().items() if count}
    whole = whole and dict(zip(labels, sizes, strict=True)) == counts
    _require(whole, where, "its content hashes do not go together with its classes")


# ---------------------------------------------------------------------- places


def load(
    path: Path | str,
    device: torch.device | str | None = None,
    download: bool = False,
    engine: str = "auto",
    trust: bool = False,
) -> Classifier:
    """Load a model that can classify, and go on learning.

    Args:
        path: a bundle, one that is zipped, a run's folder (``lightning_logs/NAME/version_N``, or
            ``lightning_logs/NAME`` for the newest version; the model that has learned the held-out
            images, too, if there is one), a checkpoint file, or ``hf:user/model`` of the Hugging
            Face hub.
        device: where to put it; None for the first GPU if there is one, else the CPU.
        download: whether a model of the hub, and weights of the backbone, may be fetched that are
            not on this machine.
        engine: what runs the backbone, :data:`cifnet_pl.backbones.engines.EngineChoice`.
        trust: whether a head or network from outside this package may be imported, which executes
            its code; without it nothing from the file is ever executed.

    Raises:
        UsageError: an unknown engine.
        CheckpointError: there is no such model, or the file is damaged, hostile, or of another
            version.
        CifnetError: its backbone cannot be built on this machine.
    """
    on_hub = is_hub_name(str(path))
    if on_hub:
        location = fetch(HubName.of(str(path)), download)
    else:
        location = Path(path).expanduser()
    if is_bundle(location):
        model = read_bundle(location, download, engine, trust)
    elif _is_zipped_bundle(location):
        with tempfile.TemporaryDirectory() as folder:
            _unpack(location, Path(folder))
            model = read_bundle(Path(folder), download, engine, trust)
    else:
        checkpoint = checkpoint_of(location)
        complete = checkpoint.parents[1] / COMPLETE
        if location.is_dir() and is_bundle(complete):
            model = read_bundle(complete, download, engine, trust)
        else:
            model = _from_checkpoint(checkpoint, download, engine, trust)
    return model.to(
        device if device is not None else "cuda" if torch.cuda.is_available() else "cpu"
    )


def _is_zipped_bundle(path: Path) -> bool:
    """Return whether a file is a zipped bundle, as the page of ``serve`` sends it; checkpoints are
    zip files, too.
    """
    if not path.is_file() or not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return CONFIG in archive.namelist()
    except Exception:  # damaged: reading it as a checkpoint says so
        return False


def _unpack(path: Path, folder: Path) -> None:
    """Unpack a zipped bundle; CheckpointError where it is damaged, hostile, or holds folders."""
    with (
        explained(CheckpointError, f"cannot unpack {path}"),
        zipfile.ZipFile(path) as archive,
    ):
        entries = [entry for entry in archive.infolist() if not entry.is_dir()]
        if any(
            entry.filename != Path(entry.filename).name or unsafe_entry_message(entry)
            for entry in entries
        ):
            raise CheckpointError(
                f"{path} holds more than a model: unpack it, and give the model's folder"
            )
        if (
            sum(entry.file_size for entry in entries)
            > LARGEST_RATIO * path.stat().st_size
        ):
            raise CheckpointError(
                f"{path} unpacks to more than {LARGEST_RATIO} times its size"
            )
        archive.extractall(folder, entries)


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
        backbone: one that is in memory already; the model shares it if it is the one that the
            bundle names.

    Raises:
        CheckpointError, CifnetError, UsageError: as for :func:`load`.
    """
    with open_bundle(folder) as (description, shapes, read):
        return assemble(
            description,
            shapes,
            read,
            str(folder),
            download,
            engine,
            trust,
            backbone=backbone,
        )


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
        raise CheckpointError(
            f"no model at {path}: expected a run's folder, a checkpoint file or a bundle"
        )
    newest = [folder / CHECKPOINT for folder in reversed(versions(path))]
    for candidate in (path / CHECKPOINT, *newest):
        if candidate.is_file():
            return candidate
    raise CheckpointError(
        f"{path} is neither a bundle (no config.json) nor a run's folder (no {CHECKPOINT})"
    )


def read_checkpoint(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint file of a run without executing anything from it.

    Args:
        path: the file.
        map_location: device for the tensors, as for ``torch.load``.

    Raises:
        CheckpointError: the file is missing, truncated, compressed (it could grow without bound),
            not of this package, or holds more than tensors and plain containers.
    """
    if not path.is_file():
        raise CheckpointError(
            f"no checkpoint at {path}: look in a run's folder for {CHECKPOINT}"
        )
    with explained(
        CheckpointError,
        f"cannot read checkpoint {path}, it is damaged or not a checkpoint",
    ):
        with zipfile.ZipFile(path) as archive:
            if any(
                entry.compress_type != zipfile.ZIP_STORED
                for entry in archive.infolist()
            ):
                raise CheckpointError(
                    f"{path} is compressed: it was not written by this package"
                )
            damaged = archive.testzip()  # torch.load does not look at the checksums
            if damaged is not None:
                raise CheckpointError(
                    f"{path} is damaged: the checksum of {printable(damaged)} is wrong; use a copy"
                )
        content = load_tensors(path, map_location)
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{path} holds a {type(content).__name__}, expected a checkpoint"
        )
    missing = [
        key
        for key in ("cifnet", "state_dict", "pytorch-lightning_version")
        if key not in content
    ]
    if missing:
        raise CheckpointError(
            f"{path} is no checkpoint of a run of this package: it has no '{missing[0]}'"
        )
    return content


class RunTable(Table):
    """The state of a run, as far as a model needs it."""

    under_way: bool
    settings: dict[str, Any]
    model: Any = None


def _from_checkpoint(
    path: Path, download: bool, engine: str, trust: bool
) -> Classifier:
    content = read_checkpoint(path)
    where = str(path)
    state = content["cifnet"]
    if isinstance(state, dict):
        check_format(state.get("format"), where)
    run = parse(RunTable, state, where)
    if run.model is None:
        raise CheckpointError(
            f"{path} is of a {shown(run.settings.get('module'))}: finish the run, and give its"
            " folder"
        )
    if run.under_way:
        raise CheckpointError(
            f"{path} was saved in the middle of a task: finish the run with --ckpt_path last first"
        )
    tensors = content["state_dict"]
    _require(isinstance(tensors, dict), where, "its state_dict is not a table")
    wrong = [
        key
        for key, value in tensors.items()
        if not isinstance(key, str) or not isinstance(value, Tensor)
    ]
    _require(not wrong, where, f"{shown(wrong[:1])} is not a tensor")
    shapes = {key: tuple(value.shape) for key, value in tensors.items()}
    return assemble(run.model, shapes, lambda: tensors, where, download, engine, trust)
