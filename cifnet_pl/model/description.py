"""Describe a stored model as plain tables and lists, the same in a bundle and in a checkpoint.

A description that comes from a file is checked by pydantic, strictly: nothing is converted to another type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError

from cifnet_pl.backbones import imports
from cifnet_pl.photos.photo import LARGEST_IMAGE
from cifnet_pl.utilities.errors import CheckpointError
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
        what: "task", "extend", "merge" or "forget".
        classes: number of classes known afterwards.
        photos: photos taken in (extend, merge) or out (forget).
        accuracy: A_k after a task; for an extension, on the fifth of the new photos that was held back.
        old_accuracy_before: of the earlier classes, on the photos of ``--check``, before the extension.
        old_accuracy: the same afterwards.
        date: when, in UTC.
        class_names: classes that were learned, merged or forgotten; None where that is not told.
        parents: identities (:attr:`Model.identity`) of the models that this step started from.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    what: Text
    classes: Count
    photos: Count | None = None
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
    """A table from a file, checked strictly; entries that this version does not know are passed over."""

    model_config = ConfigDict(strict=True)


def _distinct(engines: list[Engine]) -> list[Engine]:
    if len(set(engines)) < len(engines):
        raise ValueError("each engine once")
    return engines


class BackboneTable(Table):
    """The network that embeds, and the hash of its weights."""

    name: str
    sha256: str
    architecture: str | None = None


class ImagesTable(Table):
    """How photos are prepared; ``held_back`` are the share and the seed of the run's own split."""

    image_size: int = Field(ge=1, le=LARGEST_IMAGE)
    crop_ratio: Number = Field(gt=0, le=1)
    held_back: tuple[Annotated[Number, Field(gt=0, lt=1)], Annotated[int, Strict()]] | None = Field(strict=False)


class BufferTable(Table):
    """The settings of the buffer."""

    model_config = ConfigDict(strict=True, extra="forbid")

    capacity: int
    per_class: int | None
    strategy: str
    seed: int
    oversample: bool


class Description(Table):
    """The description of a model in a bundle's ``config.json`` and in a checkpoint: everything but its tensors."""

    backbone: BackboneTable
    precision: str
    engines: Annotated[list[Engine], AfterValidator(_distinct)]
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
        raise CheckpointError(f"{where} is damaged or not a model: its description is not a table")
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise CheckpointError(f"{where} is damaged or not a model: {_sentence(content, error)}") from error


def _sentence(content: Any, error: ValidationError) -> str:
    """Describe the first wrong entry: where it is, what it is and what was expected."""
    errors = error.errors(include_url=False)
    first = errors[0]
    if first["type"] == "missing":
        return f"it has no {'.'.join(printable(str(key))[:60] for key in first['loc'])}"
    path: list[str] = []
    for key in first["loc"]:  # which ends with the name of a type where several types are allowed
        entries = dict(enumerate(content)) if isinstance(content, list) else content
        if not isinstance(entries, dict) or key not in entries:
            break
        path.append(printable(str(key))[:60])
        content = entries[key]
    depth = len(path)
    expected = [e["msg"].replace("Input should be ", "") for e in errors if e["loc"][:depth] == first["loc"][:depth]]
    return f"{'.'.join(path)} is {shown(first['input'])}, expected {' or '.join(dict.fromkeys(expected))}"


def check_format(number: Any, where: str) -> None:
    """Check that the format that a file names is that of this version.

    Args:
        number: what the file says.
        where: what an error calls the file.

    Raises:
        CheckpointError: it is another one.
    """
    if type(number) is not int or number != FORMAT:
        raise CheckpointError(f"{where} has format {shown(number)}, this version reads {FORMAT}: update cifnet_pl")


def class_names(names: Sequence[Any], where: str) -> list[str]:
    """Return class names from a file, if each is a plain, unique name that is safe to show and to use in a path.

    Args:
        names: the names that a file holds.
        where: what an error calls the file.

    Raises:
        CheckpointError: no name, one that occurs twice or is not text, control characters, or a path that leads out of
            the folder it is joined to.
    """
    if not names:
        raise CheckpointError(f"{where} names no class")
    for name in names:
        if not isinstance(name, str) or not name or len(name) > 1000:
            raise CheckpointError(
                f"{where} has {shown(name)} for a class name, expected a text of 1 to 1000 characters"
            )
        if has_controls(name):
            raise CheckpointError(f"{where} has control characters in class name {shown(name)}: rename the class")
        if any(component in ("", ".", "..") for component in name.replace("\\", "/").split("/")):
            raise CheckpointError(f"{where} has a path for a class name, {shown(name)}: rename the class")
    if len(set(names)) < len(names):
        raise CheckpointError(f"{where} has class {shown(Counter(names).most_common(1)[0][0])} twice")
    return list(names)


def outside_parts(head: Any, backbone: str, architecture: str | None = None) -> list[str]:
    """Return the imports from outside the package that a model needs; nothing is imported.

    Args:
        head: class of the head, as a description names it.
        backbone, architecture: as for :func:`~cifnet_pl.backbones.build_backbone`.
    """
    return [*[head] * (isinstance(head, str) and names_import(head)), *imports(backbone, architecture)]


def now() -> str:
    """Return the date and time in UTC, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def shown(value: Any) -> str:
    """Return a value from a file as a message may show it: quoted, short, on one line."""
    return f"'{printable(str(value)[:60])}'"
