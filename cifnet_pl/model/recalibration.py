"""Recalibrate a model by labelled images under a distribution shift, and measure what it changes.

Temperature, prediction sets and the novelty threshold are fitted to the images; the images are not
learned. What that is worth is measured by two-fold cross-validation over the same images.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.buffer import BufferSamples, buffer_samples
from cifnet_pl.data.splitting import held_out_together
from cifnet_pl.images.image import UNREADABLE_HASH, EncodedImage, Look
from cifnet_pl.model.calibration import COVERAGE, MIN_NEW_IMAGES, UNKNOWN_SHARE
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.evaluation import Evaluation, judge, table_of, targets
from cifnet_pl.model.labelled_images import LabelledImages


def new_samples(
    model: Classifier,
    images: LabelledImages,
) -> tuple[BufferSamples, Tensor, int]:
    """Embed labelled images that a model has not learned, one of each content.

    An image that lies in the folders of two classes keeps the label of its first file.

    Args:
        model: its backbone embeds.
        images: of classes that it knows.

    Returns:
        n images, with their labels and content hashes; their (n,) bool fold of the
        cross-validation, with near-duplicate images in the same one; and the number of distinct
        images that are left out because the model has learned them.
    """
    embeddings, readable = images.all_embedded(
        model, "evaluating", progress=True, look=EncodedImage.look
    )
    rows = np.flatnonzero(readable)
    hashes, first = np.unique(images.files.hashes(rows), return_index=True)
    learned = np.isin(hashes, model.images.content.cpu().numpy())
    fold = np.zeros(len(images.files), dtype=bool)
    for of_class in images.files.rows_of.values():
        names = images.files.names_of(of_class)
        looks = [images.looks[row] or Look(UNREADABLE_HASH) for row in of_class]
        fold[of_class] = held_out_together(names, looks, 0.5, seed=0)
    new = rows[first[~learned]]
    columns = targets(model, images)[new]
    device = model.device
    z = torch.as_tensor(embeddings[new], device=device)
    key = torch.as_tensor(hashes[~learned], device=device)
    in_fold = torch.as_tensor(fold[new], device=device)
    samples = buffer_samples(z, model.head.labels[columns], key)
    return samples, in_fold, int(learned.sum())


def evaluated(model: Classifier, samples: BufferSamples) -> dict[str, Tensor]:
    """Predict labelled samples by a model.

    Args:
        model: the model.
        samples: of its classes.

    Returns:
        Columns of :attr:`Evaluation.samples`: those of :func:`judge`, and of prediction sets and
        unknowns as far as the model can tell.
    """
    head = model.head
    probabilities = head.probabilities(samples.z)
    is_true = samples.y[:, None] == head.labels
    target = is_true.int().argmax(dim=1)
    shares = model.available_shares(UNKNOWN_SHARE, COVERAGE)
    predictor = model.open_set_predictor(*shares)
    novelty = None
    if predictor.reference is not None:
        novelty = head.novelty(samples.z)
    decided = predictor.judge(probabilities, target, novelty)
    return judge(probabilities, target) | decided


@dataclass(frozen=True)
class Recalibration:
    """The result of :func:`recalibrate`.

    Attributes:
        model: the recalibrated model; the one that was given is not changed.
        images: number of images that it is calibrated by.
        learned: number of images that were left out because the model has learned them.
        before: evaluation of the given model on these images.
        after: evaluation on each fold of the model recalibrated by the other fold; None with too
            few images.
    """

    model: Classifier
    images: int
    learned: int
    before: Evaluation
    after: Evaluation | None


def recalibrate(model: Classifier, images: LabelledImages) -> Recalibration:
    """Calibrate a model by labelled images that it has not learned, and cross-validate the result.

    Args:
        model: a learned model; it is not changed.
        images: of classes that it knows.

    Raises:
        UsageError: too few images that the model has not learned.
    """
    samples, in_fold, learned = new_samples(model, images)
    recalibrated = model.recalibrated(*samples[:3])
    names = model.class_names
    before = Evaluation(names, table_of([evaluated(model, samples)]))
    after = None
    folds = [samples.at(in_fold), samples.at(~in_fold)]
    if min(len(fold.y) for fold in folds) >= MIN_NEW_IMAGES:
        parts = [
            evaluated(model.recalibrated(*other[:3]), fold)
            for fold, other in zip(folds, reversed(folds), strict=True)
        ]
        after = Evaluation(names, table_of(parts))
    return Recalibration(recalibrated, len(in_fold), learned, before, after)
