"""Look at a served model: its accuracy, what its classes are confused with, and label errors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from pydantic import Field

from cifnet_pl.heads.probabilities import CalibrationSamples
from cifnet_pl.model.audit import audit
from cifnet_pl.model.bundle import Event
from cifnet_pl.model.calibration import (
    MIN_IMAGES_PER_CLASS,
    Kind,
    forecast,
)
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.evaluation import Evaluation, evaluate_left_out
from cifnet_pl.serving.gate import ApiObject
from cifnet_pl.serving.messages import SHOWN_NAMES, RequestError

CONFUSED_SHARE = 0.1
"""Share of a class's images from which another class is named as one that it is confused with."""

MIN_CONFUSIONS = 2
"""Images of a class that must be taken for another one before it is named."""

PHOTO_SCALE = 2
"""Pixels of an image's shorter side for each that the backbone sees of it: as many as
:mod:`cifnet_pl.images.jpeg` decodes. One costs 2 to 4 points (``docs/studies/shrinking.md``)."""

WIDEST_INTERVAL = 75
"""Width in points of an interval of an accuracy, from which on nothing is said of a class."""


ACCURACY_MESSAGES = {
    "given": "Photos taken together, as they were named, count as one.",
    "found": "Photos taken together, on one day or at one place, count as one.",
    "independent": "No photos taken together were found, so one number serves for both.",
    "measured": "Measured on photos of another place that someone named.",
    "one_group": "Most classes have photos of one day or place only, so how often it is right on"
    " another day cannot be told.",
    "few": "There are too few photos to say how often it is right on another day.",
    "incomplete": "Too few photos are kept for checking to say how often it is right on another"
    " day.",
    "unknown": "How often it is right on another day is not estimated.",
}
"""How the two accuracies were found, by the kind of the estimate."""


Bounds = tuple[float, float]
"""Percentages between which an accuracy lies."""


class AccuracyEstimate(ApiObject):
    """Two accuracies of images that were not learned, which must not be mistaken."""

    loo_accuracy: float | None
    """Percent of images in the calibration buffer that are predicted right, each left out."""
    loo_accuracy_interval: Bounds | None
    """Percentages between which it lies with a probability of 95 %."""
    new_group_accuracy: float | None
    """The same with the whole group left out, an estimate; or the percentage that was measured on
    labelled images after a distribution shift."""
    new_group_accuracy_interval: Bounds | None
    """Percentages between which as many new groups lie with a probability of 95 %."""
    kind: Kind
    """Source of new_group_accuracy: from groups that were found or given, independent images, or
    measured; few: too few images to say; one_group: most classes have images of one group only, or
    none in the buffer; incomplete: the buffer is too small to tell; unknown: not estimated."""
    message: str
    """The kind in one sentence."""

    @classmethod
    def from_model(cls, model: Classifier) -> AccuracyEstimate:
        """Return the accuracies that a model has estimated by its calibration."""
        calibration = model.calibration
        return cls(
            **calibration.describe(),
            kind=calibration.estimate_kind,
            message=ACCURACY_MESSAGES[calibration.estimate_kind],
        )


class ModelSummary(ApiObject):
    """The state of the model."""

    name: str
    version: int
    read_only: bool
    head: str
    backbone: str
    image_size: int
    photo_side: int
    """Pixels of an image's shorter side beyond which the answers are the same."""
    largest_file: int
    """Bytes of a file that a request can hold."""
    classes: int
    images: int
    history: list[Event]
    accuracy: AccuracyEstimate


class ClassEstimate(ApiObject):
    """Leave-one-group-out predictions for the images of one class."""

    name: str
    accuracy: float | None = None
    """Estimated percentage on new groups; null: too few images to say."""
    interval: Bounds | None = None
    """Percentages between which as many new groups lie with a probability of 95 %."""
    confused_with: list[str] = Field(default=[])
    """Classes that are predicted instead, the most frequent first."""
    rarely_predicted: bool = False
    """Whether hardly any of its images is predicted right."""


