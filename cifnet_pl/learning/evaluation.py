"""Evaluate over all classes seen: count batch by batch, then compute A_k, accuracies by task, ECE and NLL."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric, SumMetric
from torchmetrics.classification import MulticlassStatScores

from cifnet_pl.model.metrics import FIRST, percent, with_answer_first


class AnswerCounts(Metric):
    """Confusion matrix and top-5 hits, summed over processes.

    Args:
        classes: number of classes C; predictions and targets are columns 0 … C−1.
    """

    full_state_update = False
    confusion: Tensor
    among_first: Tensor

    def __init__(self, classes: int):
        super().__init__()
        self.classes = classes
        self.add_state("confusion", torch.zeros(classes, classes, dtype=torch.int64), dist_reduce_fx="sum")
        self.add_state("among_first", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, probabilities: Tensor, target: Tensor) -> None:
        """Count a batch; of equal probabilities the lower column comes first.

        Args:
            probabilities: (n, C) float.
            target: (n,) int64 true columns.
        """
        raised, best = with_answer_first(probabilities)
        self.confusion.view(-1).index_add_(0, target * self.classes + best, torch.ones_like(best))
        target_scores = raised.gather(1, target[:, None])
        before = torch.arange(self.classes, device=target.device) < target[:, None]
        rank = ((raised > target_scores) | ((raised == target_scores) & before)).sum(dim=1)
        self.among_first += (rank < FIRST).sum()

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return the confusion matrix (C, C) with true classes in rows, and the number of top-5 hits."""
        return self.confusion, self.among_first


@dataclass(frozen=True)
class Evaluation:
    """Result of one evaluation over all classes seen: percentages, NLL in nats, None if nothing was tested.

    Attributes:
        accuracy: A_k, over all test images.
        task_accuracy: on the classes, or the domain, of each task.
        ece: expected calibration error.
        nll: mean of ``−log p`` at the true class.
        seconds: time that the evaluation took.
        top5: share of images whose class is among the five most probable; None with up to five classes, when it is 100.
        confusion: (C, C) int64 numbers of images, rows the true classes, columns the answers.
        accuracy_by: accuracy for each way of answering, if the module has more than one.
    """

    accuracy: float | None
    task_accuracy: list[float | None]
    ece: float | None
    nll: float | None
    seconds: float
    top5: float | None = None
    confusion: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64), compare=False)
    accuracy_by: Mapping[str, float | None] = field(default_factory=dict)

    def metrics(self) -> dict[str, float]:
        """Return what was measured: ``A_k``, ``ece``, ``nll``, ``top5``, and ``A_k1``, ``A_k2``, … of each task.

        If there are several ways of answering, also ``A_k_classifier`` and so on.
        """
        named: dict[str, float | None] = {"A_k": self.accuracy, "ece": self.ece, "nll": self.nll, "top5": self.top5}
        named |= {f"A_k{j}": accuracy for j, accuracy in enumerate(self.task_accuracy, 1)}
        named |= {f"A_k_{way}": accuracy for way, accuracy in self.accuracy_by.items()}
        return {name: value for name, value in named.items() if value is not None}


BINS = 15
"""Of the expected calibration error."""


