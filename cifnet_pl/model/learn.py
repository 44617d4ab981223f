"""Teach a learned model new classes, and more photos of known ones, from class folders."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.loading import EMBEDDED_BATCH, pieces
from cifnet_pl.heads.ridge import about_lesson
from cifnet_pl.model.class_photos import ClassPhotos, Unreadable, classes_of_hashes, copies_among, samples_of
from cifnet_pl.model.core import M, Model
from cifnet_pl.model.metrics import hardly_answered, percent
from cifnet_pl.photos.copies import Duplicates
from cifnet_pl.photos.photo import Photo
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import printable

HELD_BACK = 0.2
"""Share of the new photos that is scored before it is learned."""

SOLVED_TOGETHER = 2**21
"""Numbers that a head holds, up to which two models are taught at the same time on a CPU: sums of 2000 features.

Up to there a matrix is solved by one thread. Wider ones take all threads, and too much memory for two of them.
"""


@dataclass
class Score:
    """Photos scored, and how many of them right, over all classes that the model knows.

    Attributes:
        right_of, total_of: the same numbers for each label.
    """

    right: int = 0
    total: int = 0
    right_of: Counter[int] = field(default_factory=Counter)
    total_of: Counter[int] = field(default_factory=Counter)

    def add(self, model: Model, z: Tensor, y: Tensor) -> None:
        """Score embeddings z (n, d) of photos with labels y (n,)."""
        right = (model.head.predict(z).cpu() == y).numpy()
        self.right += int(right.sum())
        self.total += len(y)
        self.right_of.update(y[torch.from_numpy(right)].tolist())
        self.total_of.update(y.tolist())

    def hardly_answered(self) -> list[int]:
        """Return the labels of classes of which hardly any photo is named right."""
        labels = sorted(self.total_of)
        right, total = (np.array([counts[label] for label in labels]) for counts in (self.right_of, self.total_of))
        return [labels[i] for i in hardly_answered(right, total).tolist()]

    @property
    def percent(self) -> float | None:
        """Accuracy in percent; None where nothing was scored."""
        return percent(self.right, self.total)


@dataclass(frozen=True)
class Extension(Generic[M]):
    """The result of :func:`extend` and :func:`learn`.

    Attributes:
        model: the model that learned everything; the one that was extended is not changed.
        learned: number of photos learned of each class.
        score: of the held-back fifth of the new photos, by a model that learned the others.
        seconds: time to embed, learn and score the new photos.
        unreadable: photos that could not be decoded, and were left out.
        warnings: sentences for the user.
        copies: photos that were learned already or occur twice; left out unless ``duplicates`` is "keep".
        undecided: photos in two classes, which are learned as neither until one is taken away; likewise.
        old_before, old_after: of the photos of ``check``, before and after the extension.
    """

    model: M
    learned: dict[str, int]
    score: Score
    seconds: float
    unreadable: list[Unreadable]
    warnings: list[str]
    copies: list[Path]
    undecided: list[Path]
    old_before: Score = field(default_factory=Score)
    old_after: Score = field(default_factory=Score)

    @property
    def hardly_answered(self) -> list[str]:
        """Classes of which hardly any scored photo is named right."""
        names = self.model.name_of
        return [names[label] for score in (self.score, self.old_after) for label in score.hardly_answered()]


def extend(
    old: M,
    images: Path | str,
    *,
    check: Path | str | None = None,
    more: bool = False,
    duplicates: Duplicates = "leave_out",
    progress: bool = False,
) -> Extension[M]:
    """Learn new classes from one folder of photos per class, without any old photo.

    The new classes become the model's next task. A fifth of the new photos is held back and scored by a model that
    learned the others; then all are learned.

    Args:
        old: a learned model; it is not changed.
        images: folder with one sub-folder of photos per class; for a model of embeddings, a file of those with labels.
        check: folder with one sub-folder of photos per old class, scored before and after, never learned.
        more: whether classes that are known already may get more photos.
        duplicates: "leave_out" to leave out photos that were learned already, occur twice or lie in two classes,
            "keep" to learn them.
        progress: whether to draw progress bars on a terminal.

    Returns:
        The extended model with counts, scores and warnings.

    Raises:
        UsageError: a class that is known already without ``more``.
        UnsupportedError: ``more`` photos for a head that cannot take them in.
        DataError: a folder is missing, holds no photos, none of a class that can be read, or none that is new.
    """
    photos = samples_of(old, images, "--images")
    known = sorted(set(photos.class_names) & set(old.class_names))
    if known and not more:
        name = printable(known[0])
        raise UsageError(f"class '{name}' is already learned: add --more to give it more photos, or rename its folder")
    warnings = [*photos.notes, *old.warnings_of(photos.class_names)]
    old_photos = None
    if check is not None:
        old_photos = samples_of(old, check, "--check", tested=True)
        warnings += old_photos.notes
        old_photos = old_photos.of(set(old.class_names))
        if not old_photos.class_names:
            raise DataError(f"{check} has no folder of a class that the model knows: give photos of its old classes")
    result = learn(old, photos, duplicates, progress)
    model, before, after = result.model, result.old_before, result.old_after
    model.note_engines([model.engine])
    if old_photos is not None:
        labels = torch.tensor(old.labels(old_photos.class_names))
        for rows, z in old_photos.embedded(old, "checking", result.unreadable, progress):
            y = labels[old_photos.files.labels[rows]]
            before.add(old, z, y)
            after.add(model, z, y)
    changes = about_lesson(old.head.choices() if len(old.class_names) > 1 else [], model.head.choices())
    result.warnings[:] = [*warnings, *result.warnings, *changes]
    model.note(
        "extend",
        sum(result.learned.values()),
        accuracy=result.score.percent,
        old_accuracy_before=before.percent,
        old_accuracy=after.percent,
        seconds=result.seconds,
        class_names=list(result.learned),
        parents=[old.identity],
    )
    return result


def learn(old: M, photos: ClassPhotos, duplicates: Duplicates = "keep", progress: bool = False) -> Extension[M]:
    """Embed new photos once, and learn them twice: all of them, and all but a fifth, on which the second is scored.

    Each photo is opened once: for its hash, which tells whether it is a copy, its thumbnail, time and pixels. Photos
    that look alike are held back together, and none of a class with a single photo. The embeddings are in memory
    meanwhile, 4 bytes for each number.

    Args:
        old: a learned model; it is not changed.
        photos: of new classes, and more of known ones.
        duplicates: "leave_out" to leave out photos that were learned already, occur twice or lie in two classes,
            "keep" to learn them.
        progress: whether to draw a progress bar on a terminal.

    Returns:
        The model that learned, without an entry in its history, and warnings about copies.

    Raises:
        UnsupportedError: photos of a class that is known, and a head that cannot take in more of those.
        DataError: a class of which no photo can be read, or no photo is new.
    """
    start, unreadable = time.perf_counter(), list[Unreadable]()
    leave_out = duplicates == "leave_out"
    known = classes_of_hashes(old, photos.class_names) if leave_out else {}
    labels = photos.files.labels

    def skip(row: int, content_hash: int) -> bool:
        return int(labels[row]) in known.get(content_hash, ())

    z, read = np.empty((len(labels), old.head.in_features), np.float32), np.zeros(len(labels), dtype=bool)
    for rows, part in photos.embedded(old, "learning", unreadable, progress, Photo.look, skip if known else None):
        z[rows], read[rows] = part.cpu().numpy(), True
    repeated, twofold, news = copies_among(old, photos, duplicates)
    root, names = photos.files.root, photos.files.names
    copies, undecided = ([root / names[row] for row in rows] for rows in (repeated, twofold))
    kept = np.ones(len(labels), dtype=bool)
    kept[[*repeated, *twofold]] = False
    if leave_out and not kept.all():
        photos, z, read = photos.select(kept), z[kept], read[kept]
    old.check_task(photos.class_names)
    held = _held_back(photos, read)
    final, trial = old.clone(), old.clone()
    trial.calibrated = False  # it only predicts: no temperature is fitted again
    trial.head.temperature.fill_(1)
    trial.head.odds_power.fill_(1)
    trial.head.decides &= not old.class_names  # how to score was decided with the photos before
    asked = [(final, photos, z, read), (trial, photos, z, read & ~held)]
    if _solved_together(old):
        with ThreadPoolExecutor(2, "learn") as pool:
            list(pool.map(_teach, *zip(*asked, strict=True)))
    else:
        for each in asked:
            _teach(*each)
    score, new_labels = Score(), torch.tensor(trial.labels(photos.class_names))
    for rows in pieces(np.flatnonzero(held), EMBEDDED_BATCH):
        score.add(trial, torch.from_numpy(z[rows]).to(old.device), new_labels[photos.files.labels[rows]])
    counts = {name: final.counts[name] - old.counts.get(name, 0) for name in photos.class_names}
    return Extension(final, counts, score, time.perf_counter() - start, unreadable, news, copies, undecided)


def _held_back(photos: ClassPhotos, read: np.ndarray) -> np.ndarray:
    """Choose the photos that are scored first among those that could be ``read`` (n,) bool; return (n,) bool.

    Raises:
        DataError: no photo of a class could be read.
    """
    held = np.zeros(len(read), dtype=bool)
    for label, rows in photos.files.rows_of.items():
        rows = rows[read[rows]]
        if not len(rows):
            name = printable(photos.class_names[label])
            raise DataError(f"no photo of class '{name}' can be read: add some, or leave it out")
        if len(rows) > 1:
            held[rows] = photos.held_back(rows, HELD_BACK)
    return held


def _teach(model: Model, photos: ClassPhotos, z: np.ndarray, kept: np.ndarray) -> None:
    """Teach a model the photos of a mask (n,), whose embeddings are those of z (n, d), as one task."""
    names, positions = photos.class_names, photos.files.labels
    model.begin_task(names, np.bincount(positions[kept], minlength=len(names)).tolist())
    labels = torch.tensor(model.labels(names))
    for rows in pieces(np.flatnonzero(kept), EMBEDDED_BATCH):
        model.observe(torch.from_numpy(z[rows]), labels[positions[rows]], torch.from_numpy(photos.files.hashes(rows)))
    model.finish_task()


def _solved_together(model: Model) -> bool:
    """Return whether two threads teach a model and its trial, which they do for narrow ones on a CPU."""
    return model.device.type == "cpu" and sum(held.numel() for held in model.head.buffers()) <= SOLVED_TOGETHER
