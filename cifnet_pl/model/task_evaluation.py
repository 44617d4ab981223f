"""The accuracy over all classes seen, from counts of predictions that are added batch by batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.model.metrics import (
    ECE_BINS,
    TOP_K,
    binned_calibration_error,
    confidence_bins,
    percent,
    top_classes,
)


class TaskEvaluation:
    """An evaluation over all classes seen: ``update`` with each batch, then ``finish``.

    A run evaluates so after each task, and an extension scores its held-out images so. All figures
    follow from sums, which are added over processes. torchmetrics keeps every confidence instead: a
    million small tensors take hundreds of megabytes. Accuracies are in percent, the negative
    log-likelihood (NLL) in nats; None without test images.

    Args:
        task_sizes: number of classes of each task; columns 0 … C−1 are their classes in this order.
        domains: number of domains, where accuracies are by domain; None for accuracies by task.
        classifiers: names of the classifiers, where a method has several.
        device: of the predictions.

    Attributes:
        seconds: duration of the evaluation, once it is finished.
    """

    def __init__(
        self,
        task_sizes: Sequence[int],
        domains: int | None = None,
        classifiers: Sequence[str] = (),
        device: torch.device | str = "cpu",
    ):
        self.task_sizes = task_sizes
        self.classifiers = classifiers
        self.seconds = 0.0
        self._start = time.perf_counter()
        classes = sum(task_sizes)
        zeros = torch.zeros((), dtype=torch.int64, device=device)
        self._counts = {
            "confusion": zeros.new_zeros(classes, classes),
            # Images whose class is among the five most probable.
            "top5": zeros,
            "bins": zeros.new_zeros(ECE_BINS + 1, 3, dtype=torch.float64),
            # Sum of log p at the true class.
            "log_likelihood": zeros.new_zeros((), dtype=torch.float64),
            # Correct predictions of each classifier.
            "by_classifier": zeros.new_zeros(len(classifiers)),
        }
        if domains is not None:
            # Correct predictions, and images.
            self._counts["by_domain"] = zeros.new_zeros(domains, 2)

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
        counts = self._counts
        top, _ = top_classes(probabilities)
        predicted = top[:, 0]
        correct = predicted == label
        ones = torch.ones_like(label)
        cell = label * len(counts["confusion"]) + predicted
        counts["confusion"].view(-1).index_add_(0, cell, ones)
        target = label[:, None]
        is_among_top = top == target
        counts["top5"] += is_among_top.sum()
        confidence = probabilities.amax(dim=1)
        counts["bins"] += confidence_bins(confidence, correct)
        smallest = torch.finfo(probabilities.dtype).tiny
        likelihood = probabilities.gather(1, target).clamp_min(smallest)
        # As float32 first: the sum of such values in float64 does not depend on their order.
        logarithm = likelihood.log().float()
        counts["log_likelihood"] += logarithm.double().sum()
        if domain is not None:
            columns = torch.stack([correct, ones], dim=1).long()
            counts["by_domain"].index_add_(0, domain, columns)
        for i, name in enumerate(self.classifiers):
            assert by_classifier is not None
            own = by_classifier[name].argmax(dim=1)
            is_correct = own == label
            counts["by_classifier"][i] += is_correct.sum()

    def finish(self, reduce: Callable[[Tensor], object] | None = None) -> None:
        """Add the counts of all processes.

        Args:
            reduce: replaces a tensor by its sum over all processes; None for a single process.
        """
        for name, tensor in self._counts.items():
            if reduce is not None:
                reduce(tensor)
            self._counts[name] = tensor.cpu()
        self.seconds = time.perf_counter() - self._start

    # ------------------------------------------------------------------ figures

    @property
    def confusion(self) -> np.ndarray:
        """(C, C) int64 numbers of images, true classes in rows, predicted ones in columns."""
        return self._counts["confusion"].cpu().numpy()

    @property
    def class_counts(self) -> Tensor:
        """(2, C) int64 correct predictions and images of each class."""
        confusion = self._counts["confusion"].cpu()
        return torch.stack([confusion.diagonal(), confusion.sum(dim=1)])

    @property
    def images(self) -> int:
        """Number of images."""
        return int(self._counts["confusion"].sum())

    @property
    def correct(self) -> int:
        """Number of images whose class is predicted."""
        return int(self._counts["confusion"].trace())

    @property
    def accuracy(self) -> float | None:
        """A_k, over all test images."""
        return percent(self.correct, self.images)

    @property
    def task_accuracy(self) -> list[float | None]:
        """Accuracy on the classes, or the domain, of each task."""
        if "by_domain" in self._counts:
            sums = self._counts["by_domain"][: len(self.task_sizes)].tolist()
        else:
            by_task = torch.split(self.class_counts, list(self.task_sizes), dim=1)
            sums = [part.sum(dim=1).tolist() for part in by_task]
        return [percent(correct, images) for correct, images in sums]

    def figures(self) -> dict[str, float | None]:
        """Return the figures over all images, by the names of ``tasks.csv``.

        ``top5`` is the share of images whose class is among the five most probable; None with up to
        five classes, where it is 100.
        """
        images = self.images
        nll = None
        top5 = None
        if images:
            nll = float(-self._counts["log_likelihood"] / images)
        if len(self._counts["confusion"]) > TOP_K:
            top5 = percent(int(self._counts["top5"]), images)
        figures: dict[str, float | None] = {
            "A_k": self.accuracy,
            "ece": binned_calibration_error(self._counts["bins"]),
            "nll": nll,
            "top5": top5,
        }
        of_classifiers = self._counts["by_classifier"].tolist()
        for name, correct in zip(self.classifiers, of_classifiers, strict=True):
            figures[f"A_k_{name}"] = percent(correct, images)
        return figures
