"""One lesson for a stored model: new classes, and more photos of known ones, from class folders. No Lightning."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.folders import class_folders, file_set, listing, require_classes
from cifnet_pl.data.image_sets import FileSet, expanded, held_back, place
from cifnet_pl.data.loading import sample_key
from cifnet_pl.data.photos import batch_size, squares
from cifnet_pl.heads import Head
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.description import class_names
from cifnet_pl.model.metrics import percent
from cifnet_pl.utilities.errors import CheckpointError, DataError, UnsupportedError, UsageError
from cifnet_pl.utilities.progress import counted
from cifnet_pl.utilities.text import printable

HELD_BACK = 0.2
"""Share of the new photos that is scored before it is learned."""


@dataclass(frozen=True)
class ClassPhotos:
    """Photos in class folders: ``files.labels`` are positions in ``class_names``."""

    class_names: list[str]
    files: FileSet

    @classmethod
    def find(cls, folder: str, option: str) -> ClassPhotos:
        """The photos of all class folders in ``folder``, which ``option`` named.

        Raises:
            DataError: no such folder, no class folder in it, one without a photo, or a name that cannot be stored.
        """
        root = expanded(Path(folder))
        if not root.is_dir():
            raise DataError(
                f"no folder {place(root)}: set {option} to a folder with one sub-folder of photos per class"
            )
        with listing():
            names = [path.name for path in class_folders(root)]
            require_classes(names, root)
            try:
                class_names(names, place(root))
            except CheckpointError as error:
                raise DataError(str(error)) from error
            return cls(names, file_set(root, names))

    def of(self, wanted: set[str]) -> ClassPhotos:
        """The photos of the classes in ``wanted``."""
        names = [name for name in self.class_names if name in wanted]
        position = np.array([names.index(name) if name in wanted else -1 for name in self.class_names])
        rows = np.flatnonzero(position[self.files.labels] >= 0)
        part = self.files.subset(rows)
        return ClassPhotos(names, FileSet(part.root, part.names, position[part.labels].tolist()))

    def embedded(self, model: Classifier, what: str) -> Iterator[tuple[np.ndarray, Tensor]]:
        """(n,) rows and their (n, d) embeddings, in batches; photos that cannot be read are named and left out."""
        start = 0
        files = [self.files.root / name for name in self.files.names]
        size = batch_size(model.image_size)
        for batch in counted(squares(files, model.image_size, model.crop_ratio), what, -(-len(files) // size)):
            good = np.array([reason is None for reason in batch.unreadable])
            for file, reason in zip(batch.files, batch.unreadable, strict=True):
                if reason is not None:
                    print(f"skipped {printable(str(file))}: {reason}", file=sys.stderr)
            yield start + np.flatnonzero(good), model.embed_photos(batch)
            start += len(batch.files)


class Lesson:
    """A task of new classes, and more samples of known ones, for one model.

    Args:
        model: what learns; it changes.
        photos: what it learns from.
        counts: number of photos of each class of ``photos`` that it will see.

    Raises:
        UnsupportedError: photos of a class that is known, and a head that cannot take in more of those.
    """

    def __init__(self, model: Classifier, photos: ClassPhotos, counts: list[int]):
        known, names = set(model.class_names), photos.class_names
        self.model, self.photos = model, photos
        self.is_new = np.array([name not in known for name in names])
        self.more: Head | None = None
        old, new = ([i for i, name in enumerate(names) if (name in known) == seen] for seen in (True, False))
        if old:
            self.more = model.head.fresh()
            self.more.begin_task(model.labels(names[i] for i in old), [counts[i] for i in old])
        if new:
            model.begin_task([names[i] for i in new], [counts[i] for i in new])
        if self.more is not None:
            _refuse_unless_additive(model, self.more, names[old[0]])
        self.labels = np.array(model.labels(names), dtype=np.int64)

    def observe(self, rows: np.ndarray, z: Tensor) -> None:
        """Take in the embeddings (n, d) of photos ``rows`` (n,)."""
        classes = self.photos.files.labels[rows]
        y = torch.from_numpy(self.labels[classes]).to(z.device)
        names = [
            (self.photos.class_names[c], self.photos.files.names[row]) for c, row in zip(classes, rows, strict=True)
        ]
        key = torch.tensor([sample_key(*name) for name in names], dtype=torch.int64, device=z.device)
        new = torch.from_numpy(self.is_new[classes]).to(z.device)
        if new.any():
            self.model.observe(z[new], y[new], key[new])
        if self.more is not None and not new.all():
            self.more.observe(z[~new], y[~new])
            if self.model.buffer is not None:
                self.model.buffer.add_more(z[~new], y[~new], key[~new])

    def finish(self) -> None:
        """Solve on everything taken in."""
        if self.is_new.any():
            self.model.finish_task()
        if self.more is not None:
            self.model.merge(self.more)


def _refuse_unless_additive(model: Classifier, more: Head, name: str) -> None:
    try:
        model.clone().head.merge_(more)
    except (UnsupportedError, UsageError) as error:
        known = f"cannot add photos to class '{printable(name)}', which is learned already"
        raise UnsupportedError(f"{known}: {error}") from error


@dataclass
class Score:
    """Photos scored, and how many of them right, over all classes that the model knows."""

    right: int = 0
    total: int = 0

    def add(self, model: Classifier, photos: ClassPhotos, rows: np.ndarray, z: Tensor) -> None:
        """Score the embeddings (n, d) of photos ``rows``."""
        if len(rows):
            labels = np.array(model.labels(photos.class_names))[photos.files.labels[rows]]
            self.right += int((model.head.predict(z).cpu().numpy() == labels).sum())
            self.total += len(rows)

    @property
    def percent(self) -> float | None:
        """Accuracy in percent; None where nothing was scored."""
        return percent(self.right, self.total)


def split(photos: ClassPhotos) -> np.ndarray:
    """(n,) bool: the fifth of each class's photos that is scored first; none of a class with a single photo."""
    held = np.zeros(len(photos.files), dtype=bool)
    for rows in photos.files.rows_of.values():
        if len(rows) > 1:
            held[rows] = held_back([photos.files.names[i] for i in rows], HELD_BACK, 0)
    return held


