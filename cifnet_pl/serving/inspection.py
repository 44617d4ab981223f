"""Look at a served model: its accuracy, what its classes are confused with, and label errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from pydantic import Field

from cifnet_pl.heads.confidence import CalibrationSamples
from cifnet_pl.model.audit import audit
from cifnet_pl.model.calibration import (
    MIN_IMAGES_PER_CLASS,
    Kind,
    forecast,
    gain_of_more_images,
    gain_text,
)
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.metrics import left_out_predictions, percent, rarely_predicted
from cifnet_pl.serving import messages
from cifnet_pl.serving.answering import ApiObject
from cifnet_pl.serving.gallery import Gallery
from cifnet_pl.serving.messages import RequestError

CONFUSED_SHARE = 0.1
"""Share of a class's images from which another class is named as one that it is confused with."""

MIN_CONFUSIONS = 2
"""Images of a class that must be taken for another one before it is named."""

NAMED_CONFUSIONS = 2
"""Classes that are named at most as those that a class is confused with."""

AUDITED_IMAGES = 2000
"""Kept images that are audited at most, evenly spaced."""

SHOWN_LABEL_ERRORS = 24
"""Images with a label error that are named at most."""

WIDEST_INTERVAL = 75
"""Width in points of an interval of an accuracy, from which on nothing is said of a class."""


class HistoryEntry(ApiObject, from_attributes=True):
    """One step in the model's life."""

    kind: str
    classes: int
    images: int | None
    accuracy: float | None
    old_accuracy: float | None
    seconds: float | None
    energy_kwh: float | None
    energy_source: str | None


class AccuracyEstimate(ApiObject):
    """Two accuracies of images that were not learned, which must not be mistaken."""

    loo_accuracy: float | None
    """Percent of images in the calibration buffer that are predicted right, each left out."""
    loo_accuracy_interval: tuple[float, float] | None
    """Percentages between which it lies with a probability of 95 %."""
    new_group_accuracy: float | None
    """The same with the whole group left out, an estimate; or the percentage that was measured on
    labelled images after a distribution shift."""
    new_group_accuracy_interval: tuple[float, float] | None
    """Percentages between which as many new groups lie with a probability of 95 %."""
    kind: Kind
    """Source of new_group_accuracy: from groups that were found or given, independent images, or
    measured; few: too few images to say; one_group: most classes have images of one group only;
    unknown: not estimated."""
    message: str
    """The kind in one sentence."""

    @classmethod
    def from_model(cls, model: Classifier) -> AccuracyEstimate:
        """Return the accuracies that a model has estimated by its calibration."""
        calibration = model.calibration
        return cls(
            loo_accuracy=calibration.loo_accuracy,
            loo_accuracy_interval=calibration.loo_interval,
            new_group_accuracy=calibration.new_group_accuracy,
            new_group_accuracy_interval=calibration.new_group_interval,
            kind=calibration.estimate_kind,
            message=messages.ACCURACY_MESSAGES[calibration.estimate_kind],
        )


class ModelSummary(ApiObject):
    """The state of the model."""

    name: str
    version: int
    read_only: bool
    head: str
    backbone: str
    image_size: int
    classes: int
    images: int
    state_mb: float
    """Size of the head and its calibration buffer in MB; without the frozen backbone."""
    history: list[HistoryEntry]
    accuracy: AccuracyEstimate


class ClassEstimate(ApiObject):
    """Leave-one-group-out predictions for the images of one class."""

    name: str
    accuracy: float | None
    """Estimated percentage on new groups; null: too few images to say."""
    interval: tuple[float, float] | None = None
    """Percentages between which as many new groups lie with a probability of 95 %."""
    confused_with: list[str] = Field(default=[])
    """Classes that are predicted instead, the most frequent first."""
    rarely_predicted: bool = False
    """Whether hardly any of its images is predicted right."""


class ClassPredictions(ApiObject):
    """Leave-one-group-out predictions for the images in the calibration buffer."""

    classes: list[ClassEstimate]
    ten_more: tuple[float, float] | None = None
    """Points of accuracy on new groups that ten more images of each class would bring: interval of
    95 %; null: too few images to say."""
    ten_more_text: str = "too few to say"
    """The same in words."""


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


def accuracy_of_classes(model: Classifier, names: Sequence[str]) -> float | None:
    """Return the leave-one-group-out accuracy of the buffer's samples of some classes.

    Args:
        model: a learned model.
        names: of the classes.

    Returns:
        Percent; None if it cannot be measured.
    """
    stored = left_out_predictions(model)
    if stored is None:
        return None
    true, predicted = stored
    columns = [model.class_names.index(name) for name in names]
    rows = torch.isin(true, torch.tensor(columns))
    return percent(int((true == predicted)[rows].sum()), int(rows.sum()))


def accuracy_interval(
    model: Classifier, names: Sequence[str], accuracy: float | None
) -> tuple[float, float] | None:
    """Return the percentages between which the accuracy of some classes on new groups lies.

    Args:
        model: a learned model.
        names: of the classes.
        accuracy: as :func:`accuracy_of_classes` returns it.
    """
    samples = model.calibration_samples()
    if samples is None or accuracy is None:
        return None
    columns = torch.tensor([model.class_names.index(name) for name in names])
    counted_columns = samples.columns.cpu()[samples.counted.cpu()]
    groups = counted_groups(samples)[torch.isin(counted_columns, columns)]
    return forecast(accuracy / 100, len(torch.unique(groups)))