class Confidence(Metric):
    """Calibration error in 15 bins of the largest probability, and mean of ``−log p`` at the true class, from sums.

    The error is that of torchmetrics' ``MulticlassCalibrationError``, which keeps every confidence: for a million
    images these small tensors hold a C library's heap apart, hundreds of megabytes.
    """

    full_state_update = False
    bins: Tensor
    nll: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.add_state("bins", torch.zeros(BINS + 1, 3, dtype=torch.float64), dist_reduce_fx="sum")
        self.add_state("nll", torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

    def update(self, probabilities: Tensor, label: Tensor) -> None:
        """Count a batch: (n, C) float64 probabilities, and (n,) int64 true columns."""
        confidence, answer = probabilities.max(dim=1)
        rows = torch.stack([torch.ones_like(confidence), confidence, (answer == label).to(confidence)], dim=1)
        edges = torch.linspace(0, 1, BINS + 1, device=confidence.device)  # as in torchmetrics, 1 has a bin of its own
        self.bins.index_add_(0, torch.bucketize(confidence.float(), edges, right=True) - 1, rows)
        likelihood = probabilities.gather(1, label[:, None]).clamp_min(torch.finfo(probabilities.dtype).tiny)
        # As float32 first: such numbers add up in float64 to the same sum in whatever order and batches.
        self.nll -= likelihood.log().float().double().sum()

    def compute(self) -> tuple[float, float]:
        """Return the calibration error in percent, and the mean negative log-likelihood."""
        tested, confidence, right = self.bins.sum(dim=0)[0], self.bins[:, 1], self.bins[:, 2]
        return float(100 * (confidence - right).abs().sum() / tested), float(self.nll / tested)


class EvaluationCounts:
    """Counts of one evaluation, over all processes.

    Args:
        classes: number of classes seen.
        domains: number of domains, where accuracies are by domain; None for accuracies by task.
        device: where predictions are.
        ways: names of the ways of answering, where there are several.
    """

    def __init__(self, classes: int, domains: int | None, device: torch.device, ways: Sequence[str] = ()):
        self._start = time.perf_counter()
        self._answers = AnswerCounts(classes).to(device)
        self._confidence = Confidence().to(device)
        self._right = {way: SumMetric().to(device) for way in ways}
        self._domains: MulticlassStatScores | None = None
        self._no_domain = domains or 0
        if domains is not None:  # and one more, which wrong answers are counted for
            self._domains = MulticlassStatScores(domains + 1, average=None, validate_args=False).to(device)

    def update(self, probabilities: Tensor, label: Tensor, domain: Tensor | None, by_way: Mapping[str, Tensor]) -> None:
        """Count a batch.

        Args:
            probabilities: (n, C) float64, n at least 1.
            label: (n,) int64 true columns.
            domain: (n,) int64 domain of each image, where accuracies are by domain.
            by_way: way of answering → (n, C) its probabilities.
        """
        self._answers.update(probabilities, label)
        self._confidence.update(probabilities, label)
        if self._domains is not None and domain is not None:
            right = probabilities.argmax(dim=1) == label
            self._domains.update(torch.where(right, domain, self._no_domain), domain)
        for way, found in by_way.items():
            self._right[way].update((found.argmax(dim=1) == label).sum())

    def compute(self, task_sizes: Sequence[int]) -> Evaluation:
        """Turn the counts of all processes into A_k, per-task accuracies, ECE and NLL.

        Args:
            task_sizes: number of classes of each task learned.
        """
        counts, among_first = self._answers.compute()
        confusion = counts.reshape(self._answers.classes, -1).cpu().numpy()  # torchmetrics makes a scalar of one count
        ends = np.cumsum(task_sizes)[:-1]
        correct, total = (
            [int(part.sum()) for part in np.split(of, ends)] for of in (confusion.diagonal(), confusion.sum(axis=1))
        )
        if self._domains is not None:
            scores = self._domains.compute()[: len(task_sizes)]  # columns: right, …, images
            correct, total = scores[:, 0].tolist(), scores[:, -1].tolist()
        tested = int(confusion.sum())
        ece, nll = self._confidence.compute() if tested else (None, None)
        return Evaluation(
            accuracy=percent(int(confusion.trace()), tested),
            task_accuracy=[percent(right, images) for right, images in zip(correct, total, strict=True)],
            ece=ece,
            nll=nll,
            seconds=time.perf_counter() - self._start,
            top5=percent(int(among_first), tested) if len(confusion) > FIRST else None,
            confusion=confusion,
            accuracy_by={way: percent(int(right.compute()), tested) for way, right in self._right.items()},
        )
