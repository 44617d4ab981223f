"""The evaluation after each task over all test images of the classes seen."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from cifnet_pl.model.metrics import (
    ECE_BINS,
    TOP_K,
    binned_calibration_error,
    confidence_bins,
    percent,
    top_classes,
)


@dataclass
class TaskEvaluation:
    """Result of an evaluation over all classes seen.

    Accuracies are in percent, the negative log-likelihood (NLL) in nats; None without test images.

    Attributes:
        accuracy: A_k, over all test images.
        task_accuracy: accuracy on the classes, or the domain, of each task.
        ece: expected calibration error in percent.
        nll: mean of ``−log p`` at the true class.
        seconds: duration of the evaluation.
        top5: share of images whose class is among the five most probable; None with up to five
            classes, where it is 100.
        confusion: (C, C) int64 numbers of images, true classes in rows, predicted ones in columns.
        accuracy_by_classifier: accuracy of each classifier, if the module has more than one.
    """

    accuracy: float | None
    task_accuracy: list[float | None]
    ece: float | None
    nll: float | None
    seconds: float
    top5: float | None
    confusion: np.ndarray = field(compare=False)
    accuracy_by_classifier: dict[str, float | None]

    def metrics(self) -> dict[str, float]:
        """Return the metrics by name.

        Names are ``A_k``, ``ece``, ``nll``, ``top5``; ``A_k1``, ``A_k2``, … on each
        task alone after this task; with
        several classifiers also ``A_k_classifier`` and so on.
        """
        named: dict[str, float | None] = {
            "A_k": self.accuracy,
            "ece": self.ece,
            "nll": self.nll,
            "top5": self.top5,
        }
        for task, accuracy in enumerate(self.task_accuracy, 1):
            named[f"A_k{task}"] = accuracy
        for classifier, accuracy in self.accuracy_by_classifier.items():
            named[f"A_k_{classifier}"] = accuracy
        return {name: value for name, value in named.items() if value is not None}


class EvaluationCounts(Metric):
    """Count the predictions of one evaluation; counts are added over processes.

    All figures follow from sums. torchmetrics' ``MulticlassCalibrationError`` keeps every
    confidence instead: a million small tensors take hundreds of megabytes.

    Args:
        task_sizes: number of classes of each task; columns 0 … C−1 are their classes in this order.
        domains: number of domains, where accuracies are by domain; None for accuracies by task.
        classifiers: names of the classifiers, where the module has several.
    """

    full_state_update = False
    confusion: Tensor  # (C, C) images, true classes in rows
    top5: Tensor  # images whose class is among the five most probable
    bins: Tensor  # (ECE_BINS + 1, 3) of confidence_bins
    log_likelihood: Tensor  # sum of log p at the true class
    by_domain: Tensor  # (domains, 2) correct predictions, images
    by_classifier: Tensor  # (classifiers,) correct predictions

    def __init__(
        self,
        task_sizes: Sequence[int],
        domains: int | None = None,
        classifiers: Sequence[str] = (),
    ):
        super().__init__()
        self._start = time.perf_counter()
        self.task_sizes = task_sizes
        self.domains = domains
        self.classifiers = classifiers
        classes = sum(task_sizes)
        counts = {
            "confusion": torch.zeros(classes, classes, dtype=torch.int64),
            "top5": torch.zeros((), dtype=torch.int64),
            "bins": torch.zeros(ECE_BINS + 1, 3, dtype=torch.float64),
            "log_likelihood": torch.zeros((), dtype=torch.float64),
            "by_domain": torch.zeros(domains or 1, 2, dtype=torch.int64),
            "by_classifier": torch.zeros(max(len(classifiers), 1), dtype=torch.int64),
        }
        for name, zeros in counts.items():
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(
        self,
        probabilities: Tensor,
        label: Tensor,
        domain: Tensor | None = None,
        by_classifier: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Count a batch; of equal probabilities the lower column comes first.

        Args:
            probabilities: (n, C) float64, n at least 1.
            label: (n,) int64 true columns.
            domain: (n,) int64 domain of each image, where accuracies are by domain.
            by_classifier: (n, C) probabilities of each classifier, by its name.
        """
        top, _ = top_classes(probabilities)
        predicted = top[:, 0]
        correct = predicted == label
        ones = torch.ones_like(label)
        cell = label * len(self.confusion) + predicted
        self.confusion.view(-1).index_add_(0, cell, ones)
        self.top5 += (top == label[:, None]).sum()
        self.bins += confidence_bins(probabilities.amax(dim=1), correct)
        smallest = torch.finfo(probabilities.dtype).tiny
        likelihood = probabilities.gather(1, label[:, None]).clamp_min(smallest)
        # As float32 first: the sum of such values in float64 does not depend on their order.
        self.log_likelihood += likelihood.log().float().double().sum()
        if domain is not None:
            self.by_domain.index_add_(
                0, domain, torch.stack([correct, ones], dim=1).long()
            )
        for i, name in enumerate(self.classifiers):
            assert by_classifier is not None
            self.by_classifier[i] += (by_classifier[name].argmax(dim=1) == label).sum()

    def compute(self) -> TaskEvaluation:
        """Compute A_k, the accuracies of tasks, ECE and NLL from the counts of all processes."""
        confusion = self.confusion.cpu().numpy()
        tested = int(confusion.sum())
        nll = top5 = None
        if tested:
            nll = float(-self.log_likelihood / tested)
        if len(confusion) > TOP_K:
            top5 = percent(int(self.top5), tested)
        by_classifier = {}
        for i, name in enumerate(self.classifiers):
            by_classifier[name] = percent(int(self.by_classifier[i]), tested)
        return TaskEvaluation(
            accuracy=percent(int(confusion.trace()), tested),
            task_accuracy=self._task_accuracy(confusion),
            ece=binned_calibration_error(self.bins),
            nll=nll,
            seconds=time.perf_counter() - self._start,
            top5=top5,
            confusion=confusion,
            accuracy_by_classifier=by_classifier,
        )

    def _task_accuracy(self, confusion: np.ndarray) -> list[float | None]:
        """Return the accuracy on each task's classes, or on its domain."""
        if self.domains is not None:
            counts = self.by_domain[: len(self.task_sizes)].tolist()
            return [percent(correct, images) for correct, images in counts]
        correct = confusion.diagonal()
        images = confusion.sum(axis=1)
        accuracies = []
        end = 0
        for size in self.task_sizes:
            task = slice(end, end + size)
            end += size
            accuracies.append(
                percent(int(correct[task].sum()), int(images[task].sum()))
            )
        return accuracies
