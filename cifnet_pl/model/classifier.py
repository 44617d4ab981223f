"""Use a learned model in plain torch: name images, with promised error rates, learn new classes,
forget old ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.backbones.engines import check_precision
from cifnet_pl.data.loading import Batches, Task
from cifnet_pl.data.sources.tables import open_table
from cifnet_pl.heads.confidence import PredictionSets, check_share, novelty_reference
from cifnet_pl.images.image import ImageLike, images_of, squares
from cifnet_pl.model.bundle import class_names, write_bundle
from cifnet_pl.model.core import Model
from cifnet_pl.model.forget import forget as without
from cifnet_pl.model.labelled_images import embed_batch
from cifnet_pl.model.learn import extend as extended
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.text import number_of


@dataclass(frozen=True)
class Verdict:
    """The result for one image; None where it was not asked for.

    Attributes:
        known: whether it shows something that the model knows.
        novelty: unlikeness to everything learned, larger for less known images
            (:meth:`cifnet_pl.heads.Head.novelty`).
        p_value: share of images of known classes that are at least as foreign, 0–1.
        prediction_set: classes that hold the true one with the given coverage, the most probable
            first.
    """

    known: bool | None = None
    novelty: float | None = None
    p_value: float | None = None
    prediction_set: tuple[str, ...] | None = None


class Judge:
    """Verdicts on embeddings by a learned model, which must not change meanwhile.

    Args:
        model: with calibration samples in its buffer.
        unknown: share of images of known classes that may be called unknown, such as 0.05; None not
            to ask.
        coverage: chance that the right class of an image is among the answers, such as 0.95; None
            not to ask.

    Raises:
        UsageError: a share outside (0, 1), or a model without calibration samples.
        UnsupportedError: a head that cannot tell unknown things, or has no leave-one-out scores.
    """

    def __init__(self, model: Model, unknown: float | None = None, coverage: float | None = None):
        if unknown is not None:
            check_share("unknown", unknown)
            model.head.require("tells_novelty")
        if coverage is not None:
            check_share("coverage", coverage, example=0.95)
            if not len(model.calibration.y):
                model.head.require("leaves_one_out")
        samples = model.calibration_samples()
        if samples is None:
            raise UsageError(
                "this model has no calibration samples, without which nothing can be promised:"
                " learn it with cifnet fit … --model.buffer CalibrationBuffer --model.calibrate"
                " true"
            )
        self.head = model.head
        self.class_names = tuple(model.class_names)
        self.unknown = unknown
        self.reference = novelty_reference(samples) if unknown is not None else None
        self.sets = PredictionSets.of(samples, coverage) if coverage is not None else None

    @property
    def limit(self) -> float | None:
        """Largest novelty of an image that is called known; None if not asked for, or if no image
        is called unknown.
        """
        if self.reference is None or self.unknown is None:
            return None
        limit = self.reference.limit(self.unknown)
        if limit < float("inf"):
            return limit
        return None

    @property
    def warning(self) -> str | None:
        """Warning that there are too few calibration samples to call any image unknown; None if
        there are enough.
        """
        if self.reference is None or self.unknown is None:
            return None
        most = float(self.reference.p_values(self.reference.scores.new_tensor([torch.inf])))
        if most <= self.unknown:
            return None
        return (
            f"note: with {len(self.reference.scores)} calibration samples no image can be called"
            f" unknown at a share of {self.unknown:g}; from {most:.2g} on"
        )

    def verdicts(self, z: Tensor, probabilities: Tensor) -> list[Verdict]:
        """Judge images.

        Args:
            z: (n, d) embeddings.
            probabilities: (n, C).

        Returns:
            One verdict for each.
        """
        novelty: list[float | None] = [None] * len(z)
        values = list(novelty)
        answers = list[tuple[str, ...] | None]([None] * len(z))
        if self.reference is not None:
            measured = self.head.novelty(z)
            novelty = measured.tolist()
            values = self.reference.p_values(measured).tolist()
        if self.sets is not None:
            order = torch.argsort(probabilities, dim=1, descending=True)
            inside = self.sets.of_probabilities(probabilities).gather(1, order)
            pairs = zip(order, inside, strict=True)
            answers = [
                tuple(self.class_names[c] for c in columns[kept].tolist())
                for columns, kept in pairs
            ]
        limit = self.unknown or 0.0
        return [
            Verdict(None if p is None else p > limit, distance, p, answer)
            for distance, p, answer in zip(novelty, values, answers, strict=True)
        ]


def able(
    model: Model, unknown: float | None = None, coverage: float | None = None
) -> tuple[float | None, float | None]:
    """Return those of two shares for which this model can make a promise; None in place of the
    others.

    Args:
        model: a learned model.
        unknown: as for :class:`Judge`.
        coverage: as for :class:`Judge`.
    """
    new = len(model.calibration.y) > 0
    if model.stored_samples is None and not new:
        return None, None
    return (
        unknown if model.head.tells_novelty else None,
        coverage if model.head.leaves_one_out or new else None,
    )


KEPT = 0.95
"""Share of known images that are taken for known, where the other error is measured."""


def detection(known: Tensor, foreign: Tensor) -> tuple[float, float]:
    """Compute how well novelty separates foreign images from known ones.

    Args:
        known: (n,) novelty of known images, at least one.
        foreign: (m,) novelty of foreign images, at least one; larger is more foreign.

    Returns:
        In percent: the AUROC, and the share of foreign images that are taken for known ones at the
            threshold that keeps
        95 % of the known ones.
    """
    values = torch.cat([known, foreign])
    from torchmetrics.functional.classification import (
        binary_auroc,
        binary_roc,
    )  # to classify needs none of it

    # Ranks instead of values: torchmetrics takes values outside of 0 and 1 for logits, and rounds
    # their sigmoid.
    ranks = torch.unique(-values, return_inverse=True)[1]
    likely = ranks.double() / max(1, int(ranks.max()))
    target = torch.cat([torch.ones(len(known)), torch.zeros(len(foreign))]).to(ranks)
    false_positives, true_positives, _ = binary_roc(likely, target)
    wrong = false_positives[true_positives >= KEPT].min()
    return 100 * float(binary_auroc(likely, target)), 100 * float(wrong)


Judged = Callable[[Tensor, Tensor], list[Verdict]]

AT_ONCE = 4096
"""Embeddings that are classified at once."""


@dataclass(frozen=True)
class Prediction(Verdict):
    """The most probable classes of one image, and the verdict on it as far as it was asked for.

    Attributes:
        file: the image; None if it was given as bytes or as an image.
        classes: names, the most probable first.
        probabilities: of ``classes``.
        unreadable: the reason why it cannot be decoded, or None.
    """

    file: Path | None = None
    classes: tuple[str, ...] = ()
    probabilities: tuple[float, ...] = ()
    unreadable: str | None = None


class Classifier(Model):
    """A model that works on images in files, as :func:`cifnet_pl.load` gives it.

    Example::

        model = cifnet_pl.load("lightning_logs/flowers")
        for prediction in model.classify(["a.jpg", "b.jpg"]):
            print(prediction.file, prediction.classes[0], prediction.probabilities[0])
        result = model.extend("new_classes")  # one sub-folder of images for each new class
        result.model.save("flowers_2")
    """

    _judges: tuple[tuple[Any, ...], dict[tuple[Any, ...], Judge]] | None = None

    def classify(
        self,
        images: ImageLike | str | Iterable[ImageLike | str],
        top: int = 5,
        *,
        unknown: float | None = None,
        coverage: float | None = None,
    ) -> Iterator[Prediction]:
        """Name the ``top`` most probable classes of each image, in the order given; streams, in
        constant memory.

        Args:
            images: one image or many: paths, bytes of image files, or Pillow images. A single path
                may also be a folder with images, a Zip archive, or a pattern.
            top: number of classes.
            unknown: share of images of known classes that may be called unknown; None not to tell.
            coverage: chance that the right class is among the answers; None for none.

        Raises:
            DataError: a single path where there is no image.
            UsageError: something that is no image; a share outside (0, 1), or no calibration
                samples to keep it with.
            UnsupportedError: this model's head cannot tell what is asked.
        """
        judged = self.judging(unknown, coverage)

        def stream() -> Iterator[Prediction]:
            for batch in squares(images_of(images), self.image_size, self.crop_ratio):
                files = [image if isinstance(image, Path) else None for image in batch.files]
                readable = [
                    file
                    for file, reason in zip(files, batch.unreadable, strict=True)
                    if reason is None
                ]
                named = self._named(embed_batch(self, batch), readable, top, judged)
                for file, reason in zip(files, batch.unreadable, strict=True):
                    yield (
                        next(named) if reason is None else Prediction(file=file, unreadable=reason)
                    )

        return stream()

    def classify_embeddings(
        self,
        file: Path | str,
        top: int = 5,
        *,
        unknown: float | None = None,
        coverage: float | None = None,
    ) -> Iterator[Prediction]:
        """Name the ``top`` most probable classes of each row of a file of embeddings, in constant
        memory.

        Args:
            file: .npz or .parquet with ``embeddings`` (n, d) and, if wanted, ``ids`` (n,).
            top: number of classes per row.
            unknown, coverage: as for :meth:`classify`.

        Raises:
            DataError: the file is missing or damaged, or an embedding holds NaN or infinity.
            UsageError: another kind of file, or as for :meth:`classify`.
            CifnetError: the embeddings have another width than those that were learned.
        """
        judged = self.judging(unknown, coverage)

        def stream() -> Iterator[Prediction]:
            samples = open_table(Path(file)).unlabelled()
            for start in range(0, len(samples), AT_ONCE):
                rows = np.arange(start, min(start + AT_ONCE, len(samples)))
                names = [Path(f"{samples.file}#{samples.names[row]}") for row in rows.tolist()]
                yield from self._named(samples.get(rows).to(self.device), names, top, judged)

        return stream()

    def _named(
        self, z: Tensor, files: Sequence[Path | None], top: int, judged: Judged
    ) -> Iterator[Prediction]:
        """Yield the predictions for embeddings (n, d) of n files."""
        probabilities = self.head.probabilities(z)
        best = probabilities.topk(min(top, len(self.class_names)), dim=1)
        answers = zip(
            files,
            best.indices.tolist(),
            best.values.tolist(),
            judged(z, probabilities),
            strict=True,
        )
        for file, columns, shares, verdict in answers:
            names = tuple(self.class_names[column] for column in columns)
            yield Prediction(**vars(verdict), file=file, classes=names, probabilities=tuple(shares))

    def judge(self, unknown: float | None = None, coverage: float | None = None) -> Judge:
        """Return what tells unknown images and makes sets of answers; computed once until the model
        changes.

        Args:
            unknown, coverage: as for :class:`~cifnet_pl.model.classifier.Judge`.

        Raises:
            UsageError, UnsupportedError: as for :class:`~cifnet_pl.model.classifier.Judge`.
        """
        # What is derived is another object after every change of the head, and so are the labels of
        # the buffer.
        state = (self.head.derived, self.buffer.y if self.buffer is not None else None)
        asked = (
            unknown,
            coverage,
            float(self.head.temperature),
            float(self.head.odds_power),
            tuple(self.class_names),
        )
        if self._judges is None or any(
            a is not b for a, b in zip(self._judges[0], state, strict=True)
        ):
            self._judges = (state, {})
        judge = self._judges[1]
        if asked not in judge:
            judge[asked] = Judge(self, unknown, coverage)
        return judge[asked]

    def judging(self, unknown: float | None, coverage: float | None) -> Judged:
        """Return a function from embeddings (n, d) and probabilities (n, C) to verdicts.

        Args:
            unknown, coverage: as for :class:`~cifnet_pl.model.classifier.Judge`; with neither share
                the verdicts are empty.
        """
        if unknown is None and coverage is None:
            return lambda z, probabilities: [Verdict()] * len(z)
        return self.judge(unknown, coverage).verdicts

    def learn(self, task: Task) -> None:
        """Learn one task of a stream, in a loop of one's own: ``for task in data:
        model.learn(task)``.

        Args:
            task: the next one of a :class:`~cifnet_pl.data.datamodule.CIFNetDataModule`.

        Raises:
            UsageError: the model knows other classes than those of the tasks before it.
        """
        if len(self.class_names) != task.labels[0]:
            raise UsageError(
                f"the model knows {number_of(len(self.class_names), 'class')}, but {task.labels[0]}"
                f" come before task {task.number + 1}: give the tasks of one stream in their order"
                " to a model that knows none"
            )
        if task.train.side:
            self.image_size = task.train.side
            self.crop_ratio = 1.0
        self.begin_task(task.class_names)
        self.observe_all(task.train)
        self.finish_task()

    def observe_all(self, batches: Batches) -> None:
        """Embed samples of the task that has begun, and take them in.

        Raises:
            DataError: an image that cannot be read.
            NonFiniteError: an embedding that holds NaN or Inf; names the image.
        """
        for samples, *about, rows in batches.with_keys():
            places = [batches.samples.place(row) for row in rows.tolist()]
            if batches.side:
                z = self.embed(samples, places.__getitem__)
            else:
                z = samples
            self.observe(z, *about)

    extend = extended
    """Learn new classes from one folder of images per class: :func:`cifnet_pl.model.learn.extend`
    of this model.
    """

    forget = without
    """Remove classes, with or without their images: :func:`cifnet_pl.model.forget.forget` of this
    model.
    """

    def save(self, folder: Path | str, overwrite: bool = False) -> None:
        """Write a bundle (see :mod:`cifnet_pl.model.bundle`).

        Args:
            folder: of the bundle; it is made if it is missing.
            overwrite: whether a bundle that is there may be replaced.

        Raises:
            UsageError: there is a bundle already and ``overwrite`` is false, or the folder holds
                other files; the model has an unknown precision.
            CheckpointError: a class name that could not be read back.
            CifnetError: the disk is full or not writable; an old bundle is left as it was.
        """
        class_names(self.class_names, "this model")
        check_precision(self.precision)
        write_bundle(self.describe(), self.tensors(), Path(folder), overwrite)
