"""Keep content hashes of the photos that each class was learned from, eight bytes per photo."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.growing_tensors import GrowingModule


class PhotoHashes(GrowingModule):
    """Hashes of the photos of each class; a photo that was learned twice has its hash twice.

    Buffers:
        labels: (C,) int64 label of each class that has hashes, ascending.
        counts: (C,) int64 number of its photos.
        content: (n,) int64 hashes, class after class, ascending within a class.
    """

    labels: Tensor
    counts: Tensor
    content: Tensor

    def __init__(self) -> None:
        super().__init__()
        for name in ("labels", "counts", "content"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64))

    def by_label(self) -> dict[int, np.ndarray]:
        """Return the hashes of each class: label → (n_c,) int64, ascending."""
        parts = np.split(self.content.cpu().numpy(), np.cumsum(self.counts.cpu().numpy())[:-1])
        return dict(zip(self.labels.tolist(), parts, strict=False))

    def of(self, label: int) -> np.ndarray:
        """Return the hashes of one class, ascending; none if it has no hashes."""
        return self.by_label().get(label, np.zeros(0, dtype=np.int64))

    @property
    def copies(self) -> int:
        """Number of photos that are copies of another one, of any class."""
        return len(self.content) - len(torch.unique(self.content))

    def add(self, labels: np.ndarray, hashes: np.ndarray) -> None:
        """Add photos: (n,) labels and (n,) hashes."""
        groups = self.by_label()
        for label in np.unique(labels).tolist():
            groups[label] = np.concatenate([groups.get(label, hashes[:0]), hashes[labels == label]])
        self._set(groups)

    def subtract(self, other: PhotoHashes) -> None:
        """Remove the photos of ``other``, each as often as it occurs there."""
        groups = self.by_label()
        for label, hashes in other.by_label().items():
            if label in groups:
                groups[label] = multiset_difference(groups[label], hashes)
        self._set(groups)

    def remove(self, labels: Sequence[int]) -> None:
        """Drop the hashes of classes."""
        self._set({label: hashes for label, hashes in self.by_label().items() if label not in set(labels)})

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename classes, old label → new one."""
        self._set({labels[label]: hashes for label, hashes in self.by_label().items()})

    def complete(self, counts: Mapping[int, int]) -> bool:
        """Return whether the hash of every photo is known.

        Args:
            counts: label → number of photos learned.
        """
        groups = self.by_label()
        return all(len(groups.get(label, ())) == count for label, count in counts.items())

    def check(self, classes: Sequence[int], where: str) -> None:
        """Check loaded hashes.

        Args:
            classes: labels that the head knows.
            where: what an error calls the file.

        Raises:
            CheckpointError: the hashes do not fit these classes.
        """
        sizes = self.counts.tolist()
        whole = self.labels.ndim == self.counts.ndim == self.content.ndim == 1 and len(self.labels) == len(sizes)
        known = set(self.labels.tolist()) <= set(classes) and len(set(self.labels.tolist())) == len(sizes)
        if not (whole and known and all(size > 0 for size in sizes) and sum(sizes) == len(self.content)):
            raise CheckpointError(f"{where} is damaged: its content hashes do not go together with its classes")

    def _set(self, groups: Mapping[int, np.ndarray]) -> None:
        kept = {label: np.sort(groups[label]) for label in sorted(groups) if len(groups[label])}
        device = self.content.device
        self.labels = torch.tensor(list(kept), dtype=torch.int64, device=device)
        self.counts = torch.tensor([len(hashes) for hashes in kept.values()], dtype=torch.int64, device=device)
        joined = np.concatenate([np.zeros(0, dtype=np.int64), *kept.values()])
        self.content = torch.from_numpy(joined).to(device)


def multiset_difference(ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
    """Remove each of ``theirs`` (m,) once from ``ours`` (n,), if it occurs there.

    Returns:
        What is left, ascending.

    Example:
        >>> multiset_difference(np.array([1, 1, 2, 3]), np.array([1, 3, 4])).tolist()
        [1, 2]
    """
    values, counts = np.unique(ours, return_counts=True)
    other, less = np.unique(theirs, return_counts=True)
    taken = dict(zip(other.tolist(), less.tolist(), strict=True))
    left = [max(0, count - taken.get(value, 0)) for value, count in zip(values.tolist(), counts.tolist(), strict=True)]
    return np.repeat(values, left)
