"""Load any stored model by one function: a run's folder, one of its checkpoints, or a bundle."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from cifnet_pl.backbones import Backbone
from cifnet_pl.model.bundle import is_bundle, open_bundle
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.description import Table, check_format, parse
from cifnet_pl.model.hub import HubName, fetch, is_hub_name
from cifnet_pl.model.validation import assemble
from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.run_folders import CHECKPOINT, versions
from cifnet_pl.utilities.text import first_line, printable

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
