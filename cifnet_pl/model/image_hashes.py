"""Content hashes of the images that a model has learned, by class: each image is counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from cifnet_pl.utilities.growing_tensors import GrowingModule


class ImageHashes(GrowingModule):
    """Content hashes of the images of each class; an image learned twice has its hash twice.

    Buffers:
        labels: (C,) int64 label of each class that has hashes, ascending.
        counts: (C,) int64 number of its images.
        content: (n,) int64 hashes, class after class, ascending within a class.
    """

    def __init__(self) -> None:
        super().__init__()
        self.labels: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.counts: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.content: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))

    def by_label(self) -> dict[int, np.ndarray]:
        """Return the hashes of each class: label → (n_c,) int64, ascending."""
        counts = self.counts.cpu().numpy()
        ends = np.cumsum(counts)
        content = self.content.cpu().numpy()
        by_class = np.split(content, ends[:-1])
        pairs = zip(self.labels.tolist(), by_class, strict=False)
        return dict(pairs)

    def of_label(self, label: int) -> np.ndarray:
        """Return the hashes of one class, ascending; none if it has no hashes."""
        none = np.zeros(0, dtype=np.int64)
        return self.by_label().get(label, none)

    @property
    def duplicates(self) -> int:
        """Number of images that are duplicates of another one, of any class."""
        distinct = torch.unique(self.content)
        return len(self.content) - len(distinct)

    def add(self, labels: np.ndarray, hashes: np.ndarray) -> None:
        """Add images: (n,) labels and (n,) hashes."""
        by_label = self.by_label()
        for label in np.unique(labels).tolist():
            known = by_label.get(label, hashes[:0])
            added = hashes[labels == label]
            by_label[label] = np.concatenate([known, added])
        self._replace(by_label)

    def subtract(self, other: ImageHashes) -> None:
        """Remove the images of ``other``, each as often as it occurs there."""
        by_label = self.by_label()
        for label, hashes in other.by_label().items():
            if label in by_label:
                known = Counter(by_label[label].tolist())
                subtracted = Counter(hashes.tolist())
                left = known - subtracted
                remaining = left.elements()
                by_label[label] = np.fromiter(remaining, dtype=np.int64)
        self._replace(by_label)

    def remove(self, labels: Sequence[int]) -> None:
        """Drop the hashes of classes."""
        by_label = self.by_label()
        for label in labels:
            by_label.pop(label, None)
        self._replace(by_label)

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename classes, old label → new label."""
        by_label = self.by_label()
        renamed = {labels[label]: hashes for label, hashes in by_label.items()}
        self._replace(renamed)

    def _replace(self, by_label: Mapping[int, np.ndarray]) -> None:
        labels = []
        counts = []
        content = [np.zeros(0, dtype=np.int64)]
        for label in sorted(by_label):
            hashes = by_label[label]
            if len(hashes):
                labels.append(label)
                counts.append(len(hashes))
                content.append(np.sort(hashes))
        device = self.content.device
        self.labels = torch.tensor(labels, dtype=torch.int64, device=device)
        self.counts = torch.tensor(counts, dtype=torch.int64, device=device)
        joined = np.concatenate(content)
        self.content = torch.from_numpy(joined).to(device)
