"""Teach one lesson from uploaded photos, on a copy; score it before it is learned, and measure the older classes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from cifnet_pl.model.class_photos import ClassPhotos, Unreadable
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.description import Event
from cifnet_pl.model.extend import learn
from cifnet_pl.model.trial import Score
from cifnet_pl.serving.history import Change
from cifnet_pl.serving.inspection import stored_accuracy
from cifnet_pl.serving.uploads import Staged
from cifnet_pl.utilities.text import printable

Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class ReportedPhotos(ClassPhotos):
    """Class photos that report how many of them were embedded."""

    report: Progress = lambda done, total: None

    def embedded(self, *args: Any, **options: Any) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield rows and embeddings, as :meth:`ClassPhotos.embedded` does."""
        done, total = 0, len(self.files)
        for rows, z in super().embedded(*args, **options):
            yield rows, z
            done += len(rows)
            self.report(done, total)


@dataclass(frozen=True)
class Taught:
    """A model that learned uploaded photos.

    Attributes:
        model: the model that learned; the one before is unchanged.
        learned: photos of each class.
        score: of the fifth that was held back.
        old_before, old_after: leave-one-out accuracy in percent on stored samples of the earlier classes; None if
            the head or the buffer cannot give it.
    """

    model: Classifier
    learned: dict[str, int]
    score: Score
    old_before: float | None
    old_after: float | None

    def change(self, kept: Mapping[str, list[str]]) -> Change:
        """Return the entry for the journal.

        Args:
            kept: class name → file names of its kept photos.
        """
        names = ", ".join(f"'{printable(name)}'" for name in list(self.learned)[:3])
        names += ", …" if len(self.learned) > 3 else ""
        scores = {"held_back": self.score.percent, "old_before": self.old_before, "old_after": self.old_after}
        measured = {name: value for name, value in scores.items() if value is not None}
        count = sum(self.learned.values())
        photos = "photo" if count == 1 else "photos"
        return Change("extend", f"learned {count} {photos} of {names}", kept, scores=measured)


def taught(old: Classifier, staged: Staged, report: Progress) -> Taught:
    """Learn staged photos on a copy of a model.

    Args:
        old: the model; it is not changed.
        staged: the photos.
        report: called with the number of photos learned, and of all.

    Raises:
        UnsupportedError: photos of a class that is known, and a head that cannot take in more of those.
    """
    photos = ReportedPhotos(staged.names, staged.photos(), report=report).hashed()
    unreadable: list[Unreadable] = []
    before = stored_accuracy(old, old.class_names)
    model, score = learn(old, photos, unreadable)
    after = stored_accuracy(model, old.class_names)
    staged.unreadable += [(file.name, reason) for file, reason in unreadable]
    counts, earlier = model.counts, old.counts
    learned = {name: counts[name] - earlier.get(name, 0) for name in staged.names}
    event = Event("extend", len(counts), sum(learned.values()), score.percent, before, after)
    model.history.append(event)
    return Taught(model, learned, score, before, after)
