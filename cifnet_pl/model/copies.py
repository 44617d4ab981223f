"""Find photos that were learned already, occur twice, or are in two classes, by their content hashes."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from cifnet_pl.data.content_hashes import NOTHING
from cifnet_pl.data.copies import Duplicates, about_copies, about_labels
from cifnet_pl.data.folders import about_nesting
from cifnet_pl.data.image_sets import FileSet
from cifnet_pl.model.class_photos import ClassPhotos
from cifnet_pl.model.incremental import IncrementalClassifier
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import printable


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


def find_repeats(model: IncrementalClassifier, photos: ClassPhotos) -> Repeats:
    """Compare photos with each other and with those that a model has learned.

    Args:
        model: a learned model.
        photos: with their content hashes; those that cannot be read are never copies.
    """
    assert photos.hashes is not None
    known: dict[int, set[str]] = {}
    if model.photos is not None:
        name_of = dict(zip(model.head.classes, model.class_names, strict=True))
        for label, hashes in model.photos.by_label().items():
            for value in hashes.tolist():
                known.setdefault(value, set()).add(name_of[label])
    before = {value: frozenset(classes) for value, classes in known.items()}
    learned, twice = np.zeros((2, len(photos.hashes)), dtype=bool)
    mislabelled = []
    for row, value in enumerate(photos.hashes.tolist()):
        if value == NOTHING:
            continue
        name, classes = photos.class_names[photos.files.labels[row]], known.setdefault(value, set())
        learned[row] = name in before.get(value, ())
        twice[row] = name in classes and not learned[row]
        if classes - {name}:
            mislabelled.append(f"{_shown(photos, row)} (also in {printable(min(classes - {name}))})")
        classes.add(name)
    return Repeats(learned, twice, mislabelled)


def without_copies(
    model: IncrementalClassifier, photos: ClassPhotos, duplicates: Duplicates
) -> tuple[ClassPhotos, list[Path], list[str]]:
    """Leave out photos that the model has learned in the same class, and all but the first of those that occur twice.

    Args:
        model: what is to learn.
        photos: with their content hashes.
        duplicates: "leave_out" to leave copies out, "keep" to keep them and only name them.

    Returns:
        The photos to learn, the copies, and sentences for the user. A photo in two classes is kept in both, as it is
        not known which label is wrong.

    Raises:
        DataError: no photo is left.
    """
    repeats = find_repeats(model, photos)
    copy = repeats.learned | repeats.twice
    copies = [photos.files.root / photos.files.names[int(row)] for row in np.flatnonzero(copy)]
    sentences = [
        about_nesting(photos.files, photos.class_names) if isinstance(photos.files, FileSet) else None,
        about_labels(repeats.mislabelled),
        about_copies([_shown(photos, int(i)) for i in np.flatnonzero(copy)], duplicates),
    ]
    news = [sentence for sentence in sentences if sentence]
    if duplicates == "leave_out" and copies:
        if copy.all():
            raise DataError(f"every photo in {photos.files.root} is learned already: there is nothing to learn")
        photos = photos.select(~copy)
    return photos, copies, news


def _shown(photos: ClassPhotos, row: int) -> str:
    return printable(photos.files.names[row])
