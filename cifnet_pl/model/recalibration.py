"""Recalibrate a model by labelled images under a distribution shift, and measure what it changes.

Temperature, prediction sets and the novelty threshold are fitted to the images; the images are not
learned. What that is worth is measured by two-fold cross-validation over the same images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.buffer import BufferSamples
from cifnet_pl.images.image import EncodedImage
from cifnet_pl.model.calibration import MIN_NEW_IMAGES
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.labelled_images import LabelledImages, Unreadable
from cifnet_pl.model.metrics import calibration_error

UNKNOWN_SHARE = 0.05
"""Share of images of known classes that may be called unknown."""

COVERAGE = 0.95
"""Probability with which a prediction set holds the true class."""

HIGH_CONFIDENCE = COVERAGE
"""Confidence above which an error is counted as a confident one."""


@dataclass(frozen=True)
class NewSamples:
    """Labelled images that a model has not learned, one of each content.

    An image that lies in the folders of two classes keeps the label of its first file.

    Attributes:
        samples: n images, with their labels and content hashes.
        fold: (n,) bool fold of the cross-validation; near-duplicate images are in the same one.
        learned: number of distinct images that are left out because the model has learned them.
    """

    samples: BufferSamples
    fold: Tensor
    learned: int

    @classmethod
    def embed(
        cls, model: Classifier, images: LabelledImages, unreadable: list[Unreadable]
    ) -> NewSamples:
        """Embed images, and leave out those that the model has learned.

        Args:
            model: its backbone embeds.
            images: of classes that it knows.
            unreadable: images that cannot be decoded are appended.
        """
        batches = images.embedded(
            model, "evaluating", unreadable, progress=True, look=EncodedImage.look
        )
        row_batches = []
        embedding_batches = []
        for batch_rows, batch_z in batches:
            row_batches.append(batch_rows)
            embedding_batches.append(batch_z)
        rows = np.concatenate(row_batches)
        hashes, positions = np.unique(images.files.hashes(rows), return_index=True)
        known_hashes = model.images.content.cpu().numpy()
        learned = np.isin(hashes, known_hashes)
        new_positions = positions[~learned]
        new_rows = rows[new_positions]
        fold = np.zeros(len(images.files), dtype=bool)
        for class_rows in images.files.rows_of.values():
            fold[class_rows] = images.held_out(class_rows, 0.5)
        class_labels = model.labels(images.class_names)
        labels = np.array(class_labels, dtype=np.int64)
        device = model.device
        embeddings = torch.cat(embedding_batches)
        z = embeddings[torch.from_numpy(new_positions).to(device)]
        labels_of_images = images.files.labels[new_rows]
        labels_of_model = labels[labels_of_images]
        y = torch.from_numpy(labels_of_model)
        key = torch.from_numpy(hashes[~learned])
        samples = BufferSamples(z, y.to(device), key.to(device))
        new_fold = torch.from_numpy(fold[new_rows])
        return cls(samples, new_fold.to(device), int(learned.sum()))


class LabelledPredictions(NamedTuple):
    """Predictions for labelled samples; NaN where the model has no such prediction.

    Attributes:
        confidence: (n,) float64 probability of the predicted class.
        correct: (n,) bool, whether it is the true class.
        covered: (n,) float64, 1 where the prediction set holds the true class, else 0.
        set_size: (n,) float64 number of classes in the prediction set.
        unknown: (n,) float64, 1 where the sample is called unknown, else 0.
    """

    confidence: Tensor
    correct: Tensor
    covered: Tensor
    set_size: Tensor
    unknown: Tensor

    @classmethod
    def measure(cls, model: Classifier, samples: BufferSamples) -> LabelledPredictions:
        """Predict samples by a model."""
        probabilities = model.head.probabilities(samples.z)
        confidence, predicted = probabilities.max(dim=1)
        predicted_labels = model.head.labels[predicted]
        correct = predicted_labels == samples.y
        count = len(samples.y)
        not_known = torch.full((count,), torch.nan, dtype=torch.float64)
        outcomes = cls(confidence.cpu(), correct.cpu(), not_known, not_known, not_known)
        shares = model.available_shares(UNKNOWN_SHARE, COVERAGE)
        predictor = model.open_set_predictor(*shares)
        if predictor.sets is not None:
            members = predictor.sets.of_probabilities(probabilities)
            own = samples.y[:, None]
            is_true = own == model.head.labels
            covered = (members & is_true).any(dim=1)
            set_size = members.sum(dim=1)
            set_sizes = set_size.double().cpu()
            outcomes = outcomes._replace(
                covered=covered.double().cpu(), set_size=set_sizes
            )
        if predictor.reference is not None:
            novelty = model.head.novelty(samples.z)
            p_values = predictor.reference.p_values(novelty)
            outcomes = outcomes._replace(
                unknown=(p_values <= UNKNOWN_SHARE).double().cpu()
            )
        return outcomes

    def join(self, other: LabelledPredictions) -> LabelledPredictions:
        """Return the outcomes of both, one after the other."""
        pairs = zip(self, other, strict=True)
        return LabelledPredictions(*map(torch.cat, pairs))

    @property
    def accuracy(self) -> float | None:
        """Accuracy in percent; None without samples."""
        return _mean(100.0 * self.correct.double())

    @property
    def ece(self) -> float:
        """Expected calibration error in percent."""
        confidence = self.confidence.numpy()
        return calibration_error(confidence, self.correct.numpy()) or 0.0

    @property
    def confident_errors(self) -> int:
        """Number of wrong predictions with a confidence above ``HIGH_CONFIDENCE``."""
        confident = self.confidence > HIGH_CONFIDENCE
        is_wrong = confident & ~self.correct
        return int(is_wrong.sum())

    @property
    def set_coverage(self) -> float | None:
        """Percent of samples whose prediction set holds the true class; None if not known."""
        return _mean(100.0 * self.covered)

    @property
    def mean_set_size(self) -> float | None:
        """Mean number of classes in a prediction set; None if not known."""
        return _mean(self.set_size)

    @property
    def called_unknown(self) -> float | None:
        """Percent of samples that are called unknown; None if not known."""
        return _mean(100.0 * self.unknown)


def _mean(values: Tensor) -> float | None:
    if not len(values) or bool(values.isnan().any()):
        return None
    return float(values.mean())


@dataclass(frozen=True)
class Recalibration:
    """The result of :func:`recalibrate`.

    Attributes:
        model: the recalibrated model; the one that was given is not changed.
        images: number of images that it is calibrated by.
        learned: number of images that were left out because the model has learned them.
        before: outcomes of the given model on these images.
        after: outcomes on each fold of the model recalibrated by the other fold; None with too few
            images.
    """

    model: Classifier
    images: int
    learned: int
    before: LabelledPredictions
    after: LabelledPredictions | None


def recalibrate(
    model: Classifier, images: LabelledImages, unreadable: list[Unreadable]
) -> Recalibration:
    """Calibrate a model by labelled images that it has not learned, and cross-validate the result.

    Args:
        model: a learned model; it is not changed.
        images: of classes that it knows.
        unreadable: images that cannot be decoded are appended.

    Raises:
        UsageError: too few images that the model has not learned.
    """
    new = NewSamples.embed(model, images, unreadable)
    recalibrated = model.recalibrated(*new.samples)
    before = LabelledPredictions.measure(model, new.samples)
    after = None
    first = new.samples.at(new.fold)
    second = new.samples.at(~new.fold)
    fewest = min(len(first.y), len(second.y))
    if fewest >= MIN_NEW_IMAGES:
        other_model = model.recalibrated(*second)
        of_first = LabelledPredictions.measure(other_model, first)
        first_model = model.recalibrated(*first)
        of_second = LabelledPredictions.measure(first_model, second)
        after = of_first.join(of_second)
    return Recalibration(recalibrated, len(new.fold), new.learned, before, after)
