"""Evaluate over all classes seen: count batch by batch, then compute A_k, accuracies by task, ECE and NLL."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric

from cifnet_pl.model.metrics import FIRST, percent, with_answer_first

BINS = 15
"""Of the expected calibration error."""


@dataclass
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
    top5: float | None
    confusion: np.ndarray = field(compare=False)
    accuracy_by: dict[str, float | None]

    def metrics(self) -> dict[str, float]:
        """Return what was measured: ``A_k``, ``ece``, ``nll``, ``top5``, and ``A_k1``, ``A_k2``, … of each task.

        If there are several ways of answering, also ``A_k_classifier`` and so on.
        """
        named: dict[str, float | None] = {"A_k": self.accuracy, "ece": self.ece, "nll": self.nll, "top5": self.top5}
        named |= {f"A_k{j}": accuracy for j, accuracy in enumerate(self.task_accuracy, 1)}
        named |= {f"A_k_{way}": accuracy for way, accuracy in self.accuracy_by.items()}
        return {name: value for name, value in named.items() if value is not None}


class EvaluationCounts(Metric):
    """Counts of one evaluation, summed over processes.

    Everything follows from sums: torchmetrics' own ``MulticlassCalibrationError`` keeps every confidence, and for a
    million images these small tensors hold a C library's heap apart, hundreds of megabytes.

    Args:
        task_sizes: number of classes of each task learned; columns 0 … C−1 are its classes in this order.
        domains: number of domains, where accuracies are by domain; None for accuracies by task.
        ways: names of the ways of answering, where there are several.
    """

    full_state_update = False
    confusion: Tensor  # (C, C) true classes in rows
    among_first: Tensor  # images whose class is among the five most probable
    bins: Tensor  # (bins + 1, 3) images, sum of confidences, and right answers, by confidence
    likelihood: Tensor  # sum of log p at the true class
    by_domain: Tensor  # (domains, 2) right answers, and images
    by_way: Tensor  # (ways,) right answers

    def __init__(self, task_sizes: Sequence[int], domains: int | None = None, ways: Sequence[str] = ()):
        super().__init__()
        self._start = time.perf_counter()
        self.task_sizes, self.domains, self.ways = task_sizes, domains, ways
        classes = sum(task_sizes)
        self._count("confusion", classes, classes)
        self._count("among_first")
        self._count("bins", BINS + 1, 3, dtype=torch.float64)
        self._count("likelihood", dtype=torch.float64)
        self._count("by_domain", domains or 1, 2)
        self._count("by_way", max(len(ways), 1))

    def _count(self, name: str, *shape: int, dtype: torch.dtype = torch.int64) -> None:
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def update(
        self,
        probabilities: Tensor,
        label: Tensor,
        domain: Tensor | None = None,
        by_way: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Count a batch; of equal probabilities the lower column comes first.

        Args:
            probabilities: (n, C) float64, n at least 1.
            label: (n,) int64 true columns.
            domain: (n,) int64 domain of each image, where accuracies are by domain.
            by_way: way of answering → (n, C) its probabilities.
        """
        raised, answer = with_answer_first(probabilities)
        right = answer == label
        self.confusion.view(-1).index_add_(0, label * len(self.confusion) + answer, torch.ones_like(answer))
        at_label = raised.gather(1, label[:, None])
        before = torch.arange(raised.shape[1], device=label.device) < label[:, None]
        rank = ((raised > at_label) | ((raised == at_label) & before)).sum(dim=1)
        self.among_first += (rank < FIRST).sum()
        self._count_confidences(probabilities, label, right)
        if domain is not None:
            self.by_domain.index_add_(0, domain, torch.stack([right, torch.ones_like(right)], dim=1).long())
        for column, way in enumerate(self.ways):
            self.by_way[column] += ((by_way or {})[way].argmax(dim=1) == label).sum()

    def _count_confidences(self, probabilities: Tensor, label: Tensor, right: Tensor) -> None:
        confidence = probabilities.amax(dim=1)
        rows = torch.stack([torch.ones_like(confidence), confidence, right.to(confidence)], dim=1)
        edges = torch.linspace(0, 1, BINS + 1, device=confidence.device)  # as in torchmetrics, 1 has a bin of its own
        self.bins.index_add_(0, torch.bucketize(confidence.float(), edges, right=True) - 1, rows)
        at_label = probabilities.gather(1, label[:, None]).clamp_min(torch.finfo(probabilities.dtype).tiny)
        # As float32 first: such numbers add up in float64 to the same sum in whatever order and batches.
        self.likelihood += at_label.log().float().double().sum()

    def compute(self) -> Evaluation:
        """Turn the counts of all processes into A_k, per-task accuracies, ECE and NLL."""
        confusion = self.confusion.cpu().numpy()
        tested = int(confusion.sum())
        ece = nll = None
        if tested:
            _, confidence, right = self.bins.unbind(dim=1)
            ece = float(100 * (confidence - right).abs().sum() / tested)
            nll = float(-self.likelihood / tested)
        return Evaluation(
            accuracy=percent(int(confusion.trace()), tested),
            task_accuracy=[percent(right, images) for right, images in self._by_task(confusion)],
            ece=ece,
            nll=nll,
            seconds=time.perf_counter() - self._start,
            top5=percent(int(self.among_first), tested) if len(confusion) > FIRST else None,
            confusion=confusion,
            accuracy_by={way: percent(int(self.by_way[i]), tested) for i, way in enumerate(self.ways)},
        )

    def _by_task(self, confusion: np.ndarray) -> list[list[int]]:
        """Return the right answers and the images of each task, or of its domain."""
        if self.domains is not None:
            counts: list[list[int]] = self.by_domain[: len(self.task_sizes)].tolist()
            return counts
        by_class = np.stack([confusion.diagonal(), confusion.sum(axis=1)], axis=1)
        return [part.sum(axis=0).tolist() for part in np.split(by_class, np.cumsum(self.task_sizes)[:-1])]