def summarised(
    model: Classifier, name: str, version: int, read_only: bool
) -> ModelSummary:
    """Return the state of a model.

    Args:
        model: a learned model.
        name: of the model.
        version: its number.
        read_only: whether changes are refused.
    """
    return ModelSummary(
        name=name,
        version=version,
        read_only=read_only,
        head=type(model.head).__name__,
        backbone=model.backbone.name,
        image_size=model.image_size,
        classes=len(model.class_names),
        images=sum(model.counts.values()),
        state_mb=sum(tensor.nbytes for tensor in model.tensors().values()) / 1e6,
        history=[HistoryEntry.model_validate(event) for event in model.history],
        accuracy=AccuracyEstimate.from_model(model),
    )


def class_predictions(model: Classifier) -> ClassPredictions:
    """Return leave-one-group-out predictions of the buffer by class, in the model's order."""
    result = ClassPredictions(classes=class_estimates(model))
    if model.calibration.estimate_kind not in ("unknown", "few"):
        result.ten_more = gain_of_more_images(model.calibration_samples())
        result.ten_more_text = gain_text(result.ten_more)
    return result


def class_estimates(model: Classifier) -> list[ClassEstimate]:
    """Return the accuracy of each class on new groups, and what it is confused with."""
    names = model.class_names
    samples = model.calibration_samples()
    kind = model.calibration.estimate_kind
    stored = None
    if kind != "unknown":
        stored = left_out_predictions(model)
    if samples is None or stored is None:
        return [ClassEstimate(name=name, accuracy=None) for name in names]
    true, predicted = stored
    count = len(names)
    cells = (true * count + predicted).bincount(minlength=count**2)
    confusion = cells.view(count, count).numpy()
    rare = set(rarely_predicted(confusion.diagonal(), confusion.sum(axis=1)).tolist())
    groups = counted_groups(samples)
    columns = samples.columns.cpu()[samples.counted.cpu()]
    estimates = list[ClassEstimate]()
    for row, name in enumerate(names):
        estimate = ClassEstimate(name=name, accuracy=None)
        estimate.confused_with = confused_with(names, confusion[row], row)
        if kind != "few":
            number = len(torch.unique(groups[columns == row]))
            estimate_accuracy(estimate, confusion[row], row, number)
            estimate.rarely_predicted = row in rare
        estimates.append(estimate)
    return estimates


def counted_groups(samples: CalibrationSamples) -> torch.Tensor:
    """Return the group of each sample that counts, (n,); each its own where none were found."""
    if samples.groups is None:
        groups = torch.arange(len(samples.y))
    else:
        groups = samples.groups.cpu()
    return groups[samples.counted.cpu()]


def confused_with(names: Sequence[str], predictions: np.ndarray, row: int) -> list[str]:
    """Return the classes that are predicted in place of one, the most frequent first.

    Args:
        names: of all classes.
        predictions: (C,) how often each class was predicted for samples of this one.
        row: position of the class.
    """
    least = max(MIN_CONFUSIONS, CONFUSED_SHARE * predictions.sum())
    confused = []
    for column in np.argsort(-predictions, kind="stable").tolist():
        if column != row and predictions[column] >= least:
            confused.append(names[column])
    return confused[:NAMED_CONFUSIONS]


def estimate_accuracy(
    estimate: ClassEstimate, predictions: np.ndarray, row: int, groups: int
) -> None:
    """Set the accuracy of one class and its interval, if there are images enough.

    Args:
        estimate: of the class.
        predictions: (C,) how often each class was predicted for its samples.
        row: position of the class.
        groups: number of groups that its samples are of.
    """
    images = int(predictions.sum())
    if images < MIN_IMAGES_PER_CLASS:
        return
    share = float(predictions[row]) / images
    low, high = forecast(share, groups)
    if high - low <= WIDEST_INTERVAL:
        estimate.accuracy = 100 * share
        estimate.interval = (low, high)


def audited(gallery: Gallery, kept_images: Mapping[str, Sequence[str]]) -> AuditView:
    """Judge kept images, each by all the others.

    Args:
        gallery: with the embeddings of the kept images.
        kept_images: class name → names of its kept images.

    Raises:
        RequestError: no images of two classes are kept.
    """
    label_of = {}
    for name, members in kept_images.items():
        label_of.update(dict.fromkeys(members, name))
    step = max(1, -(-len(label_of) // AUDITED_IMAGES))
    files, z = gallery.embeddings(list(label_of)[::step])
    names = list(dict.fromkeys(label_of[file] for file in files))
    if len(names) < 2:
        raise RequestError(409, messages.NOTHING_TO_AUDIT)
    labels = np.array([names.index(label_of[file]) for file in files], dtype=np.int64)
    result = audit(z.numpy(), labels, names)
    errors = []
    for row in result.label_errors()[:SHOWN_LABEL_ERRORS].tolist():
        predicted = int(result.evaluation.predicted[row])
        errors.append(
            AuditedImage(
                file=files[row],
                label=names[labels[row]],
                predicted=names[predicted],
                label_probability=float(result.self_confidence[row]),
            )
        )
    return AuditView(
        images=int(result.judged.sum()),
        not_judged=list(result.unjudged),
        label_errors=errors,
    )
