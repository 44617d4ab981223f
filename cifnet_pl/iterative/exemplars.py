"""Exemplars: images of past classes in memory, and how they are selected."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from cifnet_pl.buffer import select_herding
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.growing_tensors import GrowingModule, no_rows

Prediction = Literal["classifier", "nearest_mean"]


class ExemplarSet(GrowingModule):
    """Images of past classes, and the mean embedding of each class.

    They are sorted by label, best first within each class.

    Buffers:
        image: (n, 3, s, s) uint8.
        label, key: (n,) int64.
        mean: (C, d) float32, each row of length 1; zero for a class without exemplars.
    """

    def __init__(self) -> None:
        super().__init__()
        self.image = no_rows(torch.uint8, 3, 0, 0)
        self.label = no_rows(torch.int64)
        self.key = no_rows(torch.int64)
        self.mean = no_rows(torch.float32, 0)

    def __len__(self) -> int:
        return len(self.label)

    def shrink(self, quota: int, classes: int) -> None:
        """Remove all but the first ``quota`` exemplars of each class (iCaRL, algorithm 5).

        Args:
            quota: number of exemplars of a class.
            classes: number of classes; exemplars of further ones go.
        """
        start_of_class = torch.searchsorted(self.label, self.label)
        ranks = torch.arange(len(self), device=self.label.device) - start_of_class
        is_kept = (ranks < quota) & (self.label < classes)
        self.image, self.label, self.key = self.at(is_kept)

    def add(self, image: Tensor, label: Tensor, key: Tensor) -> None:
        """Append the exemplars of new classes, whose labels are larger than all before.

        Args:
            image: (n, 3, s, s) uint8, best first within each class.
            label: (n,) int64, sorted.
            key: (n,) int64 identity of each image.
        """
        device = self.label.device
        image = image.to(device)
        if len(self):
            image = torch.cat([self.image, image])
        self.image = image
        self.label = torch.cat([self.label, label.to(device)])
        self.key = torch.cat([self.key, key.to(device)])

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return images, labels and keys of the exemplars at ``positions``, or of a mask."""
        positions = positions.to(self.label.device)
        return self.image[positions], self.label[positions], self.key[positions]

    def probabilities(self, z: Tensor) -> Tensor:
        """Return (n, C) float64 probabilities of embeddings (n, d) by the nearest mean.

        They are the softmax of ``−‖φ(x) − μ_y‖²`` of vectors of length 1.
        """
        z = functional.normalize(z, dim=1).double()
        cosines = z @ self.mean.double().T
        # Between vectors of length 1, −‖φ − μ‖² is 2φ·μ − 2.
        return (2 * cosines).softmax(dim=1)

    def set_means(self, z: Tensor) -> None:
        """Compute the means ``μ_y = Σ φ(p)`` of each class, scaled to length 1.

        Args:
            z: (n, d) embeddings of the exemplars.
        """
        unit = functional.normalize(z, dim=1)
        classes = int(self.label.max()) + 1
        sums = unit.new_zeros(classes, unit.shape[1])
        sums.index_add_(0, self.label, unit)
        self.mean = functional.normalize(sums, dim=1)


class Candidates(NamedTuple):
    """Images of the current task that may become exemplars, on the CPU.

    Attributes:
        z: (n, d) float32 embeddings.
        label, key: (n,) int64.
        row: (n,) int64 positions in the training set.
    """

    z: Tensor
    label: Tensor
    key: Tensor
    row: Tensor

    def select(self, count: int) -> Candidates:
        """Return the exemplars of each class by herding, best first (iCaRL, algorithm 4).

        Args:
            count: number of exemplars of a class, at most.
        """
        selected = []
        for label in torch.unique(self.label):
            own = (self.label == label).nonzero().flatten()
            by_key = own[self.key[own].argsort()]
            best_first = select_herding(self.z[by_key], self.key[by_key], 0, count)
            selected.append(by_key[best_first])
        rows = torch.cat(selected)
        return Candidates(*(column[rows] for column in self))


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
