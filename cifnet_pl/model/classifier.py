"""Use a learned model in plain torch, without a Trainer: classify photos, learn new classes, forget old ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from cifnet_pl.backbones.engines import check_precision
from cifnet_pl.data.copies import Duplicates
from cifnet_pl.data.photos import photos_of, squares
from cifnet_pl.data.sources.embeddings import unlabelled
from cifnet_pl.model.bundle import write_bundle
from cifnet_pl.model.class_photos import embed_batch
from cifnet_pl.model.description import class_names
from cifnet_pl.model.forget import Forgetting, forget
from cifnet_pl.model.incremental import IncrementalClassifier
from cifnet_pl.model.learn import Extension, extend
from cifnet_pl.model.open_set import Judge, Verdict
from cifnet_pl.photos.photo import Photo

Judged = Callable[[Tensor, Tensor], list[Verdict]]

AT_ONCE = 4096
"""Embeddings that are classified at once."""


@dataclass(frozen=True)
class Prediction:
    """The most probable classes of one photo.

    Attributes:
        file: the photo; None if it was given as bytes or as an image.
        classes: names, the most probable first.
        probabilities: of ``classes``.
        unreadable: the reason why it cannot be decoded, or None.
        verdict: whether it is known, and sets of answers, if they were asked for.
    """

    file: Path | None
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    unreadable: str | None = None
    verdict: Verdict = field(default_factory=Verdict)

    @property
    def known(self) -> bool | None:
        """Whether it shows something that the model knows; None where that was not asked for."""
        return self.verdict.known

    @property
    def novelty(self) -> float | None:
        """Distance to everything learned, larger for less known photos; None where not asked for."""
        return self.verdict.novelty

    @property
    def p_value(self) -> float | None:
        """Share of photos of known classes that are at least as foreign, 0–1; None where that was not asked for."""
        return self.verdict.p_value

    @property
    def answers(self) -> tuple[str, ...] | None:
        """Classes among which the right one is with the promised chance; None where that was not asked for."""
        return self.verdict.answers


class Classifier(IncrementalClassifier):
    """An :class:`IncrementalClassifier` that works on photos in files, as :func:`cifnet_pl.load` gives it.

    Example::

        model = cifnet_pl.load("lightning_logs/flowers")
        for prediction in model.classify(["a.jpg", "b.jpg"]):
            print(prediction.file, prediction.classes[0], prediction.probabilities[0])
        result = model.extend("new_classes")  # one sub-folder of photos for each new class
        result.model.save("flowers_2")
    """

    _judges: tuple[tuple[Any, ...], dict[tuple[Any, ...], Judge]] | None = None

    def classify(
        self,
        photos: Photo | str | Iterable[Photo | str],
        top: int = 5,
        *,
        unknown: float | None = None,
        coverage: float | None = None,
        per_class: bool = False,
    ) -> Iterator[Prediction]:
        """Name the ``top`` most probable classes of each photo, in the order given; streams, in constant memory.

        Args:
            photos: one photo or many: paths, bytes of image files, or Pillow images. A single path may also be a folder
                with photos, a Zip archive, or a pattern.
            top: number of classes.
            unknown: share of photos of known classes that may be called unknown; None not to tell.
            coverage: chance that the right class is among the answers; None for none.
            per_class: whether every class is to have that chance (:class:`~cifnet_pl.model.open_set.Judge`).

        Raises:
            DataError: a single path where there is no photo.
            UsageError: something that is no photo; a share outside (0, 1), or no calibration samples to keep it with.
            UnsupportedError: this model's head cannot tell what is asked.
        """
        top, judged = min(top, len(self.class_names)), self.judging(unknown, coverage, per_class)
        return self._classify(photos, top, judged)

    def _classify(self, photos: Photo | str | Iterable[Photo | str], top: int, judged: Judged) -> Iterator[Prediction]:
        for batch in squares(photos_of(photos), self.image_size, self.crop_ratio):
            z = embed_batch(self, batch)
            probabilities = self.head.probabilities(z)
            best = probabilities.topk(top, dim=1)
            rows = iter(zip(best.indices.tolist(), best.values.tolist(), judged(z, probabilities), strict=True))
            for photo, reason in zip(batch.files, batch.unreadable, strict=True):
                file = photo if isinstance(photo, Path) else None
                if reason is not None:
                    yield Prediction(file, unreadable=reason)
                    continue
                columns, shares, verdict = next(rows)
                yield Prediction(file, tuple(self.class_names[c] for c in columns), tuple(shares), verdict=verdict)

    def judge(self, unknown: float | None = None, coverage: float | None = None, per_class: bool = False) -> Judge:
        """Return what tells unknown photos and makes sets of answers; computed once until the model changes.

        Args:
            unknown, coverage, per_class: as for :class:`~cifnet_pl.model.open_set.Judge`.

        Raises:
            UsageError, UnsupportedError: as for :class:`~cifnet_pl.model.open_set.Judge`.
        """
        # The stage is another one after every change of the head, and so are the labels of the buffer.
        state = (self.head.stage, self.buffer.y if self.buffer is not None else None)
        asked = (unknown, coverage, per_class, float(self.head.temperature), tuple(self.class_names))
        if self._judges is None or any(a is not b for a, b in zip(self._judges[0], state, strict=True)):
            self._judges = (state, {})
        judge = self._judges[1]
        if asked not in judge:
            judge[asked] = Judge(self, unknown, coverage, per_class)
        return judge[asked]

    def judging(self, unknown: float | None, coverage: float | None, per_class: bool = False) -> Judged:
        """Return a function from embeddings (n, d) and probabilities (n, C) to verdicts.

        Args:
            unknown, coverage, per_class: as for :class:`~cifnet_pl.model.open_set.Judge`; with neither share the
                verdicts are empty.
        """
        if unknown is None and coverage is None and not per_class:
            return lambda z, probabilities: [Verdict()] * len(z)
        return self.judge(unknown, coverage, per_class).verdicts

    def classify_embeddings(
        self,
        file: Path | str,
        top: int = 5,
        *,
        unknown: float | None = None,
        coverage: float | None = None,
        per_class: bool = False,
    ) -> Iterator[Prediction]:
        """Name the ``top`` most probable classes of each row of a file of embeddings, in constant memory.

        Args:
            file: .npz, .safetensors, .parquet or .arrow with ``embeddings`` (n, d) and, if wanted, ``ids`` (n,).
            top: number of classes per row.
            unknown: as for :meth:`classify`.
            coverage: as there.
            per_class: as there.

        Raises:
            DataError: the file is missing or damaged, or an embedding holds NaN or infinity.
            UsageError: another kind of file, or as for :meth:`classify`.
            CifnetError: the embeddings have another width than those that were learned.
        """
        judged = self.judging(unknown, coverage, per_class)
        return self._classify_embeddings(Path(file).expanduser(), min(top, len(self.class_names)), judged)

    def _classify_embeddings(self, file: Path, top: int, judged: Judged) -> Iterator[Prediction]:
        samples = unlabelled(file)
        for start in range(0, len(samples), AT_ONCE):
            rows = np.arange(start, min(start + AT_ONCE, len(samples)))
            z = samples.get(rows).to(self.device)
            probabilities = self.head.probabilities(z)
            best, verdicts = probabilities.topk(top, dim=1), judged(z, probabilities)
            answers = zip(rows.tolist(), best.indices.tolist(), best.values.tolist(), verdicts, strict=True)
            for row, columns, shares, verdict in answers:
                name = Path(f"{samples.file}#{samples.names[row]}")
                yield Prediction(name, tuple(self.class_names[c] for c in columns), tuple(shares), verdict=verdict)

    def extend(
        self,
        images: Path | str,
        *,
        check: Path | str | None = None,
        more: bool = False,
        duplicates: Duplicates = "leave_out",
        progress: bool = False,
    ) -> Extension[Classifier]:
        """Learn new classes from one folder of photos per class; see :func:`cifnet_pl.model.learn.extend`.

        This model is not changed; ``result.model`` is the one that learned.
        """
        return extend(self, images, check=check, more=more, duplicates=duplicates, progress=progress)

    def forget(
        self, names: str | Sequence[str], images: Path | str | Sequence[Path | str] | None = None
    ) -> Forgetting[Classifier]:
        """Remove classes, with or without their photos; see :func:`cifnet_pl.model.forget.forget`.

        This model is not changed; ``result.model`` is the one without the classes.
        """
        return forget(self, names, images)

    def save(self, folder: Path | str, overwrite: bool = False) -> None:
        """Write a bundle (see :mod:`cifnet_pl.model.bundle`).

        Args:
            folder: of the bundle; it is made if it is missing.
            overwrite: whether a bundle that is there may be replaced.

        Raises:
            UsageError: there is a bundle already and ``overwrite`` is false, or the folder holds other files; the
                model has an unknown precision.
            CheckpointError: a class name that could not be read back.
            CifnetError: the disk is full or not writable; an old bundle is left as it was.
        """
        class_names(self.class_names, "this model")
        check_precision(self.precision)
        write_bundle(self.describe(), self.tensors(), Path(folder), overwrite)
