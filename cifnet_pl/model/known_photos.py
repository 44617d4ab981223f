"""Find photos that were learned already, occur twice, or are in two classes, by their content hashes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.sets import FileSet
from cifnet_pl.data.sources.folders import about_nesting
from cifnet_pl.model.class_photos import ClassPhotos
from cifnet_pl.model.core import Model
from cifnet_pl.model.metrics import percent
from cifnet_pl.photos.copies import Duplicates, about_copies, about_labels
from cifnet_pl.photos.copies import find_repeats as compared
from cifnet_pl.statistics import comparable, near_groups, near_limit, resembles
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.files import of_all_processes
from cifnet_pl.utilities.text import number_of, printable


class Repeats(NamedTuple):
    """Photos whose content occurs elsewhere.

    Attributes:
        learned: (n,) bool: those that a model has learned in the same class.
        twice: (n,) bool: those that are copies of an earlier one of their class, which was not learned.
        mislabelled: those that are in another class, too, as messages name them.
    """

    learned: np.ndarray
    twice: np.ndarray
    mislabelled: list[str]


def find_repeats(model: Model, photos: ClassPhotos) -> Repeats:
    """Compare photos with each other and with those that a model has learned.

    Args:
        model: a learned model.
        photos: those that cannot be read are never copies.
    """
    names = list(dict.fromkeys([*photos.class_names, *model.class_names]))
    hashes = photos.files.hashes(np.arange(len(photos.files)))
    repeats = compared(enumerate(hashes.tolist()), photos.files.labels, classes_of_hashes(model, names))
    learned, twice = np.zeros((2, len(hashes)), dtype=bool)
    learned[repeats.learned], twice[list(repeats.twice)] = True, True
    others = repeats.other_class.items()
    mislabelled = [f"{_shown(photos, row)} (also in {printable(names[other])})" for row, other in others]
    return Repeats(learned, twice, mislabelled)


def classes_of_hashes(model: Model, names: Sequence[str]) -> dict[int, set[int]]:
    """Return the classes in which a model has learned each photo.

    Args:
        model: a learned model.
        names: of classes; those of others are left out.

    Returns:
        Content hash → positions in ``names``.
    """
    position = {name: i for i, name in enumerate(names)}
    name_of = dict(zip(model.head.classes, model.class_names, strict=True))
    known: dict[int, set[int]] = {}
    for label, hashes in model.photos.by_label().items() if model.photos is not None else ():
        if name_of[label] in position:
            for value in hashes.tolist():
                known.setdefault(value, set()).add(position[name_of[label]])
    return known


def copies_among(model: Model, photos: ClassPhotos, duplicates: Duplicates) -> tuple[np.ndarray, list[str]]:
    """Find photos that the model has learned in the same class, and all but the first of those that occur twice.

    Args:
        model: what is to learn.
        photos: what it is to learn from.
        duplicates: "leave_out" if copies are left out, "keep" if they are only named.

    Returns:
        (n,) bool, whether each is a copy, and sentences for the user. A photo in two classes is a copy in neither, as
        it is not known which label is wrong.

    Raises:
        DataError: no photo is left.
    """
    repeats = find_repeats(model, photos)
    copy = repeats.learned | repeats.twice
    sentences = [
        about_nesting(photos.files, photos.class_names) if isinstance(photos.files, FileSet) else None,
        about_labels(repeats.mislabelled),
        about_copies([_shown(photos, int(i)) for i in np.flatnonzero(copy)], duplicates),
    ]
    if duplicates == "leave_out" and copy.all():
        raise DataError(f"every photo in {photos.files.root} is learned already: there is nothing to learn")
    return copy, [sentence for sentence in sentences if sentence]


def _shown(photos: ClassPhotos, row: int) -> str:
    return printable(photos.files.names[row])


LIMIT = 256 * 10**6
"""Bytes of learned embeddings that are kept to compare others with; those past it are not compared."""


class LearnedPhotos:
    """The embeddings of photos that were learned, in half precision, up to ``LIMIT`` bytes.

    Args:
        reference: embeddings (m, d) of other photos by the same network and their labels (m,), to measure how alike
            photos of different classes are; needed if all photos are of one class, else nothing is compared.

    Attributes:
        limit: from :func:`cifnet_pl.statistics.near_limit`; None until there are photos of two classes.
    """

    def __init__(self, reference: tuple[Tensor, Tensor] | None = None) -> None:
        self.limit: float | None = None
        self._reference = reference
        self._parts: list[tuple[Tensor, Tensor]] = []
        self._bytes = 0

    def add(self, z: Tensor, y: Tensor) -> None:
        """Take in embeddings (n, d) and labels (n,)."""
        kept = comparable(z).half().cpu()
        if self._bytes + kept.nbytes <= LIMIT:
            self._parts.append((kept, y.cpu()))
            self._bytes += kept.nbytes

    def gather(self) -> None:
        """Take in what all processes took in."""
        self._parts = [part for parts in of_all_processes(self._parts) for part in parts]

    def labels(self) -> list[int]:
        """Return the labels of which there are photos."""
        return sorted({label for _, y in self._parts for label in y.tolist()})

    def _joined(self) -> tuple[Tensor, Tensor]:
        u, y = (torch.cat(column) for column in zip(*self._parts, strict=True))
        return u, y

    def measure(self) -> bool:
        """Measure the limit, unless it is known; return whether it is."""
        if self.limit is None and self._parts:
            u, y = self._joined()
            if self._reference is not None:
                z, labels = self._reference
                u, y = torch.cat([u, comparable(z).half().cpu()]), torch.cat([y, labels.cpu()])
            self.limit = near_limit(u, y)
        return self.limit is not None

    def near_copies(self) -> tuple[int, int]:
        """Count the photos that have a near-copy in their class, and all that were compared."""
        if not self._parts or not self.measure():
            return 0, 0
        assert self.limit is not None
        u, y = self._joined()
        sizes = near_groups(u, y, self.limit).bincount()
        return int(sizes[sizes > 1].sum()), len(u)

    def resemble(self, z: Tensor, y: Tensor) -> np.ndarray:
        """Find photos that have a near-copy of their class among those taken in.

        Args:
            z: (n, d) embeddings.
            y: (n,) int64 labels.

        Returns:
            (n,) bool.
        """
        if not self._parts or not len(z) or not self.measure():
            return np.zeros(len(z), dtype=bool)
        assert self.limit is not None
        return resembles(comparable(z).cpu(), y.cpu(), *self._joined(), self.limit).numpy()


FEW = 5
"""Other photos from which their score is told."""


@dataclass(frozen=True)
class NearCopyScore:
    """The number of tested photos that resemble learned ones, and the score of the others.

    Attributes:
        near: tested photos with a near-copy of their class among the learned ones.
        others, right: the other tested photos, and those of them that are named right.
        learned: those of ``near`` that were learned themselves, where content hashes tell.
    """

    near: int = 0
    others: int = 0
    right: int = 0
    learned: int = 0

    @classmethod
    def of(cls, near: np.ndarray, right: np.ndarray, learned: int = 0) -> NearCopyScore:
        """Count from (n,) bool, whether photos are ``near`` learned ones, and named ``right``."""
        return cls(int(near.sum()), int((~near).sum()), int((right & ~near).sum()), learned)

    def __add__(self, other: NearCopyScore) -> NearCopyScore:
        ours, theirs = astuple(self), astuple(other)
        return NearCopyScore(*(a + b for a, b in zip(ours, theirs, strict=True)))

    def sentence(self) -> str | None:
        """Return a note to print beside the score; None if no tested photo resembles a learned one."""
        if not self.near:
            return None
        total, share = self.near + self.others, percent(self.right, self.others)
        are, were, flatter = (
            ("is a near-copy", "was", "flatters") if self.near == 1 else ("are near-copies", "were", "flatter")
        )
        what = f"{were} learned already" if self.learned == self.near else f"{are} of learned ones"
        if 0 < self.learned < self.near:
            what += f" ({self.learned} of them the very same files)"
        start = f"{self.near} of these {number_of(total, 'photo')} {what} and {flatter} the score"
        if not self.others:
            whose = "the only photo" if total == 1 else f"all {total} photos"
            return f"{whose} {what} and {flatter} the score: it says nothing of photos of another day"
        if self.others < FEW or share is None:
            return f"{start}: with {number_of(self.others, 'other')} it says little of photos of another day"
        return f"{start}: of the {number_of(self.others, 'other')} {share:.1f} % are right"

    def sentences(self, near: int, total: int, capped: bool) -> list[str]:
        """Return the notes to print beside the score; arguments are those of :func:`about_near_copies`."""
        return [note for note in (self.sentence(), about_near_copies(near, total, capped)) if note]


MANY = 0.1
"""Share of near-copies from which a ridge at its cap is told: 12 × 25 distinct photos have 0 to 7 % of them."""


def about_near_copies(near: int, total: int, capped: bool) -> str | None:
    """Return a note about learned photos that have near-copies; None if there are none.

    Args:
        near: learned photos that have near-copies.
        total: all that were compared.
        capped: whether a ridge is at its cap, as it is where near-copies are many, or distinct photos few and easy.
    """
    if not near:
        return None
    note = f"{near} of {total} learned photos are near-copies of others (bursts, edited versions) and add little"
    if capped and near >= MANY * total:
        note += ". The model was kept from fitting these too closely; photos of other days would teach it more"
    return note
