"""Content hashes of the images that a model has learned, by class: each image is counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from cifnet_pl.utilities.growing_tensors import GrowingModule, no_rows, renamed


class ImageHashes(GrowingModule):
    """Content hashes of the images of each class; an image learned twice has its hash twice.

    Buffers:
        labels: (C,) int64 label of each class that has hashes, ascending.
        counts: (C,) int64 number of its images.
        content: (n,) int64 hashes, class after class, ascending within a class.
    """

    def __init__(self) -> None:
        super().__init__()
        self.labels = no_rows(torch.int64)
        self.counts = no_rows(torch.int64)
        self.content = no_rows(torch.int64)

    @property
    def image_labels(self) -> Tensor:
        """(n,) int64 label of each hash of ``content``."""
        return self.labels.repeat_interleave(self.counts)

    def of_label(self, label: int) -> Tensor:
        """Return the hashes of one class, ascending; none if it has no hashes."""
        return self.content[self.image_labels == label]

    def are_whole(self, y: Tensor) -> Tensor:
        """Return which samples are of classes of which they are all images.

        Args:
            y: (m,) int64 labels of different images.

        Returns:
            (m,) bool.
        """
        labels, column, counts = torch.unique(
            y, return_inverse=True, return_counts=True
        )
        of_classes = torch.split(self.content, self.counts.tolist())
        sizes = [len(torch.unique_consecutive(content)) for content in of_classes]
        distinct = pd.Series(sizes, self.labels.tolist(), dtype="int64")
        expected = distinct.reindex(labels.tolist(), fill_value=0)
        is_whole: Tensor = counts >= counts.new_tensor(expected.to_numpy())
        return is_whole[column]

    def occurrences(self) -> Counter[tuple[int, int]]:
        """Count how often each image was learned, by label and hash."""
        return Counter(
            zip(self.image_labels.tolist(), self.content.tolist(), strict=True)
        )

    @property
    def duplicates(self) -> int:
        """Number of images that are duplicates of another one, of any class."""
        ascending = np.sort(self.content.cpu().numpy())
        return int((ascending[1:] == ascending[:-1]).sum())

    def add(self, labels: Tensor, hashes: Tensor) -> None:
        """Add images: (n,) labels and (n,) hashes."""
        all_labels = torch.cat([self.image_labels, labels.to(self.labels)])
        all_hashes = torch.cat([self.content, hashes.to(self.content)])
        self._replace(all_labels, all_hashes)

    def subtract(self, other: ImageHashes) -> None:
        """Remove the images of ``other``, each as often as it occurs there."""
        left = self.occurrences() - other.occurrences()
        images = self.content.new_tensor(list(left.elements())).reshape(-1, 2)
        self._replace(images[:, 0], images[:, 1])

    def remove(self, labels: Sequence[int]) -> None:
        """Drop the hashes of classes."""
        kept = ~torch.isin(self.image_labels, self.labels.new_tensor(labels))
        self._replace(self.image_labels[kept], self.content[kept])

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename classes, old label → new label."""
        self.labels = renamed(self.labels, labels)
        self._replace(self.image_labels, self.content)

    def _replace(self, labels: Tensor, hashes: Tensor) -> None:
        # NumPy sorts integers several times as fast as torch does.
        by_label = labels.cpu().numpy().argsort(kind="stable")
        self.labels, self.counts = torch.unique_consecutive(
            labels[by_label], return_counts=True
        )
        content = hashes[by_label].cpu()
        for of_class in torch.split(content, self.counts.tolist()):
            of_class.numpy().sort()
        self.content = content.to(self.content)
