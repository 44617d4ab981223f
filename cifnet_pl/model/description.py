"""Describe a stored model as plain tables and lists, the same in a bundle and in a checkpoint.

A description that comes from a file is checked by pydantic, strictly: nothing is converted to another type.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import torch
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError
from torch import Tensor

from cifnet_pl.backbones import imports
from cifnet_pl.backbones.engines import FLOAT32
from cifnet_pl.photos.photo import LARGEST_IMAGE
from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.growing_tensors import GrowingModule
from cifnet_pl.utilities.plugins import names_import
from cifnet_pl.utilities.text import has_controls, printable

FORMAT = 3
"""Version of the description and of the files that hold it, bundles and checkpoints."""

READABLE = (1, 2, FORMAT)
"""Versions that can be read."""

Engine = Literal["torch", "onnxruntime"]

TORCH: Engine = "torch"
"""What ran the backbone of models that do not tell."""

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
        date: when, in UTC; None for what older versions wrote.
        class_names: classes that were learned, merged or forgotten; None where that is not told.
        parents: identities (:attr:`IncrementalClassifier.identity`) of the models that this step started from.
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


class Description(Table):
    """The description of a model in a bundle's ``config.json`` and in a checkpoint: everything but its tensors."""

    backbone: BackboneTable
    precision: str = FLOAT32  # not told by older models
    engines: Annotated[list[Engine], AfterValidator(_distinct)] = Field(default_factory=lambda: [TORCH])
    images: ImagesTable
    head: dict[str, Setting]
    buffer: dict[str, Setting] | None
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


def check_format(number: Any, where: str, kinds: Sequence[int] = READABLE) -> None:
    """Check that a file has a format that this version reads.

    Args:
        number: the format that the file names.
        where: what an error calls the file.
        kinds: formats that are read.

    Raises:
        CheckpointError: it has another one.
    """
    if type(number) is not int or number not in kinds:
        known = " and ".join(map(str, kinds))
        raise CheckpointError(f"{where} has format {shown(number)}, this version reads {known}: update cifnet_pl")


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


class PhotoHashes(GrowingModule):
    """Hashes of the photos of each class; a photo that was learned twice has its hash twice.

    Buffers:
        labels: (C,) int64 label of each class that has hashes, ascending.
        counts: (C,) int64 number of its photos.
        content: (n,) int64 hashes, class after class, ascending within a class.
    """

    labels: Tensor
    counts: Tensor
    content: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("labels", "counts", "content"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64))

    def by_label(self) -> dict[int, np.ndarray]:
        """Return the hashes of each class: label → (n_c,) int64, ascending."""
        parts = np.split(self.content.cpu().numpy(), np.cumsum(self.counts.cpu().numpy())[:-1])
        return dict(zip(self.labels.tolist(), parts, strict=False))

    def of(self, label: int) -> np.ndarray:
        """Return the hashes of one class, ascending; none if it has no hashes."""
        return self.by_label().get(label, np.zeros(0, dtype=np.int64))

    @property
    def copies(self) -> int:
        """Number of photos that are copies of another one, of any class."""
        return len(self.content) - len(torch.unique(self.content))

    def add(self, labels: np.ndarray, hashes: np.ndarray) -> None:
        """Add photos: (n,) labels and (n,) hashes."""
        groups = self.by_label()
        for label in np.unique(labels).tolist():
            groups[label] = np.concatenate([groups.get(label, hashes[:0]), hashes[labels == label]])
        self._set(groups)

    def subtract(self, other: PhotoHashes) -> None:
        """Remove the photos of ``other``, each as often as it occurs there."""
        groups = self.by_label()
        for label, hashes in other.by_label().items():
            if label in groups:
                groups[label] = multiset_difference(groups[label], hashes)
        self._set(groups)

    def remove(self, labels: Sequence[int]) -> None:
        """Drop the hashes of classes."""
        self._set({label: hashes for label, hashes in self.by_label().items() if label not in set(labels)})

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename classes, old label → new one."""
        self._set({labels[label]: hashes for label, hashes in self.by_label().items()})

    def complete(self, counts: Mapping[int, int]) -> bool:
        """Return whether the hash of every photo is known.

        Args:
            counts: label → number of photos learned.
        """
        groups = self.by_label()
        return all(len(groups.get(label, ())) == count for label, count in counts.items())

    def check(self, classes: Sequence[int], where: str) -> None:
        """Check loaded hashes.

        Args:
            classes: labels that the head knows.
            where: what an error calls the file.

        Raises:
            CheckpointError: the hashes do not fit these classes.
        """
        sizes = self.counts.tolist()
        whole = self.labels.ndim == self.counts.ndim == self.content.ndim == 1 and len(self.labels) == len(sizes)
        known = set(self.labels.tolist()) <= set(classes) and len(set(self.labels.tolist())) == len(sizes)
        if not (whole and known and all(size > 0 for size in sizes) and sum(sizes) == len(self.content)):
            raise CheckpointError(f"{where} is damaged: its content hashes do not go together with its classes")

    def _set(self, groups: Mapping[int, np.ndarray]) -> None:
        kept = {label: np.sort(groups[label]) for label in sorted(groups) if len(groups[label])}
        device = self.content.device
        self.labels = torch.tensor(list(kept), dtype=torch.int64, device=device)
        self.counts = torch.tensor([len(hashes) for hashes in kept.values()], dtype=torch.int64, device=device)
        joined = np.concatenate([np.zeros(0, dtype=np.int64), *kept.values()])
        self.content = torch.from_numpy(joined).to(device)


def multiset_difference(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Remove each of ``theirs`` (m,) once from ``ours`` (n,), if it occurs there.

    Returns:
        What is left, ascending.

    Example:
        >>> multiset_difference(np.array([1, 1, 2, 3]), np.array([1, 3, 4])).tolist()
        [1, 2]
    """
    values, counts = np.unique(ours, return_counts=True)
    other, less = np.unique(theirs, return_counts=True)
    taken = dict(zip(other.tolist(), less.tolist(), strict=True))
    left = [max(0, count - taken.get(value, 0)) for value, count in zip(values.tolist(), counts.tolist(), strict=True)]
    return np.repeat(values, left)
