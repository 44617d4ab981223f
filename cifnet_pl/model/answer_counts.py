"""Count a model's answers for the test images of each class: confusions, and top-5 hits."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric

FIRST = 5
"""Most probable classes that are kept of an image."""


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


def with_answer_first(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Replace the probability of the answer by infinity, so that ties are sorted as ``argmax`` decides them.

    Args:
        probabilities: (n, C).

    Returns:
        The changed probabilities (n, C), and the answers (n,).
    """
    best = probabilities.argmax(dim=1)
    return probabilities.scatter(1, best[:, None], float("inf")), best


def first_classes(probabilities: Tensor) -> tuple[Tensor, Tensor]:
    """Return the up to five most probable classes of each image, the first one being that of ``argmax``.

    Args:
        probabilities: (n, C) float.

    Returns:
        (n, min(5, C)) int64 columns and their (n, min(5, C)) probabilities, in falling order.
    """
    raised, _ = with_answer_first(probabilities)
    columns = raised.argsort(dim=1, descending=True, stable=True)[:, :FIRST]
    return columns, probabilities.gather(1, columns)
