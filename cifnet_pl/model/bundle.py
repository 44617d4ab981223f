"""The format of a stored model: its description, and a bundle's folder with ``config.json`` and one
safetensors file.

A description is plain tables and lists, the same in a bundle and in a checkpoint. pydantic checks
what comes from a file, strictly: nothing is converted to another type, and reading never executes
anything.

``config.json`` names the file of tensors that belongs to it, by the hash of its content. Replacing
``config.json`` is the only step that makes a new model the folder's content: a reader finds either
the old model or the new one, complete, whenever the writer is killed.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
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
from cifnet_pl.utilities.plugins import names_import
from cifnet_pl.utilities.text import has_controls, printable

FORMAT = 1
"""Version of the description and of the files that hold it, bundles and checkpoints."""

Engine = Literal["torch", "onnxruntime"]

Text = Annotated[str, Strict()]
Count = Annotated[int, Strict(), Field(ge=0, lt=2**63)]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Setting = Annotated[bool, Strict()] | Annotated[int, Strict()] | Number | Text | None


@dataclass(frozen=True)
class Event:
    """One step in a model's life: a task of its run, or an extension, or classes forgotten.

    Percentages are 0–100, times in seconds, energies in kWh; None where something was not measured.

    Attributes:
        kind: "task", "extend", "merge", "forget" or "recalibrate".
        classes: number of classes known afterwards.
        images: images taken in (extend, merge) or out (forget).
        accuracy: A_k after a task; for an extension, on the fifth of the new images that was held
            out.
        old_accuracy_before: of the earlier classes, on the images of ``--check``, before the
            extension.
        old_accuracy: the same afterwards.
        date: when, in UTC.
        class_names: classes that were learned, merged or forgotten; None where that is not told.
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


class Table(BaseModel):
    """A table from a file, checked strictly; entries that this version does not know are passed
    over.
    """

    model_config = ConfigDict(strict=True)


class BackboneTable(Table):
    """The network that embeds, and the hash of its weights."""

    name: str
    sha256: str
    architecture: str | None = None


class ImagesTable(Table):
    """How images are prepared; ``held_out`` are the share and the seed of the run's own split."""

    image_size: int = Field(ge=1, le=IMAGE_SIZE_LIMIT)
    crop_ratio: Number = Field(gt=0, le=1)
    held_out: (
        tuple[Annotated[Number, Field(gt=0, lt=1)], Annotated[int, Strict()]] | None
    ) = Field(strict=False)


class BufferTable(Table):
    """The settings of the buffer."""

    model_config = ConfigDict(strict=True, extra="forbid")

    capacity: int
    per_class: int | None
    strategy: str
    seed: int
    oversample: bool


class Description(Table):
    """The description of a model in a bundle's ``config.json`` and in a checkpoint: everything but
    its tensors.
    """

    backbone: BackboneTable
    precision: Precision
    engines: list[Engine]
    images: ImagesTable
    head: dict[str, Setting]
    buffer: BufferTable | None
    class_names: list[Any]
    task_sizes: list[Annotated[int, Strict(), Field(gt=0)]]
    history: list[Event] = Field(strict=False)


T = TypeVar("T", bound=BaseModel)


