"""Teach a learned model new classes, and more photos of known ones, from class folders."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Generic

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.copies import Duplicates
from cifnet_pl.data.loading import sample_key
from cifnet_pl.heads import Head
from cifnet_pl.heads.ridge import about_lesson, at_cap
from cifnet_pl.model.class_photos import ClassPhotos, Unreadable, samples_of
from cifnet_pl.model.description import Event, now
from cifnet_pl.model.incremental import IncrementalClassifier, M
from cifnet_pl.model.known_photos import LearnedPhotos, NearCopyScore, without_copies
from cifnet_pl.model.metrics import percent
from cifnet_pl.utilities.errors import DataError, UnsupportedError, UsageError
from cifnet_pl.utilities.text import printable


class Lesson:
    """A task of new classes, and more samples of known ones, for one model.

    Args:
        model: what learns; it changes.
        photos: what it learns from.
        counts: number of photos of each class of ``photos`` that it will see.

    Raises:
        UnsupportedError: photos of a class that is known, and a head that cannot take in more of those.
    """

    def __init__(self, model: IncrementalClassifier, photos: ClassPhotos, counts: list[int]):
        known, names = set(model.class_names), photos.class_names
        self.model, self.photos = model, photos
        self.is_new = np.array([name not in known for name in names])
        self.more: Head | None = None
        old, new = ([i for i, name in enumerate(names) if (name in known) == seen] for seen in (True, False))
        if old:
            _require_pooling(model, names[old[0]])
            self.more = model.head.fresh()
            self.more.begin_task(model.labels(names[i] for i in old), [counts[i] for i in old])
        if new:
            model.begin_task([names[i] for i in new], [counts[i] for i in new])
        self.labels = np.array(model.labels(names), dtype=np.int64)
        stored = model.buffer.items() if model.buffer is not None and len(model.buffer.y) else None
        self.learned = LearnedPhotos(stored)

    def observe(self, rows: np.ndarray, z: Tensor) -> None:
        """Take in the embeddings (n, d) of photos ``rows`` (n,)."""
        classes = self.photos.files.labels[rows]
        y = torch.from_numpy(self.labels[classes]).to(z.device)
        names = [
            (self.photos.class_names[c], self.photos.files.names[row]) for c, row in zip(classes, rows, strict=True)
        ]
        key = torch.tensor([sample_key(*name) for name in names], dtype=torch.int64, device=z.device)
        if self.model.photos is not None and self.photos.hashes is not None:
            self.model.add_photos(self.labels[classes], self.photos.hashes[rows])
        self.learned.add(z, y)
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


def _require_pooling(model: IncrementalClassifier, name: str) -> None:
    try:
        model.head.require("pools")
    except UnsupportedError as error:
        known = f"cannot add photos to class '{printable(name)}', which is learned already"
        raise UnsupportedError(f"{known}: {error}") from error


HELD_BACK = 0.2
"""Share of the new photos that is scored before it is learned."""

WAITING = 2**24
"""Numbers of the embeddings that wait until it is known which photos are held back: 64 MB."""


@dataclass
class Score:
    """Photos scored, and how many of them right, over all classes that the model knows.

    Attributes:
        near_copy_score: what near-copies among the photos that were learned do to it.
        near, learned: learned photos that have near-copies, and all that were compared.
        capped: whether a ridge that generalised cross-validation chose is at its cap.
    """

    right: int = 0
    total: int = 0
    near_copy_score: NearCopyScore = field(default_factory=NearCopyScore)
    near: int = 0
    learned: int = 0
    capped: bool = False

    def add(
        self,
        model: IncrementalClassifier,
        photos: ClassPhotos,
        rows: np.ndarray,
        z: Tensor,
        learned: LearnedPhotos | None = None,
    ) -> None:
        """Score the embeddings z (n, d) of photos ``rows`` (n,), and compare them with those that were ``learned``."""
        if len(rows):
            labels = np.array(model.labels(photos.class_names))[photos.files.labels[rows]]
            right = model.head.predict(z).cpu().numpy() == labels
            self.right += int(right.sum())
            self.total += len(rows)
            if learned is not None:
                self.near_copy_score += NearCopyScore.of(learned.resemble(z, torch.from_numpy(labels)), right)

    def sentences(self) -> list[str]:
        """Return the sentences to print beside the score."""
        return self.near_copy_score.sentences(self.near, self.learned, self.capped)

    @property
    def percent(self) -> float | None:
        """Accuracy in percent; None where nothing was scored."""
        return percent(self.right, self.total)


class Trial:
    """A copy of a model that learns all but a fifth of each class's photos, and is scored on that fifth.

    Photos that look alike are held back together, and none of a class with a single photo. All photos are read once
    for this; that takes place in the background, and embeddings wait until it is done.

    Args:
        old: a learned model; it is not changed.
        photos: of new classes, and more of known ones.
        background: runs what finds the photos that are held back, class by class.
    """

    def __init__(self, old: IncrementalClassifier, photos: ClassPhotos, background: Executor):
        self.photos, self.model = photos, old.clone()
        self.model.calibrated = False  # it only predicts: no temperature is fitted again
        self.model.head.temperature.fill_(1)
        by_class = [rows for rows in photos.files.rows_of.values() if len(rows) > 1]
        self._stop = threading.Event()
        self._split = [(rows, background.submit(photos.held_back, rows, HELD_BACK, self._stop)) for rows in by_class]
        self._waiting: list[tuple[np.ndarray, Tensor]] = []
        self._aside: list[tuple[np.ndarray, Tensor]] = []
        self._learned = np.zeros(len(photos.class_names), dtype=bool)

    def stop(self) -> None:
        """End the search for the photos that are held back, if it still goes on."""
        self._stop.set()

    def observe(self, rows: np.ndarray, z: Tensor) -> None:
        """Take in the embeddings (n, d) of photos ``rows`` (n,)."""
        self._waiting.append((rows, z))
        known = all(part.done() for _, part in self._split)
        if known or sum(z.numel() for _, z in self._waiting) > WAITING:
            self._observe_waiting()

    def _observe_waiting(self) -> None:
        labels = self.photos.files.labels
        for rows, z in self._waiting:
            kept = ~self._held[rows]
            mask = torch.from_numpy(kept).to(z.device)
            self._lesson.observe(rows[kept], z[mask])
            self._learned[labels[rows[kept]]] = True
            self._aside.append((rows[~kept], z[~mask]))
        self._waiting.clear()

    @cached_property
    def _held(self) -> np.ndarray:
        """The photos that are held back: (n,) bool; waits until all are known, and raises what finding them raised."""
        held = np.zeros(len(self.photos.files), dtype=bool)
        for rows, part in self._split:
            held[rows] = part.result()
        return held

    @cached_property
    def _lesson(self) -> Lesson:
        count = np.bincount(self.photos.files.labels[~self._held], minlength=len(self.photos.class_names))
        return Lesson(self.model, self.photos, count.tolist())

    def finish(self) -> Score:
        """Solve, and score the photos that were set aside; if nothing else of a class could be read, learn them."""
        self._observe_waiting()
        score, labels = Score(), self.photos.files.labels
        for rows, z in self._aside:
            starved = ~self._learned[labels[rows]]
            if starved.any():
                self._lesson.observe(rows[starved], z[torch.from_numpy(starved).to(z.device)])
        self._lesson.finish()
        for rows, z in self._aside:
            scored = self._learned[labels[rows]]
            mask = torch.from_numpy(scored).to(z.device)
            score.add(self.model, self.photos, rows[scored], z[mask], self._lesson.learned)
        return score


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
