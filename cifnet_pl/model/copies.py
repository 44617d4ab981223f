"""Find photos that were learned already, occur twice, or are in two classes, by their content hashes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cifnet_pl.data.copies import Duplicates, about_copies, about_labels
from cifnet_pl.model.class_photos import ClassPhotos
from cifnet_pl.model.incremental import IncrementalClassifier
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import printable


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
    assert photos.hashes is not None
    names = [photos.class_names[label] for label in photos.files.labels]
    learned: dict[int, set[str]] = {}
    if model.photos is not None:
        name_of = dict(zip(model.head.classes, model.class_names, strict=True))
        for label, hashes in model.photos.by_label().items():
            for value in hashes.tolist():
                learned.setdefault(value, set()).add(name_of[label])
    copy, mislabelled = np.zeros(len(names), dtype=bool), []
    for row, (name, value) in enumerate(zip(names, photos.hashes.tolist(), strict=True)):
        classes = learned.setdefault(value, set())
        copy[row] = name in classes
        if classes - {name}:
            mislabelled.append(f"{_shown(photos, row)} (also in {printable(min(classes - {name}))})")
        classes.add(name)
    copies = [photos.files.root / photos.files.names[int(row)] for row in np.flatnonzero(copy)]
    sentences = [
        about_labels(mislabelled),
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
