"""Exemplars: images of past classes in memory, and how they are selected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.buffer import select_herding
from cifnet_pl.data.samples import SampleTable
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import of_all_processes
from cifnet_pl.utilities.growing_tensors import GrowingModule

Prediction = Literal["classifier", "nearest_mean"]


class ExemplarSet(GrowingModule):
    """Images of past classes, best first within each class, and the mean embedding of each class.

    Buffers:
        image: (n, 3, s, s) uint8.
        label, key: (n,) int64.
        mean: (C, d) float32, each row of length 1; zero for a class without exemplars.
    """

    def __init__(self) -> None:
        super().__init__()
        image = torch.zeros(0, 3, 0, 0, dtype=torch.uint8)
        self.image: Tensor = nn.Buffer(image)
        label = torch.zeros(0, dtype=torch.int64)
        self.label: Tensor = nn.Buffer(label)
        key = torch.zeros(0, dtype=torch.int64)
        self.key: Tensor = nn.Buffer(key)
        mean = torch.zeros(0, 0)
        self.mean: Tensor = nn.Buffer(mean)

    def __len__(self) -> int:
        return len(self.label)

    def shrink(self, quota: int, classes: int) -> None:
        """Remove all but the first ``quota`` exemplars of each class (iCaRL, algorithm 5).

        Args:
            quota: number of exemplars of a class.
            classes: number of classes.
        """
        rows = []
        for label in range(classes):
            is_own = self.label == label
            own = is_own.nonzero().flatten()
            rows.append(own[:quota])
        if rows:
            remaining = torch.cat(rows)
            self.image = self.image[remaining]
            self.label = self.label[remaining]
            self.key = self.key[remaining]

    def add(self, image: Tensor, label: int, key: Tensor) -> None:
        """Append the exemplars of a new class.

        Whether the class is new is not checked: one that has exemplars gets these as well.

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
        labels = self.label.new_full((len(image),), label)
        self.label = torch.cat([self.label, labels])
        self.key = torch.cat([self.key, key])

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the images, labels and keys of the exemplars at ``positions``."""
        positions = positions.to(self.label.device)
        images = self.image[positions]
        labels = self.label[positions]
        return images, labels, self.key[positions]

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
        z = functional.normalize(z.float(), dim=1)
        classes = int(self.label.max()) + 1
        sums = z.new_zeros(classes, z.shape[1])
        sums.index_add_(0, self.label, z)
        self.mean = functional.normalize(sums, dim=1)


class Candidates(NamedTuple):
    """Images of the current task that may become exemplars.

    Attributes:
        z: (n, d) float32 embeddings.
        label, key: (n,) int64.
        row: (n,) int64 positions in the training set.
    """

    z: Tensor
    label: Tensor
    key: Tensor
    row: Tensor

    @classmethod
    def gather(cls, local: Sequence[Candidates]) -> Candidates:
        """Return the candidates of all processes together, on the CPU."""
        batches = []
        on_cpu = [batch.cpu() for batch in local]
        for process in of_all_processes(on_cpu):
            batches += process
        columns = zip(*batches, strict=True)
        return cls(*(torch.cat(column) for column in columns))

    def cpu(self) -> Candidates:
        """Return the candidates on the CPU."""
        return Candidates(*(column.cpu() for column in self))

    def select(self, label: int, count: int) -> Candidates:
        """Return the exemplars of a class by herding, best first (iCaRL, algorithm 4).

        Args:
            label: the class.
            count: number of exemplars, at most.
        """
        own = (self.label == label).nonzero().flatten()
        order = self.key[own].argsort()
        own = own[order]
        embeddings = self.z[own]
        z = functional.normalize(embeddings, dim=1)
        own_keys = self.key[own]
        picked = select_herding(z, own_keys, 0, count)
        chosen = own[picked]
        return Candidates(*(column[chosen] for column in self))


def decode_squares(
    images: SampleTable, rows: Tensor, size: int, crop_ratio: float
) -> Tensor:
    """Decode training images again, as all images of a task need not fit into memory.

    Args:
        images: training set.
        rows: (n,) positions.
        size: side in pixels.
        crop_ratio: share of the short side that is kept.

    Returns:
        (n, 3, s, s) uint8.
    """
    squares = [images.image(row).square(size, crop_ratio) for row in rows.tolist()]
    stacked = torch.from_numpy(np.stack(squares))
    return stacked.permute(0, 3, 1, 2)


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
