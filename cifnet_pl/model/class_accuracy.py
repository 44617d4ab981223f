"""Count correct answers by class; in a module of its own, as torchmetrics takes seconds to import."""

from __future__ import annotations

import torch
from torch import Tensor
from torchmetrics import Metric


class ClassAccuracy(Metric):
    """Correct and total predictions per class, summed over processes: every accuracy is derived from these.

    Args:
        classes: number of classes C; predictions and targets are columns 0 … C−1.
    """

    full_state_update = False
    correct: Tensor
    total: Tensor

    def __init__(self, classes: int):
        super().__init__()
        self.classes = classes
        for name in ("correct", "total"):
            self.add_state(name, torch.zeros(classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, predicted: Tensor, target: Tensor) -> None:
        """Count a batch.

        Args:
            predicted: (n,) int64 columns.
            target: (n,) int64 true columns.
        """
        self.correct += torch.bincount(target[predicted == target], minlength=self.classes)
        self.total += torch.bincount(target, minlength=self.classes)

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return (C,) correct and (C,) total."""
        return self.correct, self.total
