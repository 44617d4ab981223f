"""Exemplars: images of past classes that are kept, and which ones."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.growing_tensors import GrowingModule

Prediction = Literal["classifier", "nearest_mean"]


class ExemplarSet(GrowingModule):
    """Images of past classes, best first within each class, and the mean embedding of each class.

    Buffers:
        image: (n, 3, s, s) uint8.
        label, key: (n,) int64.
        mean: (C, d) float32, each row of length 1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.image: Tensor = nn.Buffer(torch.zeros(0, 3, 0, 0, dtype=torch.uint8))
        self.label: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.key: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.mean: Tensor = nn.Buffer(torch.zeros(0, 0))

    def __len__(self) -> int:
        return len(self.label)

    def shrink(self, quota: int, classes: int) -> None:
        """Keep the first ``quota`` exemplars of each of the first ``classes`` (iCaRL, algorithm
        5).
        """
        rows = [
            (self.label == label).nonzero().flatten()[:quota]
            for label in range(classes)
        ]
        if rows:
            kept = torch.cat(rows)
            self.image = self.image[kept]
            self.label = self.label[kept]
            self.key = self.key[kept]

    def add(self, image: Tensor, label: int, key: Tensor) -> None:
        """Append the exemplars of a new class.

        Args:
            image: (n, 3, s, s) uint8, best first.
            label: of the class.
            key: (n,) int64 identity of each image.
        """
        image = image.to(self.label.device)
        key = key.to(self.label.device)
        if len(self):
            self.image = torch.cat([self.image, image])
        else:
            self.image = image
        self.label = torch.cat([self.label, self.label.new_full((len(image),), label)])
        self.key = torch.cat([self.key, key])

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the images, labels and keys of the exemplars at ``positions``."""
        positions = positions.to(self.label.device)
        return self.image[positions], self.label[positions], self.key[positions]

    def answers(self, z: Tensor) -> Tensor:
        """Return (n, C) float64 probabilities of embeddings (n, d): the softmax of ``−‖φ(x) −
        μ_y‖²`` at length 1.
        """
        z = functional.normalize(z, dim=1)
        # Between vectors of length 1, −‖φ − μ‖² is 2φ·μ − 2.
        return (2 * z.double() @ self.mean.double().T).softmax(dim=1)

    def average(self, z: Tensor) -> None:
        """Set the means from the exemplars' embeddings (n, d): ``μ_y = Σ φ(p)`` over y's, scaled to
        length 1.
        """
        z = functional.normalize(z.float(), dim=1)
        sums = z.new_zeros(int(self.label.max()) + 1, z.shape[1]).index_add_(
            0, self.label, z
        )
        self.mean = functional.normalize(sums, dim=1)


def quota(capacity: int, per_class: int | None, classes: int) -> int:
    """Return the number of exemplars of each class.

    Args:
        capacity: number of exemplars in all.
        per_class: number of each class instead, or None.
        classes: number of classes.

    Raises:
        UsageError: the capacity is smaller than the number of classes.
    """
    if per_class is not None:
        return per_class
    if capacity < classes:
        raise UsageError(
            f"{capacity} exemplars cannot cover {classes} classes: set --model.exemplars {classes}"
        )
    return capacity // classes
