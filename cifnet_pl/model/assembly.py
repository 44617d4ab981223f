"""Build a model from what a file holds: nothing is executed, and sizes are checked before use."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import HEADS, Head
from cifnet_pl.heads.samples import Samples
from cifnet_pl.model.bundle import (
    BackboneRecord,
    Description,
    Shapes,
    StoredModel,
    class_names,
    parse,
    plugin_imports,
    shown,
)
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import (
    CheckpointError,
    explained,
    prefixed,
    unknown_name,
)
from cifnet_pl.utilities.growing_tensors import fits
from cifnet_pl.utilities.plugins import import_object, names_import
from cifnet_pl.utilities.text import printable

FREE_BYTES = 2**29
"""Memory that a head may always take; above that, at most four times its stored tensors."""

PLAIN_DTYPES = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.bool,
)


def assemble(
    stored: StoredModel,
    download: bool = False,
    engine: str = "auto",
    trust: bool = False,
    solved: bool = True,
    backbone: Backbone | None = None,
) -> Classifier:
    """Build a model from what a file holds.

    Args:
        stored: the open file.
        download: whether weights of the backbone that are not on this machine may be fetched.
        engine: engine that is to run the backbone.
        trust: whether what the file names may be imported from outside the package, which executes
            it.
        solved: whether the file is of a model that can predict, not of partial sums.
        backbone: one that is in memory already; the model shares it if it is the one that the file
            names.

    Raises:
        CheckpointError: anything about the file that is not as it should be.
        CifnetError: the backbone cannot be built on this machine.
    """
    where = stored.where
    record = parse(Description, stored.description, where)
    names = class_names(record.class_names, where)
    tasks = record.task_sizes
    n_classes = sum(tasks)
    sizes_problem = f"its task_sizes are of {n_classes} classes, not {len(names)}"
    _require(sum(tasks) == len(names), where, sizes_problem)
    if not trust:
        _refuse_plugins(record, where)
    if backbone is None or backbone.describe() != record.backbone.model_dump():
        backbone = build_backbone(
            record.backbone.name, record.backbone.architecture, download, engine
        )
        if not backbone.weights_in_model:  # else its weights are in the file
            _check_weights(backbone, record.backbone, where)
    buffer = None
    if record.buffer is not None:
        with prefixed(f"{where}: the settings of buffer are refused", CheckpointError):
            buffer = CalibrationBuffer(**record.buffer.model_dump())
    model = Classifier(
        backbone=backbone,
        head=_empty_head(record.head, backbone.features, stored),
        buffer=buffer,
        class_names=names,
        image_size=record.images.image_size,
        crop_ratio=record.images.crop_ratio,
        held_out=record.images.held_out,
        history=record.history,
        precision=record.precision,
    )
    model.record_engines(record.engines)
    _check_shapes(model, tasks, stored)
    tensors = stored.read()
    for name, module in model.stored_modules.items():
        _load_tensors(module, f"{name}.", tensors, where)
    _check_weights(backbone, record.backbone, where)
    under_way = bool(model.head.under_way)
    if solved != bool(model.head.solved) or under_way:
        raise CheckpointError(
            f"{where} was stored in the middle of a task: go on with that run, then store it"
        )
    _check_head(model.head, tasks, where, solved)
    _check_samples(model, where)
    _check_calibration(model, where)
    _check_image_hashes(model, where)
    return model


def _require(condition: bool, where: str, problem: str) -> None:
    """Raise CheckpointError about a ``problem`` of the file ``where`` unless a condition holds."""
    if not condition:
        raise CheckpointError(f"{where} is damaged or not a model: {problem}")


# ---------------------------------------------------------------------- backbone and head


def _refuse_plugins(record: Description, where: str) -> None:
    """Raise CheckpointError if a description names code from outside the package."""
    imports = plugin_imports(
        record.head.get("class"), record.backbone.name, record.backbone.architecture
    )
    if imports:
        printed = [printable(name)[:200] for name in imports]
        listed = " and ".join(printed)
        raise CheckpointError(
            f"{where} needs code from outside cifnet_pl, loading it would import {listed}: "
            "add --trust (Python: trust=True) if you know that code and trust it"
        )


def _check_weights(backbone: Backbone, record: BackboneRecord, where: str) -> None:
    """Raise CheckpointError unless a backbone has the weights that a model was learned with."""
    if backbone.sha256 != record.sha256:
        raise CheckpointError(
            f"{where} was made with other weights of {printable(record.name)} (sha256"
            f" {printable(record.sha256[:12])}…) than those on this machine"
            f" ({backbone.sha256[:12]}…): install the same version of the weights"
        )


def _empty_head(record: Mapping[str, Any], features: int, stored: StoredModel) -> Head:
    """Return an empty head; its constructor checks the settings after types and sizes."""
    where = stored.where
    settings = dict(record)
    kind = _head_class(settings.pop("class", None), where)
    _check_setting_types(kind, settings, where)
    declared = settings.get("in_features")
    problem = f"head.in_features is {shown(declared)}, expected the backbone's width {features}"
    _require(declared == features, where, problem)
    _check_width(settings, features, stored)
    refused = f"{where}: the settings of head are refused"
    with explained(CheckpointError, refused), prefixed(refused, CheckpointError):
        head = kind.from_settings(settings)
    problem = f"the settings of {kind.__name__} are those of another version"
    _require(head.settings() == settings, where, problem)
    return head


def _check_setting_types(
    kind: type[Head], settings: Mapping[str, Any], where: str
) -> None:
    """Raise CheckpointError unless settings that are whole numbers or flags have their types."""
    types: dict[str, type] = {}
    parameters = inspect.signature(kind).parameters
    for name, parameter in parameters.items():
        if isinstance(parameter.default, bool | int):
            types[name] = type(parameter.default)
    types["in_features"] = int
    types["width"] = int
    for name, expected in types.items():
        if name in settings and type(settings[name]) is not expected:
            value = shown(settings[name])
            _require(
                False, where, f"head.{name} is {value}, expected {expected.__name__}"
            )


def _check_width(
    settings: Mapping[str, Any], features: int, stored: StoredModel
) -> None:
    """Raise CheckpointError if a head would take much more memory than its stored tensors."""
    products = settings.get("product_features", 0.0)
    width = features
    if isinstance(products, float) and 0 <= products < math.inf:
        width += int(features * products)
    width = max(width, settings.get("width", 0))
    sizes = [math.prod(shape) for shape in stored.shapes.values()]
    stored_bytes = 8 * sum(sizes)
    limit = max(FREE_BYTES, 4 * stored_bytes)
    is_small = 8 * width**2 <= limit
    problem = (
        f"it declares a head of width {width}, but stores only {stored_bytes} bytes"
    )
    _require(is_small, stored.where, problem)


def _head_class(name: Any, where: str) -> type[Head]:
    """Return the class of a head of this package, or of a trusted one from outside."""
    if isinstance(name, str) and name in HEADS:
        return HEADS[name]
    if not isinstance(name, str) or not names_import(name):
        unknown = unknown_name("head", printable(str(name)), HEADS)
        raise CheckpointError(f"{where}: head.class: {unknown}")
    with prefixed(where, CheckpointError):
        kind = import_object(name)
    if not isinstance(kind, type) or not issubclass(kind, Head):
        raise CheckpointError(
            f"{where}: {name} is no head, expected a subclass of cifnet_pl.heads.Head"
        )
    return kind


# ---------------------------------------------------------------------- tensors


def _check_shapes(model: Classifier, tasks: Sequence[int], stored: StoredModel) -> None:
    """Raise CheckpointError unless the tensors of a file are those of the model."""
    shapes: Shapes = stored.shapes
    expected_names = {name for name in model.tensors() if not name.startswith("head.")}
    head = model.head
    n_classes = sum(tasks)
    size = f"{n_classes} classes in {len(tasks)} tasks and embeddings of width {head.in_features}"
    expected_shapes = head.expected_shapes(tasks)
    for key, sizes in expected_shapes.items():
        name = f"head.{key}"
        expected_names.add(name)
        problem = (
            f"tensor {name} has shape {shapes.get(name)}, which does not fit {size}"
        )
        shape = shapes.get(name, (-1,))
        _require(fits(shape, sizes), stored.where, problem)
    others = sorted(set(shapes) - expected_names)
    problem = f"it holds tensors that its head does not have: {shown(others[:1])}"
    _require(not others, stored.where, problem)


def _load_tensors(
    module: nn.Module, prefix: str, tensors: Mapping[str, Tensor], where: str
) -> None:
    """Load the tensors whose names begin with ``prefix``: dense, finite, of the module's dtypes."""
    state = {}
    for name, value in tensors.items():
        if name.startswith(prefix):
            key = name.removeprefix(prefix)
            problem = f"'{printable(key)}' is not a whole tensor of finite numbers"
            _require(_is_plain(value), where, problem)
            state[key] = value
    misfit = f"{where} does not fit a {type(module).__name__}"
    with (
        explained(CheckpointError, misfit),
        prefixed(f"{where} is damaged", CheckpointError),
    ):
        module.load_state_dict(state, strict=True)
    for key, value in module.state_dict().items():
        dtype = state[key].dtype
        problem = f"'{key}' is in {dtype}, expected {value.dtype}"
        same = value.dtype == state[key].dtype
        _require(same, where, problem)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether a tensor is dense, finite and complete.

    A view could claim any size, and NaN would spread.
    """
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        return False
    if tensor.dtype not in PLAIN_DTYPES:
        return False
    needed = tensor.numel() * tensor.element_size()
    if needed > tensor.untyped_storage().nbytes():
        return False
    return bool(torch.isfinite(tensor).all())


def _check_head(head: Head, tasks: Sequence[int], where: str, solved: bool) -> None:
    """Raise CheckpointError unless the tensors of a head fit together and it scores its classes."""
    classes = sum(tasks)
    task_of = []
    for task, size in enumerate(tasks):
        task_of += [task] * size
    distinct = len(set(head.classes))
    in_order = head.task_of.tolist() == task_of and distinct == classes
    _require(in_order, where, "the labels or tasks of its classes are not in order")
    temperature = float(head.temperature)
    _require(temperature > 0, where, f"its temperature is {temperature:g}")
    scores = torch.zeros(1, classes)
    with explained(
        CheckpointError, f"{where} is damaged: its tensors do not go together"
    ):
        fewest = min(head.class_counts().values())
        if solved:
            scores = head(torch.zeros(1, head.in_features))
    # Partial sums may have classes without images.
    _require(fewest >= solved, where, "it has a class without images")
    is_finite = bool(torch.isfinite(scores).all())
    finite = scores.shape == (1, classes) and is_finite
    _require(finite, where, f"its head does not give {classes} finite scores")


# ---------------------------------------------------------------------- samples


class CheckedSamples(NamedTuple):
    """Samples that a file holds.

    Attributes:
        name: of the set, for messages.
        z: (n, d) embeddings.
        y: (n,) labels.
        others: (n,) weights or content hashes.
        width: expected width of the embeddings; None for any.
    """

    name: str
    z: Tensor
    y: Tensor
    others: Tensor
    width: int | None

    def is_whole(self) -> bool:
        """Return whether the tensors fit together."""
        if not len(self.z) == len(self.y) == len(self.others):
            return False
        if not self.z.is_floating_point():
            return False
        return self.width is None or not len(self.y) or self.z.shape[1] == self.width


def _check_samples(model: Classifier, where: str) -> None:
    """Raise CheckpointError unless all stored samples fit together and are of known classes."""
    head = model.head
    sets = []
    for module in head.modules():
        if isinstance(module, Samples):
            given = CheckedSamples("samples", module.z, module.y, module.weight, None)
            sets.append(given)
    new = model.calibration
    given = CheckedSamples("calibration", new.z, new.y, new.key, head.in_features)
    sets.append(given)
    stored = model.buffer
    if stored is not None:
        sets.append(
            CheckedSamples("buffer", stored.z, stored.y, stored.key, head.in_features)
        )
    classes = set(head.classes)
    for samples in sets:
        labels = set(samples.y.tolist())
        fit = samples.is_whole() and labels <= classes
        _require(
            fit, where, f"its {samples.name} does not go together, or with its classes"
        )


def _check_calibration(model: Classifier, where: str) -> None:
    """Raise CheckpointError unless groups and accuracies fit the samples."""
    calibration = model.calibration
    if model.buffer is None:
        buffer_size = 0
    else:
        buffer_size = len(model.buffer.y)
    fit = calibration.is_whole() and len(calibration.groups) in (0, buffer_size)
    _require(fit, where, "its calibration does not go together with its samples")


def _check_image_hashes(model: Classifier, where: str) -> None:
    """Raise CheckpointError unless the content hashes fit the numbers of images."""
    labels = model.images.labels.tolist()
    counts = model.images.counts.tolist()
    distinct = len(set(labels))
    fit = len(labels) == len(counts) == distinct
    if fit:
        hashed = dict(zip(labels, counts, strict=True))
        class_counts = model.head.class_counts().items()
        learned = {}
        for label, count in class_counts:
            if count:
                learned[label] = count
        images = len(model.images.content)
        fit = sum(counts) == images and hashed == learned
    _require(fit, where, "its content hashes do not go together with its classes")