class ClassPredictions(ApiObject):
    """Leave-one-group-out predictions for the images in the calibration buffer."""

    classes: list[ClassEstimate]


class AuditedImage(ApiObject):
    """A kept image whose label may be an error."""

    file: str
    """Name of the kept image."""
    label: str
    predicted: str
    label_probability: float
    """Probability of its label, judged by all other images, 0–1."""


class AuditView(ApiObject):
    """Label errors among kept images."""

    images: int
    """Kept images that were judged."""
    not_judged: list[str]
    """Classes of which one image, or near-duplicates of one alone, are kept."""
    label_errors: list[AuditedImage]
    """The least probable labels first."""


def accuracy_of_classes(
    model: Classifier,
    names: Sequence[str],
) -> tuple[float | None, Bounds | None]:
    """Return the leave-one-group-out accuracy of the buffer's samples of some classes.

    Args:
        model: a learned model.
        names: of the classes.

    Returns:
        Percent, and the percentages between which it lies on new groups; None where it cannot be
        measured.
    """
    if len(model.class_names) <= 1:
        return None, None
    rows = [model.class_names.index(name) for name in names]
    samples = model.stored_samples()
    return _accuracy(evaluate_left_out(model, samples), samples, rows)


def _accuracy(
    left_out: Evaluation,
    samples: CalibrationSamples | None,
    rows: list[int],
) -> tuple[float | None, Bounds | None]:
    """Return the accuracy of the classes of some rows, as :func:`accuracy_of_classes` does."""
    correct, images = left_out.class_counts[:, rows].sum(axis=1).tolist()
    if not images or samples is None:
        return None, None
    share = correct / images
    wanted = samples.columns.new_tensor(rows)
    counted = samples.counted & torch.isin(samples.columns, wanted)
    groups = torch.unique(samples.groups[counted])
    return 100 * share, forecast(share, len(groups))


def class_estimates(model: Classifier) -> list[ClassEstimate]:
    """Return the accuracy of each class on new groups, and what it is confused with, in order."""
    estimate_of = {name: ClassEstimate(name=name) for name in model.class_names}
    estimates = list(estimate_of.values())
    kind = model.calibration.estimate_kind
    if kind == "unknown" or len(estimates) <= 1:
        return estimates
    samples = model.calibration_samples()
    left_out = evaluate_left_out(model, samples)
    for pair in left_out.confused_pairs():
        others = estimate_of[pair.target].confused_with
        least = max(MIN_CONFUSIONS, CONFUSED_SHARE * pair.images)
        if pair.confusions >= least and len(others) < SHOWN_NAMES:
            others.append(pair.predicted)
    if kind == "few":
        return estimates
    for name in left_out.rarely_predicted:
        estimate_of[name].rarely_predicted = True
    for row, images in enumerate(left_out.class_counts[1]):
        estimate = estimates[row]
        if images >= MIN_IMAGES_PER_CLASS:
            accuracy, interval = _accuracy(left_out, samples, [row])
            if interval is not None and interval[1] - interval[0] <= WIDEST_INTERVAL:
                estimate.accuracy = accuracy
                estimate.interval = interval
    return estimates


def audited(files: Sequence[str], z: torch.Tensor, labels: Sequence[str]) -> AuditView:
    """Judge kept images, each by all the others.

    Args:
        files: names of the images.
        z: (n, d) their embeddings.
        labels: their classes.

    Raises:
        RequestError: no images of two classes are kept.
    """
    columns, names = pd.factorize(np.array(labels))
    if len(names) < 2:
        raise RequestError(
            409,
            "no photos of two classes are kept here, so none can be checked: teach some",
        )
    result = audit(z.numpy(), columns, names.tolist())
    errors = [
        AuditedImage(
            file=files[row],
            label=image["class"],
            predicted=image["predicted"],
            label_probability=image["probability_of_class"],
        )
        for row, image in result.label_errors().iterrows()
    ]
    return AuditView(
        images=result.scored.images,
        not_judged=list(result.unjudged),
        label_errors=errors,
    )
