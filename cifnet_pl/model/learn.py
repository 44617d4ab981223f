"""Teach a learned model new classes, and more images of known ones, from class folders."""

from __future__ import annotations

import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.loading import EMBEDDED_BATCH, pieces
from cifnet_pl.heads.ridge import about_lesson
from cifnet_pl.images.duplicates import Duplicates
from cifnet_pl.images.image import EncodedImage
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.labelled_images import (
    LabelledImages,
    Unreadable,
    classes_of_hashes,
    duplicates_among,
    samples_of,
)
from cifnet_pl.model.metrics import percent, rarely_predicted
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import printable

HELD_OUT = 0.2
"""Share of the new images that is scored before it is learned."""

SOLVED_TOGETHER = 2**21
"""Numbers that a head holds, up to which two models are taught at the same time on a CPU: sums of
2000 features.

Up to there a matrix is solved by one thread. Wider ones take all threads, and too much memory for
two of them.
"""


@dataclass
class Score:
    """Images scored, and how many of them right, over all classes that the model knows.

    Attributes:
        right_of, total_of: the same numbers for each label.
    """

    right: int = 0
    total: int = 0
    right_of: Counter[int] = field(default_factory=Counter)
    total_of: Counter[int] = field(default_factory=Counter)

    def add(self, model: Classifier, z: Tensor, y: Tensor) -> None:
        """Score embeddings z (n, d) of images with labels y (n,)."""
        right = (model.head.predict(z).cpu() == y).numpy()
        self.right += int(right.sum())
        self.total += len(y)
        self.right_of.update(y[torch.from_numpy(right)].tolist())
        self.total_of.update(y.tolist())

    def rarely_predicted(self) -> list[int]:
        """Return the labels of classes of which hardly any image is named right."""
        labels = sorted(self.total_of)
        right, total = (
            np.array([counts[label] for label in labels])
            for counts in (self.right_of, self.total_of)
        )
        return [labels[i] for i in rarely_predicted(right, total).tolist()]

    @property
    def percent(self) -> float | None:
        """Accuracy in percent; None where nothing was scored."""
        return percent(self.right, self.total)


@dataclass(frozen=True)
class Extension:
    """The result of :func:`extend` and :func:`learn`.

    Attributes:
        model: the model that learned everything; the one that was extended is not changed.
        learned: number of images learned of each class.
        score: of the held-out fifth of the new images, by a model that learned the others.
        seconds: time to embed, learn and score the new images.
        unreadable: images that could not be decoded, and were left out.
        warnings: sentences for the user.
        copies: images that were learned already or occur twice; left out unless ``duplicates`` is
            "keep".
        undecided: images in two classes, which are learned as neither until one is taken away;
            likewise.
        old_before, old_after: of the images of ``check``, before and after the extension.
    """

    model: Classifier
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
    def rarely_predicted(self) -> list[str]:
        """Classes of which hardly any scored image is named right."""
        names = self.model.name_of
        return [
            names[label]
            for score in (self.score, self.old_after)
            for label in score.rarely_predicted()
        ]


