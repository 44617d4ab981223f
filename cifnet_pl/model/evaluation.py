"""Evaluate predictions for labelled samples: of a run, a model, an extension or an audit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cifnet_pl.heads.probabilities import CalibrationSamples
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.labelled_images import LabelledImages, find_repeats
from cifnet_pl.model.metrics import (
    MIN_TEST_IMAGES,
    TOP_K,
    Interval,
    calibration_error,
    percent,
    top_classes,
    wilson_interval,
)
from cifnet_pl.statistics import to_probabilities
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import listed, number_of

RARELY_PREDICTED = 25.0
"""Accuracy of a class in percent, below which the class is called rarely predicted."""


# ---------------------------------------------------------------------- predictions


def judge(
    probabilities: Tensor,
    target: Tensor,
    task: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return what counts of the predictions for a batch; they stay on their device.

    Args:
        probabilities: (n, C).
        target: (n,) int64 true columns.
        task: (n,) int64 task or domain of each sample; None if there is one alone.

    Returns:
        The columns of :attr:`Evaluation.samples` that every evaluation has, each (n,). Of equal
        probabilities the lower column is predicted.
    """
    top, _ = top_classes(probabilities)
    is_true = top == target[:, None]
    smallest = torch.finfo(probabilities.dtype).tiny
    likelihood = probabilities.gather(1, target[:, None]).clamp_min(smallest)
    if task is None:
        task = torch.zeros_like(target)
    return {
        "target": target,
        "predicted": top[:, 0],
        "confidence": probabilities.amax(dim=1),
        "correct": is_true[:, 0],
        "among_top": is_true.any(dim=1),
        # As float32: the sum of such values in float64 does not depend on their order.
        "log_likelihood": likelihood[:, 0].log().float(),
        "task": task,
    }


def table_of(batches: Sequence[Mapping[str, Tensor]]) -> pd.DataFrame:
    """Return the rows of all batches.

    Args:
        batches: each as :func:`judge` returns it, with further columns or without.
    """
    if not batches:
        batches = [judge(torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64))]
    columns = {}
    for name in batches[0]:
        columns[name] = torch.cat([batch[name] for batch in batches]).cpu().numpy()
    return pd.DataFrame(columns)


class ConfusedPair(NamedTuple):
    """Number of images of one class that are predicted as another one.

    Attributes:
        target: name of the true class.
        predicted: name of the predicted class.
        confusions: number of images.
        images: number of all images of the true class.
    """

    target: str
    predicted: str
    confusions: int
    images: int


@dataclass(frozen=True)
class ClassScore:
    """The score of a model on the images of one class.

    Attributes:
        name: of the class.
        images: number of images, at least one.
        correct: number of images whose class is predicted.
        confusion: the class that is predicted for most of the others; None if there are none.
    """

    name: str
    images: int
    correct: int
    confusion: ConfusedPair | None = None

    @property
    def tested(self) -> bool:
        """Whether there are enough images to show an accuracy."""
        return self.images >= MIN_TEST_IMAGES

    @property
    def percent(self) -> float:
        """Accuracy in percent."""
        return 100 * self.correct / self.images

    @property
    def interval(self) -> Interval:
        """Wilson's 95 % interval around the accuracy, in percent."""
        return wilson_interval(self.correct, self.images)


