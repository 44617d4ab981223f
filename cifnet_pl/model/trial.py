"""Learn all but a fifth of new photos on a copy of a model, and score that copy on the fifth."""

from __future__ import annotations

import threading
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.model.class_photos import ClassPhotos
from cifnet_pl.model.incremental import IncrementalClassifier
from cifnet_pl.model.lesson import Lesson
from cifnet_pl.model.metrics import percent
from cifnet_pl.model.near_copies import LearnedPhotos, NearCopyScore

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
