"""Evaluate over all classes seen: count batch by batch, then compute A_k, accuracies by task, ECE and NLL."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torchmetrics import CatMetric, SumMetric
from torchmetrics.classification import MulticlassCalibrationError

from cifnet_pl.model.metrics import FIRST, AnswerCounts, ClassAccuracy, percent


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


class Columns:
    """Columns of float32 numbers that grow, in few large pieces.

    Small tensors of each batch, kept between large ones that are freed, would hold a C library's heap apart: hundreds
    of megabytes for many classes and batches.

    Args:
        columns: number of columns.
        device: where they are.
    """

    ROWS = 2**16

    def __init__(self, columns: int, device: torch.device):
        self._columns, self._device, self._used = columns, device, self.ROWS
        self._pieces: list[Tensor] = []

    def add(self, *columns: Tensor) -> None:
        """Append rows: (n,) for each column."""
        start, count = 0, len(columns[0])
        while start < count:
            if self._used == self.ROWS:
                self._pieces.append(torch.empty(self._columns, self.ROWS, device=self._device))
                self._used = 0
            taken = min(count - start, self.ROWS - self._used)
            for row, column in zip(self._pieces[-1], columns, strict=True):
                row[self._used : self._used + taken] = column[start : start + taken]
            start, self._used = start + taken, self._used + taken

    def whole(self) -> Tensor:
        """Return all rows, (columns, n)."""
        ends = [self.ROWS] * (len(self._pieces) - 1) + [self._used]
        parts = [piece[:, :end] for piece, end in zip(self._pieces, ends, strict=False)]
        return torch.cat([torch.empty(self._columns, 0, device=self._device), *parts], dim=1)


class TopCalibration(MulticlassCalibrationError):
    """Calibration error in 15 bins of the largest probabilities, which are given without all others.

    Args:
        classes: number of classes.
    """

    def __init__(self, classes: int):
        # Class counts below two are fine for the top-1 error it computes, but not for its argument check.
        super().__init__(max(2, classes), n_bins=15, validate_args=False)

    def update(self, confidence: Tensor, hit: Tensor) -> None:
        """Count (n,) float32 confidences, and (n,) float32 whether each was right."""
        self.confidences.append(confidence)
        self.accuracies.append(hit)


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
        self._calibration = TopCalibration(classes).to(device)
        self._domains = None if domains is None else ClassAccuracy(domains).to(device)
        # All of them, as for the ECE: a running sum would round differently with other batches.
        self._nll = CatMetric().to(device)
        self._kept = Columns(3, device)
        self._right = {way: SumMetric().to(device) for way in ways}

    def update(self, probabilities: Tensor, label: Tensor, domain: Tensor | None) -> None:
        """Count a batch: correct predictions, and the confidence that they were made with.

        Args:
            probabilities: (n, C) float64, n at least 1.
            label: (n,) int64 true columns.
            domain: (n,) int64 domain of each image, where accuracies are by domain.
        """
        predicted = probabilities.argmax(dim=1)
        self._answers.update(probabilities, label)
        if self._domains is not None and domain is not None:
            self._domains.update(torch.where(predicted == label, domain, -1), domain)
        label_probability = probabilities.gather(1, label[:, None]).flatten()
        nll = -label_probability.clamp_min(torch.finfo(label_probability.dtype).tiny).log()
        self._kept.add(probabilities.amax(dim=1), predicted == label, nll)

    def update_ways(self, probabilities: Mapping[str, Tensor], label: Tensor) -> None:
        """Count the correct answers of a batch for each way of answering.

        Args:
            probabilities: way → (n, C).
            label: (n,) int64 true columns.
        """
        for way, found in probabilities.items():
            self._right[way].update((found.argmax(dim=1) == label).sum())

    def compute(self, task_sizes: Sequence[int]) -> Evaluation:
        """Turn the counts of all processes into A_k, per-task accuracies, ECE and NLL.

        Args:
            task_sizes: number of classes of each task learned.
        """
        right, among_first = self._answers.compute()
        confusion = right.reshape(self._answers.classes, -1).cpu().numpy()
        correct, total = confusion.diagonal().tolist(), confusion.sum(axis=1).tolist()
        tested = sum(total)
        confidence, hit, nlls = self._kept.whole()
        if len(nlls):
            self._calibration.update(confidence, hit)
            self._nll.update(nlls)  # one dimension and float32: what torchmetrics has for a process without images
        ece = 100 * float(self._calibration.compute()) if tested else None
        nll = float(torch.as_tensor(self._nll.compute()).double().mean()) if tested else None
        tasks = self._task_accuracies(correct, total, task_sizes)
        top5 = percent(int(among_first), tested) if len(confusion) > FIRST else None
        seconds = time.perf_counter() - self._start
        ways = {way: percent(int(right.compute()), tested) for way, right in self._right.items()}
        return Evaluation(percent(sum(correct), tested), tasks, ece, nll, seconds, top5, confusion, ways)

    def _task_accuracies(self, correct: list[int], total: list[int], sizes: Sequence[int]) -> list[float | None]:
        """Return the accuracy on the classes, or the domain, of each task learned."""
        if self._domains is not None:
            correct, total = _counts(self._domains)
            return [percent(correct[k], total[k]) for k in range(len(sizes))]
        ends = np.cumsum(sizes).tolist()
        parts = [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]
        return [percent(sum(correct[columns]), sum(total[columns])) for columns in parts]


def _counts(accuracy: ClassAccuracy) -> tuple[list[int], list[int]]:
    """Return the numbers correct and in total.

    Torchmetrics makes a scalar of the single count of a task with one class.
    """
    correct, total = (counts.reshape(-1).tolist() for counts in accuracy.compute())
    return correct, total