def extend(
    old: Classifier,
    images: Path | str,
    *,
    check: Path | str | None = None,
    more: bool = False,
    duplicates: Duplicates = "leave_out",
    progress: bool = False,
) -> Extension:
    """Learn new classes from one folder of images per class, without any old image.

    The new classes become the model's next task. A fifth of the new images is held out and scored
    by a model that learned the others; then all are learned.

    Args:
        old: a learned model; it is not changed.
        images: folder with one sub-folder of images per class; for a model of embeddings, a file of
            those with labels.
        check: folder with one sub-folder of images per old class, scored before and after, never
            learned.
        more: whether classes that are known already may get more images.
        duplicates: "leave_out" to leave out images that were learned already, occur twice or lie in
            two classes, "keep" to learn them.
        progress: whether to draw progress bars on a terminal.

    Returns:
        The extended model with counts, scores and warnings.

    Raises:
        UsageError: a class that is known already without ``more``.
        UnsupportedError: ``more`` images for a head that cannot take them in.
        DataError: a folder is missing, holds no images, none of a class that can be read, or none
            that is new.
    """
    labelled = samples_of(old, images, "--images")
    known = sorted(set(labelled.class_names) & set(old.class_names))
    if known and not more:
        name = printable(known[0])
        raise UsageError(
            f"class '{name}' is already learned: add --more to give it more images, or rename its"
            " folder"
        )
    warnings = [*labelled.notes, *old.class_name_warnings(labelled.class_names)]
    old_images = None
    if check is not None:
        old_images = samples_of(old, check, "--check", tested=True)
        warnings += old_images.notes
        old_images = old_images.of(set(old.class_names))
        if not old_images.class_names:
            raise DataError(
                f"{check} has no folder of a class that the model knows: give images of its old"
                " classes"
            )
    result = learn(old, labelled, duplicates, progress)
    model = result.model
    before = result.old_before
    after = result.old_after
    model.record_engines([model.engine])
    if old_images is not None:
        labels = torch.tensor(old.labels(old_images.class_names))
        for rows, z in old_images.embedded(old, "checking", result.unreadable, progress):
            y = labels[old_images.files.labels[rows]]
            before.add(old, z, y)
            after.add(model, z, y)
    changes = about_lesson(
        old.head.choices() if len(old.class_names) > 1 else [], model.head.choices()
    )
    result.warnings[:] = [*warnings, *result.warnings, *changes]
    model.record_event(
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


def learn(
    old: Classifier, images: LabelledImages, duplicates: Duplicates = "keep", progress: bool = False
) -> Extension:
    """Embed new images once, and learn them twice: all of them, and all but a fifth, on which the
    second is scored.

    Each image is opened once: for its hash, which tells whether it is a copy, its thumbnail, time
        and pixels. Images
    that look alike are held out together, and none of a class with a single image. The embeddings
    are in memory meanwhile, 4 bytes for each number.

    Args:
        old: a learned model; it is not changed.
        images: of new classes, and more of known ones.
        duplicates: "leave_out" to leave out images that were learned already, occur twice or lie in
            two classes, "keep" to learn them.
        progress: whether to draw a progress bar on a terminal.

    Returns:
        The model that learned, without an entry in its history, and warnings about copies.

    Raises:
        UnsupportedError: images of a class that is known, and a head that cannot take in more of
            those.
        DataError: a class of which no image can be read, or no image is new.
    """
    start = time.perf_counter()
    unreadable = list[Unreadable]()
    leave_out = duplicates == "leave_out"
    if leave_out:
        known = classes_of_hashes(old, images.class_names)
    else:
        known = {}
    labels = images.files.labels

    def skip(row: int, content_hash: int) -> bool:
        return int(labels[row]) in known.get(content_hash, ())

    z = np.empty((len(labels), old.head.in_features), np.float32)
    read = np.zeros(len(labels), dtype=bool)
    for rows, part in images.embedded(
        old, "learning", unreadable, progress, EncodedImage.look, skip if known else None
    ):
        z[rows] = part.cpu().numpy()
        read[rows] = True
    repeated, twofold, news = duplicates_among(old, images, duplicates)
    root = images.files.root
    names = images.files.names
    copies, undecided = ([root / names[row] for row in rows] for rows in (repeated, twofold))
    kept = np.ones(len(labels), dtype=bool)
    kept[[*repeated, *twofold]] = False
    if leave_out and not kept.all():
        images = images.select(kept)
        z = z[kept]
        read = read[kept]
    old.check_task(images.class_names)
    held = _held_out(images, read)
    final = old.clone()
    trial = old.clone()
    trial.calibrated = False  # it only predicts: no temperature is fitted again
    trial.head.temperature.fill_(1)
    trial.head.odds_power.fill_(1)
    trial.head.decides &= not old.class_names  # how to score was decided with the images before
    asked = [(final, images, z, read), (trial, images, z, read & ~held)]
    if _solved_together(old):
        with ThreadPoolExecutor(2, "learn") as pool:
            list(pool.map(_teach, *zip(*asked, strict=True)))
    else:
        for each in asked:
            _teach(*each)
    score = Score()
    new_labels = torch.tensor(trial.labels(images.class_names))
    for rows in pieces(np.flatnonzero(held), EMBEDDED_BATCH):
        score.add(
            trial, torch.from_numpy(z[rows]).to(old.device), new_labels[images.files.labels[rows]]
        )
    counts = {name: final.counts[name] - old.counts.get(name, 0) for name in images.class_names}
    return Extension(
        final, counts, score, time.perf_counter() - start, unreadable, news, copies, undecided
    )


def _held_out(images: LabelledImages, read: np.ndarray) -> np.ndarray:
    """Choose the images that are scored first among those that could be ``read`` (n,) bool; return
    (n,) bool.

    Raises:
        DataError: no image of a class could be read.
    """
    held = np.zeros(len(read), dtype=bool)
    for label, rows in images.files.rows_of.items():
        rows = rows[read[rows]]
        if not len(rows):
            name = printable(images.class_names[label])
            raise DataError(f"no image of class '{name}' can be read: add some, or leave it out")
        if len(rows) > 1:
            held[rows] = images.held_out(rows, HELD_OUT)
    return held


def _teach(model: Classifier, images: LabelledImages, z: np.ndarray, kept: np.ndarray) -> None:
    """Teach a model the images of a mask (n,), whose embeddings are those of z (n, d), as one
    task.
    """
    names = images.class_names
    positions = images.files.labels
    model.begin_task(names, np.bincount(positions[kept], minlength=len(names)).tolist())
    labels = torch.tensor(model.labels(names))
    for rows in pieces(np.flatnonzero(kept), EMBEDDED_BATCH):
        model.observe(
            torch.from_numpy(z[rows]),
            labels[positions[rows]],
            torch.from_numpy(images.files.hashes(rows)),
        )
    model.finish_task()


def _solved_together(model: Classifier) -> bool:
    """Return whether two threads teach a model and its trial, which they do for narrow ones on a
    CPU.
    """
    return (
        model.device.type == "cpu"
        and sum(held.numel() for held in model.head.buffers()) <= SOLVED_TOGETHER
    )
