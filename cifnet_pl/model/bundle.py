"""The format of a stored model: a bundle is a folder with ``config.json`` and one safetensors file.

The description in ``config.json`` is plain records and lists, the same in a bundle and in a
checkpoint. pydantic checks what comes from a file, strictly: nothing is converted to another type,
and reading never executes anything.

``config.json`` names the file of tensors that belongs to it, by the hash of its content. Replacing
``config.json`` is the only step that makes a new model the folder's content: a reader finds either
the old model or the new one, complete, whenever the writer is killed.

This module writes bundles and opens their files. A model is assembled from them in
:mod:`cifnet_pl.model.assembly`, by :func:`cifnet_pl.model.store.load_bundle`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cifnet_pl.backbones import backbone_imports
from cifnet_pl.backbones.engines import Precision
from cifnet_pl.images.image import IMAGE_SIZE_LIMIT
from cifnet_pl.utilities.errors import (
    CheckpointError,
    CifnetError,
    UsageError,
    explained,
)
from cifnet_pl.utilities.files import write_atomic, write_json
from cifnet_pl.utilities.names import class_name, class_name_problem
from cifnet_pl.utilities.plugins import names_import
from cifnet_pl.utilities.text import printable
from cifnet_pl.utilities.version import package_version

FORMAT = 2
"""Version of the description and of the files that hold it, bundles and checkpoints."""

Engine = Literal["torch", "onnxruntime"]

Text = Annotated[str, Strict()]
Count = Annotated[int, Strict(), Field(ge=0, lt=2**63)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Setting = Annotated[bool, Strict()] | Annotated[int, Strict()] | Number | Text | None


@dataclass(frozen=True)
class Event:
    """One step in a model's life, such as a task of its run or an extension.

    Percentages are 0–100; None where something was not measured.

    Attributes:
        kind: "task", "extend", "merge", "forget" or "recalibrate".
        classes: number of classes known afterwards.
        images: number of images taken in (task, extend, merge) or out (forget).
        accuracy: A_k in percent after a task; of an extension, on the held-out fifth of the new
            images.
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

    kind: Text
    classes: Count
    images: Count | None = None
    accuracy: Number | None = None
    old_accuracy_before: Number | None = None
    old_accuracy: Number | None = None
    seconds: Number | None = None
    energy_kwh: Number | None = None
    energy_source: Text | None = None
    date: Text | None = None
    class_names: list[Text] | None = None
    parents: list[Text] = field(default_factory=list)


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
    held_out: (
        tuple[Annotated[Number, Field(gt=0, lt=1)], Annotated[int, Strict()]] | None
    ) = Field(strict=False)


class BufferRecord(StoredRecord):
    """The settings of the buffer."""

    model_config = ConfigDict(strict=True, extra="forbid")

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
    head: dict[str, Setting]
    buffer: BufferRecord | None
    class_names: list[Any]
    task_sizes: list[Annotated[int, Strict(), Field(gt=0)]]
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
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{where} is damaged or not a model: its description is not a record"
        )
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise CheckpointError(
            f"{where} is damaged or not a model: {_sentence(error)}"
        ) from error


def _sentence(error: ValidationError) -> str:
    """Describe the first wrong entry: where it is, what it is and what was expected."""
    first = error.errors(include_url=False)[0]
    parts = [printable(str(key))[:60] for key in first["loc"]]
    place = ".".join(parts)
    if first["type"] == "missing":
        return f"it has no {place}"
    return (
        f"{place} is {shown(first['input'])}, expected"
        f" {first['msg'].removeprefix('Input should be ')}"
    )


def check_format(number: Any, where: str) -> None:
    """Check that the format that a file names is that of this version.

    Args:
        number: what the file says.
        where: what an error calls the file.

    Raises:
        CheckpointError: it is another one.
    """
    if type(number) is not int or number != FORMAT:
        raise CheckpointError(
            f"{where} has format {shown(number)}, this version reads {FORMAT}: update cifnet_pl"
        )