@dataclass(eq=False)
class Evaluation:
    """Predictions for labelled samples, and the figures that follow from them.

    Accuracies are in percent, the negative log-likelihood (NLL) in nats; None without samples.

    Attributes:
        class_names: name of each column of the probabilities.
        samples: a row for each sample. ``target`` and ``predicted`` are columns, ``confidence`` is
            the probability of the predicted one, and ``log_likelihood`` is of the true one;
            ``correct`` says whether both are the same, ``among_top`` whether the true one is among
            the five most probable; ``task`` is the task or domain of the sample. Some evaluations
            have more: ``row``, the position in a set of images; ``learned`` and ``duplicate`` (of
            another one); ``A_k_NAME``, whether another classifier is right; what
            :meth:`~cifnet_pl.model.calibration.OpenSetPredictor.judge` gives.
        tasks: number of tasks or domains.
        metrics: values of custom metrics by name.
        seconds: duration.
        mislabelled: images that are in another class, too, as messages name them.
        images: number of samples.
        confidence: (n,) probability of each predicted class.
        correct: (n,) bool: for which samples the true class is predicted.
        accuracy: A_k, over all samples.
        task_accuracy: accuracy on the samples of each task or domain.
        ece: expected calibration error in percent.
        class_counts: (2, C) int64 correct predictions and samples of each class.
    """

    class_names: list[str] = field(default_factory=list)
    samples: pd.DataFrame = field(default_factory=lambda: table_of([]))
    tasks: int = 1
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    seconds: float = 0.0
    mislabelled: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self.images = len(self.samples)
        self.confidence = self.samples["confidence"].to_numpy()
        self.correct = self.samples["correct"].to_numpy()
        self.accuracy = self.share("correct")
        self.ece = calibration_error(self.confidence, self.correct)
        self.class_counts = self._counts("target", len(self.class_names))
        of_tasks = self._counts("task", self.tasks).T.tolist()
        self.task_accuracy = [percent(*counts) for counts in of_tasks]

    def _counts(self, column: str, size: int) -> np.ndarray:
        """Return (2, size) int64 correct predictions and samples of each value of a column."""
        values = self.samples[column].to_numpy()
        hits = np.bincount(values[self.correct], minlength=size)
        images = np.bincount(values, minlength=size)
        # A domain that no task learns has no place.
        return np.stack([hits[:size], images[:size]])

    def share(self, name: str) -> float | None:
        """Return the percentage of samples for which a column is true; None if not known."""
        if name not in self.samples:
            return None
        return percent(int(self.samples[name].sum()), self.images)

    @property
    def interval(self) -> Interval:
        """Wilson's 95 % interval around the accuracy, in percent."""
        return wilson_interval(int(self.correct.sum()), self.images)

    def figures(self) -> dict[str, float | None]:
        """Return the figures over all samples, by the names of ``tasks.csv``.

        ``top5`` is None with up to five classes, where it is 100.
        """
        nll = None
        top5 = None
        set_size = None
        if self.images:
            nll = -float(self.samples["log_likelihood"].astype(float).mean())
            if "set_size" in self.samples:
                set_size = float(self.samples["set_size"].mean())
        if len(self.class_names) > TOP_K:
            top5 = self.share("among_top")
        figures = {
            "A_k": self.accuracy,
            "ece": self.ece,
            "nll": nll,
            "top5": top5,
            "set_size": set_size,
            "set_coverage": self.share("covered"),
            "known_rejected": self.share("unknown"),
        }
        for name in self.samples:
            if str(name).startswith("A_k_"):
                figures[str(name)] = self.share(str(name))
        return figures | dict(self.metrics)

    # ------------------------------------------------------------------ classes

    @property
    def confusion(self) -> np.ndarray:
        """(C, C) int64 numbers of samples, true classes in rows, predicted ones in columns."""
        classes = len(self.class_names)
        cells = self.samples["target"] * classes + self.samples["predicted"]
        return np.bincount(cells, minlength=classes**2).reshape(classes, classes)

    def class_scores(self) -> list[ClassScore]:
        """Return the score of each class that has an image, the worst first, untested ones last."""
        pairs = self.confused_pairs()
        most_frequent = {pair.target: pair for pair in reversed(pairs)}
        scores = []
        for name, (correct, images) in zip(
            self.class_names, self.class_counts.T.tolist(), strict=True
        ):
            if images:
                confusion = most_frequent.get(name)
                scores.append(ClassScore(name, images, correct, confusion))
        scores.sort(key=lambda score: (not score.tested, score.percent, score.name))
        return scores

    @property
    def rarely_predicted(self) -> list[str]:
        """Classes that are rarely predicted for their samples, among those with enough of them."""
        correct, images = self.class_counts
        is_tested = images >= MIN_TEST_IMAGES
        is_rare = correct < RARELY_PREDICTED * images / 100
        columns = np.flatnonzero(is_tested & is_rare)
        return [self.class_names[column] for column in columns]

    def confused_pairs(self) -> list[ConfusedPair]:
        """Return all pairs of classes that are confused, the most frequent first."""
        names = self.class_names
        images = self.class_counts[1].tolist()
        errors = self.confusion
        np.fill_diagonal(errors, 0)
        pairs = []
        for i, j in np.argwhere(errors).tolist():
            confusions = int(errors[i, j])
            pairs.append(ConfusedPair(names[i], names[j], confusions, images[i]))
        pairs.sort(key=lambda pair: (-pair.confusions, pair.images))
        return pairs

    # ------------------------------------------------------------------ images seen before

    def learned_message(self) -> str | None:
        """Return a sentence about images that the model has learned; None if there are none."""
        learned = self.samples["learned"]
        if not learned.any():
            return None
        images = number_of(self.images, "image")
        message = f"{learned.sum()} of {images} learned already"
        if learned.all():
            return f"{message}: measure with images that are new to the model"
        accuracy = 100 * self.correct[~learned].mean()
        return f"{message}; accuracy on the others {accuracy:.1f} %"