def learn(old: Classifier, photos: ClassPhotos) -> tuple[Classifier, Score]:
    """Embed new photos once, and learn them twice: all of them, and all but a fifth, on which the second is scored.

    Returns:
        The model that learned everything, and the score of the one that learned the rest.

    Raises:
        UnsupportedError: as :class:`Lesson`.
        DataError: a class of which no photo can be read.
    """
    held, labels, names = split(photos), photos.files.labels, photos.class_names
    final, trial = old.clone(), old.clone()
    whole = Lesson(final, photos, np.bincount(labels, minlength=len(names)).tolist())
    part = Lesson(trial, photos, np.bincount(labels[~held], minlength=len(names)).tolist())
    aside: list[tuple[np.ndarray, Tensor]] = []
    learned = np.zeros(len(names), dtype=bool)
    for rows, z in photos.embedded(old, "learning"):
        whole.observe(rows, z)
        kept = held[rows]
        mask = torch.from_numpy(kept).to(z.device)
        part.observe(rows[~kept], z[~mask])
        learned[labels[rows[~kept]]] = True
        aside.append((rows[kept], z[mask]))
    seen = learned.copy()
    for rows, _ in aside:
        seen[labels[rows]] = True
    if not seen.all():
        raise DataError(
            f"no photo of class '{printable(names[int(seen.argmin())])}' can be read: add some, or leave it out"
        )
    whole.finish()
    return final, _finish_trial(part, aside, learned)


def _finish_trial(part: Lesson, aside: list[tuple[np.ndarray, Tensor]], learned: np.ndarray) -> Score:
    """Solve the trial and score what was set aside; a class of which nothing else could be read is learned instead."""
    score, labels = Score(), part.photos.files.labels
    for rows, z in aside:
        starved = ~learned[labels[rows]]
        if starved.any():
            part.observe(rows[starved], z[torch.from_numpy(starved).to(z.device)])
    part.finish()
    for rows, z in aside:
        scored = learned[labels[rows]]
        score.add(part.model, part.photos, rows[scored], z[torch.from_numpy(scored).to(z.device)])
    return score