def class_names(
    names: Sequence[Any], where: str, error: type[CifnetError] = CheckpointError
) -> list[str]:
    """Check class names from a file: plain, unique, and safe to show and to use in a path.

    Args:
        names: the names that a file holds.
        where: what an error calls the file.
        error: class of the error.

    Returns:
        The names as they are stored and compared.

    Raises:
        CheckpointError, or ``error``: no name, one that occurs twice, or one that cannot be that of
            a class.
    """
    if not names:
        raise error(f"{where} names no class")
    for name in names:
        problem = class_name_problem(name)
        if problem is not None:
            raise error(
                f"{where}: class name {shown(name)} {problem}: rename the class"
            )
    normalised = [class_name(name) for name in names]
    counts = Counter(normalised)
    name, times = counts.most_common(1)[0]
    if times > 1:
        raise error(f"{where} has class {shown(name)} twice")
    return normalised


def plugin_imports(
    head: Any, backbone: str, architecture: str | None = None
) -> list[str]:
    """Return the imports from outside the package that a model needs; nothing is imported.

    Args:
        head: class of the head, as a description names it.
        backbone, architecture: as for :func:`~cifnet_pl.backbones.build_backbone`.
    """
    imports = backbone_imports(backbone, architecture)
    if isinstance(head, str) and names_import(head):
        return [head, *imports]
    return imports


def now() -> str:
    """Return the date and time in UTC, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def shown(value: Any) -> str:
    """Return a value from a file as a message may show it: quoted, short, on one line."""
    return f"'{printable(str(value)[:60])}'"


# ---------------------------------------------------------------------- the files of a bundle

Shapes = Mapping[str, tuple[int, ...]]

CONFIG = "config.json"
LARGEST_CONFIG = 2**26
"""Largest ``config.json`` that is read, in bytes: room for 500,000 class names."""


class TensorsRecord(StoredRecord):
    """The file of tensors that belongs to a ``config.json``."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    bytes: int

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"tensors-{self.sha256[:16]}.safetensors"


class BundleRecord(StoredRecord):
    """The part of a ``config.json`` about the files of its bundle."""

    sha256: str
    tensors: TensorsRecord
    versions: dict[str, str] = Field(default_factory=dict)


class StoredTensors(NamedTuple):
    """The tensors of an open safetensors file.

    Attributes:
        metadata: what the writer added.
        shapes: shape of every tensor.
        read: reads the tensors; call it once the shapes are checked.
    """

    metadata: Mapping[str, str]
    shapes: Shapes
    read: Callable[[], dict[str, Tensor]]


def require_access(path: Path) -> None:
    """Raise CheckpointError for a file that this account may not read: it is not damaged."""
    if path.exists() and not os.access(path, os.R_OK):
        raise CheckpointError(
            f"cannot read {path}: Permission denied; give this account access to it"
        )


@contextmanager
def open_tensors(path: Path) -> Iterator[StoredTensors]:
    """Open a safetensors file.

    Within the block, any OSError, ValueError or RecursionError (of a JSON text) becomes a
    CheckpointError that calls the file damaged, as damaged content also fails where it is used.
    """
    require_access(path)
    errors = (SafetensorError, OSError, ValueError, RecursionError)
    damaged = explained(CheckpointError, f"{path} is damaged", *errors)
    with damaged, safe_open(path, framework="pt") as stored:
        shapes = {}
        for key in stored.keys():  # noqa: SIM118, no mapping
            shape = stored.get_slice(key).get_shape()
            shapes[key] = tuple(shape)

        def read() -> dict[str, Tensor]:
            return {key: stored.get_tensor(key) for key in shapes}

        yield StoredTensors(stored.metadata() or {}, shapes, read)


def is_bundle(folder: Path) -> bool:
    """Return whether ``folder`` has the ``config.json`` of a bundle."""
    return (folder / CONFIG).is_file()