def parse(kind: type[T], content: Any, where: str) -> T:
    """Check a table from a file.

    Args:
        kind: what it should be.
        content: what the file holds.
        where: the file, for messages.

    Raises:
        CheckpointError: an entry is missing, of another type, or not known.
    """
    if not isinstance(content, dict):
        raise CheckpointError(
            f"{where} is damaged or not a model: its description is not a table"
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
    place = ".".join(printable(str(key))[:60] for key in first["loc"])
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
    """Return class names from a file, if each is a plain, unique name that is safe to show and to
    use in a path.

    Args:
        names: the names that a file holds.
        where: what an error calls the file.
        error: what to raise.

    Raises:
        CheckpointError, or ``error``: no name, one that occurs twice or is not text, control
            characters, or a path that leads out of the folder it is joined to.
    """
    if not names:
        raise error(f"{where} names no class")
    for name in names:
        if not isinstance(name, str) or not name or len(name) > 1000:
            raise error(
                f"{where} has {shown(name)} for a class name, expected a text of 1 to 1000"
                " characters"
            )
        if has_controls(name):
            raise error(
                f"{where} has control characters in class name {shown(name)}: rename the class"
            )
        if any(
            component in ("", ".", "..")
            for component in name.replace("\\", "/").split("/")
        ):
            raise error(
                f"{where} has a path for a class name, {shown(name)}: rename the class"
            )
    if len(set(names)) < len(names):
        raise error(
            f"{where} has class {shown(Counter(names).most_common(1)[0][0])} twice"
        )
    return list(names)


def plugin_imports(
    head: Any, backbone: str, architecture: str | None = None
) -> list[str]:
    """Return the imports from outside the package that a model needs; nothing is imported.

    Args:
        head: class of the head, as a description names it.
        backbone, architecture: as for :func:`~cifnet_pl.backbones.build_backbone`.
    """
    return [
        *[head] * (isinstance(head, str) and names_import(head)),
        *backbone_imports(backbone, architecture),
    ]


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


class TensorsTable(Table):
    """The file of tensors that belongs to a ``config.json``."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    bytes: int

    @property
    def name(self) -> str:
        """Name of the file."""
        return f"tensors-{self.sha256[:16]}.safetensors"


class FileTable(Table):
    """The part of a ``config.json`` about the files of its bundle."""

    sha256: str
    tensors: TensorsTable
    versions: dict[str, str] = Field(default_factory=dict)


class StoredTensors(NamedTuple):
    """The tensors of an open safetensors file.

    Attributes:
        metadata: the notes of its writer.
        shapes: shape of every tensor.
        read: () → the tensors; call it once the shapes are known to be right.
    """

    metadata: Mapping[str, str]
    shapes: Shapes
    read: Callable[[], dict[str, Tensor]]


@contextmanager
def open_tensors(path: Path) -> Iterator[StoredTensors]:
    """Open a safetensors file; within the block, errors of reading it are CheckpointErrors that
    name it.
    """
    damaged = explained(
        CheckpointError, f"{path} is damaged", SafetensorError, OSError, ValueError
    )
    with damaged, safe_open(path, framework="pt") as stored:
        names = list(stored.keys())  # a file, not a mapping
        shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in names}
        yield StoredTensors(
            stored.metadata() or {},
            shapes,
            lambda: {key: stored.get_tensor(key) for key in shapes},
        )


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
    if folder.exists() and not folder.is_dir():
        raise UsageError(
            f"{folder} is a file, expected a folder for the bundle: choose another --output"
        )
    if is_bundle(folder) and not overwrite:
        raise UsageError(
            f"{folder} holds a bundle already: choose another --output, or add --overwrite true"
        )
    if folder.is_dir():
        foreign = sorted(e.name for e in folder.iterdir() if not _ours(e))
    else:
        foreign = []
    if foreign:
        raise UsageError(
            f"{folder} holds other files ({printable(foreign[0])}): choose another --output"
        )


def write_bundle(
    description: Mapping[str, Any],
    tensors: Mapping[str, Tensor],
    folder: Path,
    overwrite: bool = False,
) -> None:
    """Write a description and tensors to ``folder``; see the module's docstring for what a kill can
    leave.

    Args:
        description: plain numbers, strings, lists and tables.
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
    file = TensorsTable(sha256=hashlib.sha256(content).hexdigest(), bytes=len(content))
    config = {
        "format": FORMAT,
        **description,
        "versions": {
            "cifnet_pl": version("cifnet_pl"),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
        "tensors": file.model_dump(),
    }
    fresh = not folder.exists()
    try:
        write_atomic(folder / file.name, lambda target: target.write(content))
        write_json(folder / CONFIG, {**config, "sha256": _digest(config)})
    except BaseException:
        if fresh:
            _remove_leftovers(folder, keep=None)
        raise
    _remove_leftovers(folder, keep=file.name)


@contextmanager
def open_bundle(
    folder: Path,
) -> Iterator[tuple[dict[str, Any], Shapes, Callable[[], dict[str, Tensor]]]]:
    """Open a bundle.

    Args:
        folder: of the bundle.

    Yields:
        Its description, the shape of every tensor, and a function that reads the tensors. That
        function verifies the checksum of the tensors, so call it once the shapes are known to be
        right.

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
        yield content, stored.shapes, read


def read_versions(folder: Path) -> dict[str, str]:
    """Return the versions of the software that wrote a bundle."""
    _, file = _read_config(folder)
    return {
        printable(name): printable(number) for name, number in file.versions.items()
    }


def tensors_name(folder: Path) -> str:
    """Return the name of the file of tensors that belongs to the ``config.json`` of ``folder``,
    there or not.
    """
    _, file = _read_config(folder)
    return file.tensors.name


def _read_config(folder: Path) -> tuple[dict[str, Any], FileTable]:
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(
            f"{folder} is not a bundle: it has no {CONFIG} (or its writing was interrupted)"
        )
    if path.stat().st_size > LARGEST_CONFIG:
        raise CheckpointError(
            f"{path} is larger than {LARGEST_CONFIG} bytes: it is not a bundle's"
        )
    with explained(CheckpointError, f"{path} is damaged"):
        content = json.loads(path.read_bytes().decode("utf-8"))
        digest = _digest(content)  # NaN has none
    if isinstance(content, dict):
        check_format(content.get("format"), str(folder))
    file = parse(FileTable, content, str(folder))
    if file.sha256 != digest:
        raise CheckpointError(
            f"{path} is damaged or was edited: its checksum is wrong; copy the bundle again"
        )
    return content, file


def _digest(config: Any) -> str:
    """Hash the content of a ``config.json``, but for the hash in it; ValueError for what is not
    JSON, such as NaN.
    """
    if isinstance(config, dict):
        hashed = {key: value for key, value in config.items() if key != "sha256"}
    else:
        hashed = config
    return hashlib.sha256(
        json.dumps(hashed, sort_keys=True, allow_nan=False).encode()
    ).hexdigest()


def _ours(entry: Path) -> bool:
    """Return whether a file in a bundle's folder was written by this module, or by a writer that
    was killed.
    """
    name = entry.name.lstrip(".")
    return name.startswith((CONFIG, "tensors-")) and name.endswith(
        (CONFIG, ".safetensors", ".tmp")
    )


def _remove_leftovers(folder: Path, keep: str | None) -> None:
    """Remove files of killed writers, and tensors that no ``config.json`` names; without ``keep``
    the folder too.
    """
    for entry in folder.iterdir() if folder.is_dir() else ():
        if _ours(entry) and entry.name not in (CONFIG, keep):
            entry.unlink(missing_ok=True)
    if keep is None and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
