"""The format of a stored model: a bundle is a folder with ``config.json`` and one safetensors file.

The description in ``config.json`` is plain records and lists, the same in a bundle and in a
checkpoint. pydantic checks what comes from a file, strictly: nothing is converted to another type,
and reading never executes anything.

``config.json`` names the file of tensors that belongs to it, by the hash of its content. Replacing
``config.json`` is the only step that makes a new model the folder's content: a reader finds either
the old model or the new one, complete, whenever the writer is killed.

This module writes and reads the files. A model is assembled from them in
:mod:`cifnet_pl.model.assembly`, by :func:`cifnet_pl.model.store.load_bundle`.
"""

import hashlib
import json
import platform
import shutil
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import safetensors.torch
import torch
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError
from torch import Tensor

from cifnet_pl.backbones.engines import Precision
from cifnet_pl.images.image import IMAGE_SIZE_LIMIT
from cifnet_pl.utilities.errors import (
    AlreadyThere,
    CheckpointError,
    UsageError,
    explained,
    first_mistake,
)
from cifnet_pl.utilities.files import refuse_pointer, write_bytes, write_json
from cifnet_pl.utilities.text import printable, shown
from cifnet_pl.utilities.version import __version__

FORMAT = 2
"""Version of the description and of the files that hold it, bundles and checkpoints."""

Engine = Literal["torch", "onnxruntime"]

Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class Event:
    """One step in a model's life, such as a task of its run or an extension.

    Percentages are 0–100; None where something was not measured.

    Attributes:
        kind: "task", "extend", "merge", "forget", "recalibrate"; of the page also "move", "join".
        classes: number of classes known afterwards.
        images: number of images taken in (task, extend, merge) or out (forget).
        accuracy: A_k in percent after a task; of an extension, on samples of the new classes in
            the buffer, each left out.
        old_accuracy_before: accuracy on the images of ``--check`` before an extension.
        old_accuracy: the same afterwards.
        seconds: time that the step took.
        energy_kwh: energy that it took.
        energy_source: what the energy was measured by.
        date: in UTC.
        class_names: classes that were learned, merged or forgotten; None where not recorded.
        parents: identities (:attr:`Model.identity`) of the models that this step started from.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    kind: str
    classes: int
    images: int | None = None
    accuracy: Number | None = None
    old_accuracy_before: Number | None = None
    old_accuracy: Number | None = None
    seconds: Number | None = None
    energy_kwh: Number | None = None
    energy_source: str | None = None
    date: str | None = None
    class_names: list[str] | None = None
    parents: list[str] = field(default_factory=list)


class StoredRecord(BaseModel):
    """A record from a file, checked strictly; unknown entries are ignored."""

    model_config = ConfigDict(strict=True)


class BackboneRecord(StoredRecord):
    """The backbone, and the hash of its weights."""

    name: str
    sha256: str
    architecture: str | None = None


class ImagesRecord(StoredRecord):
    """How images are prepared; ``held_out`` are the share and the seed of the run's own split."""

    image_size: int = Field(ge=1, le=IMAGE_SIZE_LIMIT)
    crop_ratio: Number = Field(gt=0, le=1)
    held_out: tuple[Number, int] | None = Field(strict=False)


class BufferRecord(StoredRecord):
    """The settings of the buffer."""

    model_config = ConfigDict(extra="forbid")

    capacity: int
    per_class: int | None
    strategy: str
    seed: int
    oversample: bool


class Description(StoredRecord):
    """The description of a model in a bundle or checkpoint: everything but its tensors."""

    backbone: BackboneRecord
    precision: Precision
    engines: list[Engine]
    images: ImagesRecord
    head: dict[str, bool | int | Number | str | None]
    buffer: BufferRecord | None
    class_names: list[Any]
    history: list[Event] = Field(strict=False)


T = TypeVar("T", bound=BaseModel)


def parse(kind: type[T], content: Any, where: str) -> T:
    """Check a record from a file.

    Args:
        kind: class of the record.
        content: what the file holds.
        where: what an error calls the file.

    Raises:
        CheckpointError: an entry is missing, of another type, or not known.
    """
    wrong = f"{where} is damaged or not a model"
    with explained(CheckpointError, wrong, ValidationError, reason=first_mistake):
        return kind.model_validate(content)


def check_format(number: Any, where: str) -> None:
    """Check that the format that a file names is that of this version.

    Args:
        number: what the file says.
        where: what an error calls the file.

    Raises:
        CheckpointError: it is another one.
    """
    if number != FORMAT:
        raise CheckpointError(
            f"{where} has format {shown(number)}, this version reads {FORMAT}: update cifnet_pl"
        )


# ---------------------------------------------------------------------- the files of a bundle

CONFIG = "config.json"


class TensorsRecord(StoredRecord):
    """The file of tensors that belongs to a ``config.json``."""

    sha256: str


class BundleRecord(StoredRecord):
    """The part of a ``config.json`` about the files of its bundle."""

    sha256: str
    tensors: TensorsRecord


class StoredModel(NamedTuple):
    """A model in a file.

    Attributes:
        where: what an error calls the file.
        description: as :meth:`Classifier.describe` gives it; not checked yet.
        tensors: by module and name.
    """

    where: str
    description: Any
    tensors: Mapping[str, Tensor]