def refuse_existing(folder: Path, overwrite: bool) -> None:
    """Check that a bundle may be written to a folder.

    Leftovers of an interrupted writer do not matter; other files do, whatever ``overwrite`` says.

    Args:
        folder: where the bundle is to be.
        overwrite: whether a bundle that is there may be replaced.

    Raises:
        UsageError: it may not.
    """
    if folder.is_symlink() and not folder.exists():
        raise UsageError(
            f"{folder} is a link that leads nowhere: remove it, or choose another --output"
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is a file, expected a folder for the bundle: choose another --output"
        )
    if is_bundle(folder) and not overwrite:
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
    overwrite: bool = False,
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
        UsageError: there is a bundle already and ``overwrite`` is false, or the folder holds other
            files.
        CifnetError: the disk is full or not writable; an old bundle is left as it was.
    """
    refuse_existing(folder, overwrite)
    content = save(dict(tensors))
    digest = hashlib.sha256(content).hexdigest()
    file = TensorsRecord(sha256=digest, bytes=len(content))
    versions = {
        "cifnet_pl": package_version(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
    }
    config = {
        "format": FORMAT,
        **description,
        "versions": versions,
        "tensors": file.model_dump(),
    }
    is_new = not folder.exists()
    try:
        write_atomic(folder / file.name, lambda target: target.write(content))
        signed = {**config, "sha256": _digest(config)}
        write_json(folder / CONFIG, signed)
    except BaseException:
        if is_new:
            _remove_leftovers(folder, keep=None)
        raise
    _remove_leftovers(folder, keep=file.name)


class StoredModel(NamedTuple):
    """A model in an open file.

    Attributes:
        where: what an error calls the file.
        description: as :meth:`Classifier.describe` gives it; not checked yet.
        shapes: shape of every tensor.
        read: reads the tensors, and checks their checksum; call it once the shapes are checked.
    """

    where: str
    description: Any
    shapes: Shapes
    read: Callable[[], Mapping[str, Tensor]]


@contextmanager
def open_bundle(folder: Path) -> Iterator[StoredModel]:
    """Open a bundle.

    Args:
        folder: of the bundle.

    Raises:
        CheckpointError: no bundle, one of another version, or one that is damaged.
    """
    content, file = _read_config(folder)
    path = folder / file.tensors.name
    size = file.tensors.bytes
    if not path.is_file() or path.stat().st_size != size:
        raise CheckpointError(
            f"{folder} is not whole: {path.name} with {size} bytes is missing; copy the bundle"
            " again"
        )

    def read() -> dict[str, Tensor]:
        digest = hashlib.sha256()
        with path.open("rb") as content:
            while block := content.read(2**20):
                digest.update(block)
        if digest.hexdigest() != file.tensors.sha256:
            raise CheckpointError(
                f"{path} is damaged: its checksum is wrong; copy the bundle again"
            )
        return stored.read()

    with open_tensors(path) as stored:
        yield StoredModel(str(folder), content, stored.shapes, read)


def read_versions(folder: Path) -> dict[str, str]:
    """Return the versions of the software that wrote a bundle."""
    _, file = _read_config(folder)
    return {
        printable(name): printable(number) for name, number in file.versions.items()
    }


def tensors_name(folder: Path) -> str:
    """Return the name of the file of tensors of a bundle, whether the file is there or not."""
    _, file = _read_config(folder)
    return file.tensors.name


def _read_config(folder: Path) -> tuple[dict[str, Any], BundleRecord]:
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is not a bundle: it has no {CONFIG} (or its writing was interrupted)"
        )
    if path.stat().st_size > LARGEST_CONFIG:
        raise CheckpointError(
            f"{path} is larger than {LARGEST_CONFIG} bytes: it is not a bundle's"
        )
    require_access(path)
    with explained(CheckpointError, f"{path} is damaged"):
        content = json.loads(path.read_bytes().decode("utf-8"))
        digest = _digest(content)  # NaN has none
    if isinstance(content, dict):
        check_format(content.get("format"), str(folder))
    file = parse(BundleRecord, content, str(folder))
    if file.sha256 != digest:
        raise CheckpointError(
            f"{path} is damaged or was edited: its checksum is wrong; copy the bundle again"
        )
    return content, file


def _digest(config: Any) -> str:
    """Hash a ``config.json`` without the hash in it; ValueError for NaN, which is no JSON."""
    hashed = config
    if isinstance(config, dict):
        hashed = {}
        for key, value in config.items():
            if key != "sha256":
                hashed[key] = value
    text = json.dumps(hashed, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _is_of_bundle(entry: Path) -> bool:
    """Return whether a file was written by this module, or by a writer that was killed."""
    name = entry.name.lstrip(".")
    return name.startswith((CONFIG, "tensors-")) and name.endswith(
        (CONFIG, ".safetensors", ".tmp")
    )


def _remove_leftovers(folder: Path, keep: str | None) -> None:
    """Remove files of killed writers and older tensors; without ``keep`` the folder, too."""
    if not folder.is_dir():
        return
    for entry in folder.iterdir():
        if _is_of_bundle(entry) and entry.name not in (CONFIG, keep):
            entry.unlink(missing_ok=True)
    if keep is None and not any(folder.iterdir()):
        folder.rmdir()