# ---------------------------------------------------------------------- of a model


def evaluate(
    model: Classifier,
    images: LabelledImages,
    progress: bool = False,
) -> Evaluation:
    """Predict labelled images, and compare with their labels.

    Args:
        model: a learned model.
        images: of classes that it knows; see :meth:`LabelledImages.of_classes`.
        progress: whether to draw a bar on a terminal.

    Returns:
        The evaluation, whose samples have a ``row`` and say whether they are ``learned`` or a
        ``duplicate``.

    Raises:
        DataError: no image can be read.
    """
    target = targets(model, images)
    batches = []
    for rows, z in images.embedded(model, "evaluating", progress):
        batch = judge(model.head.probabilities(z), target[rows])
        batches.append(batch | {"row": torch.from_numpy(rows)})
    samples = table_of(batches)
    if samples.empty:
        raise DataError("none of the images can be read: there is nothing to evaluate")
    repeats, mislabelled = find_repeats(images, model.classes_of_hashes())
    samples["learned"] = samples["row"].isin(repeats.learned)
    samples["duplicate"] = samples["row"].isin(repeats.twice)
    names = list(model.class_names)
    return Evaluation(names, samples, mislabelled=tuple(mislabelled.values()))


def targets(model: Classifier, images: LabelledImages) -> Tensor:
    """Return the (n,) column of a model's probabilities that is right for each image.

    Args:
        model: knows the classes of the images.
        images: n images.
    """
    columns = np.array([model.class_names.index(name) for name in images.class_names])
    return torch.from_numpy(columns[images.files.labels]).to(model.device)


def evaluate_left_out(
    model: Classifier,
    samples: CalibrationSamples | None,
) -> Evaluation:
    """Predict each calibration sample by the model without it and its group.

    No second model is needed for it. Nothing is evaluated without calibration samples, or where the
    head has no leave-one-out scores.

    Args:
        model: solved.
        samples: of its buffer, or labelled images that it has not learned.
    """
    batches = []
    head = model.head
    if samples is not None and (head.leaves_one_out or not samples.learned):
        scores, columns, _ = samples.known_scores()
        probabilities = to_probabilities(scores, head.temperature, head.odds_power)
        batches.append(judge(probabilities, columns))
    return Evaluation(model.class_names, table_of(batches))


def rarely_predicted_notes(names: Sequence[str], model: Classifier | None) -> list[str]:
    """Return a sentence about rarely predicted classes, or nothing if there are none.

    Args:
        names: of the classes.
        model: that predicts; None for a trained method.
    """
    if not names:
        return []
    classes = listed(names)
    remedy = "add images of new groups"
    if model is None or not model.head.selects_rule:
        remedy = f"use the recommended head (cifnet fit --config folder), or {remedy}"
    return [
        f"{number_of(len(names), 'rarely predicted class')} (accuracy below"
        f" {RARELY_PREDICTED:.0f} %): {classes}; {remedy}"
    ]
