"""Teach a learned model new classes, and more photos of known ones, from class folders."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic

import numpy as np

from cifnet_pl.data.copies import Duplicates
from cifnet_pl.heads.ridge_notes import about_lesson, at_cap
from cifnet_pl.model.class_embeddings import samples_of
from cifnet_pl.model.class_photos import ClassPhotos, Unreadable
from cifnet_pl.model.copies import without_copies
from cifnet_pl.model.description import Event, now
from cifnet_pl.model.incremental import IncrementalClassifier, M
from cifnet_pl.model.lesson import Lesson
from cifnet_pl.model.trial import Score, Trial
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import printable

SOLVED_TOGETHER = 2**21
"""Numbers that a head holds, up to which a model and its trial are solved at the same time: sums of 2000 features.

Up to there a matrix is solved by one thread. Wider ones take all threads, and too much memory for two of them.
"""


@dataclass(frozen=True)
class Extension(Generic[M]):
    """The result of :func:`extend`.

    Attributes:
        model: the model that learned everything; the one that was extended is not changed.
        learned: number of photos learned of each class of the folder.
        score: of the held-back fifth of the new photos, by a model that learned the others.
        old_before, old_after: of the photos of ``check``, before and after the extension.
        seconds: time to embed, learn and score the new photos.
        unreadable: photos that could not be decoded, and were left out.
        warnings: sentences for the user.
        copies: photos that were learned already or occur twice; left out unless ``duplicates`` is "keep".
    """

    model: M
    learned: dict[str, int]
    score: Score
    old_before: Score
    old_after: Score
    seconds: float
    unreadable: list[Unreadable] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    copies: list[Path] = field(default_factory=list)


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
        duplicates: "leave_out" to leave out photos that were learned already or occur twice, "keep" to learn them.
        progress: whether to draw progress bars on a terminal.

    Returns:
        The extended model with counts, scores and warnings.

    Raises:
        UsageError: a class that is known already without ``more``.
        UnsupportedError: ``more`` photos for a head that cannot take them in.
        DataError: a folder is missing, holds no photos, none of a class that can be read, or none that is new.
    """
    photos = samples_of(old).find(images, "--images")
    known = sorted(set(photos.class_names) & set(old.class_names))
    if known and not more:
        name = printable(known[0])
        raise UsageError(f"class '{name}' is already learned: add --more to give it more photos, or rename its folder")
    warnings = old.warnings_of(photos.class_names)
    photos, copies, news = without_copies(old, photos.hashed(), duplicates)
    warnings += news
    if known and not old.knows_photos:
        warnings.append(
            "note: the model does not have the content hashes of all photos that it learned: any of those among the "
            "new ones count twice"
        )
    old_photos = _old_photos(old, check) if check is not None else None
    unreadable: list[Unreadable] = []
    start = time.perf_counter()
    final, score = learn(old, photos, unreadable, progress)
    seconds = time.perf_counter() - start
    final.note_engines([final.engine])
    before, after = Score(), Score()
    if old_photos is not None:
        for rows, z in old_photos.embedded(old, "checking", unreadable, progress):
            before.add(old, old_photos, rows, z)
            after.add(final, old_photos, rows, z)
    warnings += about_lesson(old.head.choices() if len(old.class_names) > 1 else [], final.head.choices())
    learned = {name: final.counts[name] - old.counts.get(name, 0) for name in photos.class_names}
    event = Event("extend", len(final.class_names), sum(learned.values()), score.percent, seconds=seconds)
    event = replace(event, date=now(), class_names=list(learned), parents=[old.identity])
    final.history.append(replace(event, old_accuracy_before=before.percent, old_accuracy=after.percent))
    return Extension(final, learned, score, before, after, seconds, unreadable, warnings, copies)


def _old_photos(model: IncrementalClassifier, check: Path | str) -> ClassPhotos:
    photos = samples_of(model).find(check, "--check").of(set(model.class_names))
    if not photos.class_names:
        raise DataError(f"{check} has no folder of a class that the model knows: expected photos of its old classes")
    return photos


def learn(
    old: M, photos: ClassPhotos, unreadable: list[Unreadable] | None = None, progress: bool = False
) -> tuple[M, Score]:
    """Embed new photos once, and learn them twice: all of them, and all but a fifth, on which the second is scored.

    Args:
        old: a learned model; it is not changed.
        photos: of new classes, and more of known ones.
        unreadable: photos that cannot be decoded are appended.
        progress: whether to draw a progress bar on a terminal.

    Returns:
        The model that learned everything, and the score of the one that learned the rest.

    Raises:
        UnsupportedError: as :class:`Lesson`.
        DataError: a class of which no photo can be read.
    """
    labels, names = photos.files.labels, photos.class_names
    final, seen = old.clone(), np.zeros(len(names), dtype=bool)
    lesson = Lesson(final, photos, np.bincount(labels, minlength=len(names)).tolist())
    background = ThreadPoolExecutor(1, "trial")
    trial = Trial(old, photos, background)
    try:
        for rows, z in photos.embedded(old, "learning", [] if unreadable is None else unreadable, progress):
            lesson.observe(rows, z)
            trial.observe(rows, z)
            seen[labels[rows]] = True
        if not seen.all():
            raise DataError(
                f"no photo of class '{printable(names[int(seen.argmin())])}' can be read: add some, or leave it out"
            )
        if _solved_together(final):
            scoring = background.submit(trial.finish)
            lesson.finish()
            score = scoring.result()
        else:
            lesson.finish()
            score = trial.finish()
    finally:
        trial.stop()
        background.shutdown(cancel_futures=True)
    score.near, score.learned = lesson.learned.near_copies()
    score.capped = at_cap(final.head.choices())
    return final, score


def _solved_together(model: IncrementalClassifier) -> bool:
    """Return whether two threads solve a model and its trial, which they do for narrow ones on a CPU."""
    return model.device.type == "cpu" and sum(held.numel() for held in model.head.buffers()) <= SOLVED_TOGETHER
