"""Content hashes of the images that a model has learned, by class: each image is counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import torch

from cifnet_pl.utilities.growing_tensors import GrowingModule, no_rows


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
    def image_labels(self) -> np.ndarray:
        """(n,) int64 label of each hash of ``content``."""
        counts = self.counts.cpu().numpy()
        return np.repeat(self.labels.cpu().numpy(), counts)

    @property
    def hashes(self) -> np.ndarray:
        """(n,) int64, the same as ``content``."""
        return self.content.cpu().numpy()

    def of_label(self, label: int) -> np.ndarray:
        """Return the hashes of one class, ascending; none if it has no hashes."""
        is_of_class = self.image_labels == label
        hashes: np.ndarray = self.hashes[is_of_class]
        return hashes

    def distinct_counts(self) -> dict[int, int]:
        """Return the number of distinct images of each class, by label."""
        by_label = pd.Series(self.hashes).groupby(self.image_labels)
        counts: dict[int, int] = by_label.nunique().to_dict()
        return counts

    def images(self) -> Counter[tuple[int, int]]:
        """Count how often each image was learned, by label and hash."""
        return Counter(
            zip(self.image_labels.tolist(), self.hashes.tolist(), strict=True)
        )

    @property
    def duplicates(self) -> int:
        """Number of images that are duplicates of another one, of any class."""
        distinct = torch.unique(self.content)
        return len(self.content) - len(distinct)

    def add(self, labels: np.ndarray, hashes: np.ndarray) -> None:
        """Add images: (n,) labels and (n,) hashes."""
        all_labels = np.concatenate([self.image_labels, labels])
        self._replace(all_labels, np.concatenate([self.hashes, hashes]))

    def subtract(self, other: ImageHashes) -> None:
        """Remove the images of ``other``, each as often as it occurs there."""
        left = self.images() - other.images()
        images = np.array(list(left.elements()), dtype=np.int64).reshape(-1, 2)
        self._replace(images[:, 0], images[:, 1])

    def remove(self, labels: Sequence[int]) -> None:
        """Drop the hashes of classes."""
        kept = ~np.isin(self.image_labels, labels)
        self._replace(self.image_labels[kept], self.hashes[kept])

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename classes, old label → new label."""
        renamed = [labels[label] for label in self.labels.tolist()]
        self.labels = self.labels.new_tensor(renamed)
        self._replace(self.image_labels, self.hashes)

    def _replace(self, labels: np.ndarray, hashes: np.ndarray) -> None:
        order = np.lexsort((hashes, labels))
        classes, counts = np.unique(labels, return_counts=True)
        device = self.content.device
        self.labels = torch.from_numpy(classes).to(device)
        self.counts = torch.from_numpy(counts).to(device)
        self.content = torch.from_numpy(hashes[order]).to(device)
