"""Build a model from what a file holds; nothing from the file is executed."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from cifnet_pl.backbones import Backbone, build_backbone, plugin_imports
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import HEADS, Head
from cifnet_pl.model.bundle import (
    BackboneRecord,
    Description,
    StoredModel,
    parse,
)
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.utilities.errors import (
    CheckpointError,
    explained,
    unknown_name,
)
from cifnet_pl.utilities.names import class_names
from cifnet_pl.utilities.plugins import import_object, names_import
from cifnet_pl.utilities.text import printable


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
        stored: content of the file.
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
        refused = f"{where}: the settings of buffer are refused"
        with explained(CheckpointError, refused, own=True):
            buffer = CalibrationBuffer(**record.buffer.model_dump())
    model = Classifier(
        backbone=backbone,
        head=_empty_head(record.head, where),
        buffer=buffer,
        class_names=class_names(record.class_names, where, CheckpointError),
        history=record.history,
        precision=record.precision,
        **record.images.model_dump(),
    )
    model.record_engines(record.engines)
    damaged = f"{where} is damaged or not a model"
    with explained(CheckpointError, damaged, own=True):
        _fill(model, stored, solved)
    _check_weights(backbone, record.backbone, where)
    return model


def _refuse_plugins(record: Description, where: str) -> None:
    """Raise CheckpointError if a description names code from outside the package."""
    imports = plugin_imports(
        record.backbone.name, record.backbone.architecture, record.head.get("class")
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


def _empty_head(record: Mapping[str, Any], where: str) -> Head:
    """Return an empty head of the settings that a file holds, of this package or a trusted one."""
    settings = dict(record)
    name = str(settings.pop("class", None))
    if name not in HEADS and not names_import(name):
        unknown = unknown_name("head", printable(name), HEADS)
        raise CheckpointError(f"{where}: head.class: {unknown}")
    refused = f"{where}: the settings of head are refused"
    with explained(CheckpointError, refused, own=True):
        kind = HEADS.get(name) or import_object(name)
        if not isinstance(kind, type) or not issubclass(kind, Head):
            raise TypeError(f"{name} is no subclass of cifnet_pl.heads.Head")
        return kind.from_settings(settings)


def _fill(model: Classifier, stored: StoredModel, solved: bool) -> None:
    """Load the tensors of a file into a model, and check that it can be used.

    Raises:
        CheckpointError, or any other error of what does not fit.
    """
    modules = nn.ModuleDict(model.stored_modules)
    tensors = stored.tensors
    if "calibration.groups" in tensors:
        tensors = _in_groups(tensors)
    modules.load_state_dict(tensors, strict=True)
    for name, tensor in stored.tensors.items():
        if not torch.isfinite(tensor).all():
            raise CheckpointError(f"{printable(name)} holds NaN or infinity")
    head = model.head
    if bool(head.under_way) or bool(head.solved) != solved:
        raise CheckpointError(
            "it was stored in the middle of a task: go on with that run, then store it"
        )
    if len(model.class_names) != len(head.classes):
        raise CheckpointError("its classes do not agree")
    if solved:
        probabilities = head.probabilities(torch.zeros(1, model.backbone.features))
        if not probabilities.isfinite().all():
            raise CheckpointError("its head does not give finite probabilities")


def _in_groups(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of which models of before had the groups of buffer samples elsewhere.

    They had groups or none, and not how many errors showed it.
    """
    converted = dict(tensors)
    groups = converted.pop("calibration.groups")
    converted.pop("calibration.given_key")
    given = converted.pop("calibration.given")
    converted["calibration.is_given"] = torch.tensor(len(given) > 0)
    come_in_groups = len(torch.unique(groups)) < len(groups)
    errors = torch.tensor([float(come_in_groups), 0.0, 1.0]).double()
    converted.setdefault("calibration.group_errors", errors)
    keys = converted.get("buffer.key")
    if keys is not None:
        if len(groups) != len(keys):
            groups = torch.full_like(keys, -1)
        converted["buffer.group"] = groups
    return converted