def is_bundle(folder: Path | zipfile.Path) -> bool:
    """Return whether ``folder`` has the ``config.json`` of a bundle."""
    return (folder / CONFIG).is_file()


def refuse_existing(folder: Path, overwrite: bool, step: str | None = None) -> None:
    """Check that a bundle may be written to a folder.

    Leftovers of an interrupted writer do not matter; other files do, whatever ``overwrite`` says.

    Args:
        folder: where the bundle is to be.
        overwrite: whether a bundle that is there may be replaced.
        step: kind of :class:`Event`; a bundle whose last step is of this kind may be there, too,
            as it may be the same: it is compared when it is written.

    Raises:
        UsageError: it may not.
    """
    if not folder.exists() and not folder.is_symlink():
        return
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is a file, expected a folder for the bundle: choose another --output"
        )
    if is_bundle(folder) and not overwrite:
        content = _read_config(folder)
        if content["history"][-1]["kind"] != step:
            raise UsageError(
                f"{folder} holds a bundle already: choose another --output, or add --overwrite true"
            )
    others = sorted(
        entry.name for entry in folder.iterdir() if not _is_of_bundle(entry)
    )
    if others:
        raise UsageError(
            f"{folder} holds other files ({printable(others[0])}): choose another --output"
        )


def write_bundle(
    description: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    folder: Path,
    overwrite: bool,
) -> None:
    """Write a description and tensors to ``folder``, atomically.

    Only one process may write a folder at a time; commands hold its lock
    (:func:`~cifnet_pl.utilities.files.exclusive`).

    Args:
        description: plain numbers, strings, lists and dictionaries.
        tensors: contiguous, on the CPU.
        folder: the bundle's folder; it is made if it is missing.
        overwrite: whether a bundle that is there may be replaced.

    Raises:
        AlreadyThere: there is a bundle of the same model already and ``overwrite`` is false.
        UsageError: there is another bundle already, or the folder holds other files.
        CifnetError: the disk is full or not writable; an old bundle is left as it was.
    """
    content = safetensors.torch.save(dict(tensors))
    digest = hashlib.sha256(content).hexdigest()
    tensors_file = folder / _tensors_name(digest)
    if is_bundle(folder) and tensors_file.is_file() and not overwrite:
        stored = _read_config(folder)
        if stored["class_names"] == description["class_names"]:
            raise AlreadyThere(f"{folder} is already there: it holds this model")
    refuse_existing(folder, overwrite)
    config = {
        "format": FORMAT,
        **description,
        "versions": {
            "cifnet_pl": __version__,
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
        "tensors": {"sha256": digest},
    }
    is_new = not folder.exists()
    try:
        write_bytes(tensors_file, content)
        write_json(folder / CONFIG, {**config, "sha256": _digest(config)})
    except BaseException:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    # Files of killed writers, and older tensors.
    for entry in folder.iterdir():
        if _is_of_bundle(entry) and entry.name not in (CONFIG, tensors_file.name):
            entry.unlink(missing_ok=True)


def read_bundle(folder: Path | zipfile.Path) -> StoredModel:
    """Read a bundle.

    Args:
        folder: of the bundle, or the archive that it is in.

    Raises:
        CheckpointError: no bundle, one of another version, or one that is damaged.
    """
    description = _read_config(folder)
    digest = description["tensors"]["sha256"]
    path = folder / _tensors_name(digest)
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is not whole: {path.name} is missing; copy the bundle again"
        )
    with explained(CheckpointError, f"cannot read {path}"):
        content = path.read_bytes()
        refuse_pointer(content)
        if hashlib.sha256(content).hexdigest() != digest:
            raise CheckpointError(
                f"{path} is damaged: its checksum is wrong; copy the bundle again"
            )
        tensors = safetensors.torch.load(content)
    return StoredModel(str(folder), description, tensors)


def _read_config(folder: Path | zipfile.Path) -> dict[str, Any]:
    """Return the content of a bundle's ``config.json``; what it says of its files is checked."""
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is not a bundle: it has no {CONFIG} (or its writing was interrupted)"
        )
    with explained(CheckpointError, f"cannot read {path}"):
        text = path.read_bytes()
        refuse_pointer(text)
        content: dict[str, Any] = json.loads(text)
        digest = _digest(content)
    check_format(content.get("format"), str(folder))
    file = parse(BundleRecord, content, str(folder))
    if file.sha256 != digest:
        raise CheckpointError(
            f"{path} is damaged or was edited: its checksum is wrong; copy the bundle again"
        )
    return content


def _tensors_name(digest: str) -> str:
    """Return the name of the file of tensors with a hash."""
    return f"tensors-{digest[:16]}.safetensors"


def _digest(config: Mapping[str, Any]) -> str:
    """Hash a ``config.json`` without the hash in it."""
    hashed = {key: value for key, value in config.items() if key != "sha256"}
    text = json.dumps(hashed, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_of_bundle(entry: Path) -> bool:
    """Return whether a file was written by this module, or by a writer that was killed."""
    name = entry.name.lstrip(".")
    return name.startswith((CONFIG, "tensors-")) and name.endswith(
        (CONFIG, ".safetensors", ".tmp")
    )
