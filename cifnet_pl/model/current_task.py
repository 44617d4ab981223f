"""The task that a model is learning: its samples are added to the statistics in large batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head
from cifnet_pl.model.image_hashes import ImageHashes
from cifnet_pl.utilities.files import of_all_processes

EMBEDDINGS_PER_UPDATE = 256
"""Fewest embeddings of one update: each update reads and writes a whole Gram matrix."""


def observe_buffer(head: Head, buffer: CalibrationBuffer) -> None:
    """Let the classes of a head's current task observe the buffer samples, oversampled.

    This is ``OversampleBuffer`` of the paper's Algorithm 1.

    Args:
        head: it has observed all samples of its current task.
        buffer: its samples are of past tasks.
    """
    if len(buffer.y):
        counts = head.class_counts()
        n_max = max(counts[label] for label in head.tasks[-1])
        head.observe_past(*buffer.items(), buffer.oversampling(n_max))


class CurrentTask:
    """Samples of the task that a model is learning.

    Args:
        head: has begun the task, if the task introduces classes.
        additions: an empty head that has begun the known classes of the task; None without any.
        buffer: where all samples become candidates; None without a buffer.
    """

    def __init__(
        self, head: Head, additions: Head | None, buffer: CalibrationBuffer | None
    ):
        self.head = head
        self.additions = additions
        self.buffer = buffer
        self._embeddings: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._hashes: list[tuple[np.ndarray, np.ndarray]] = []

    @property
    def introduces_classes(self) -> bool:
        """Whether the task has classes that are new to the model."""
        return bool(self.head.under_way)

    def observe(self, z: Tensor, y: Tensor, key: Tensor) -> None:
        """Take in embeddings (n, d), labels (n,) and content hashes (n,)."""
        if self.buffer is not None:
            self.buffer.add(z, y, key)
        self._hashes.append((y.cpu().numpy(), key.cpu().numpy()))
        self._embeddings.append(z)
        self._labels.append(y)
        if sum(len(labels) for labels in self._labels) >= EMBEDDINGS_PER_UPDATE:
            self._update_statistics()

    def _update_statistics(self) -> None:
        if not self._labels:
            return
        z = torch.cat(self._embeddings)
        y = torch.cat(self._labels)
        self._embeddings.clear()
        self._labels.clear()
        if self.additions is not None:
            known = torch.isin(y, self.additions.labels)
            self.additions.observe(z[known], y[known])
            z = z[~known]
            y = y[~known]
        if len(y):
            self.head.observe(z, y)

    def add_up(
        self, hashes: ImageHashes, reduce: Callable[[Tensor], object] | None = None
    ) -> None:
        """Bring all samples observed by all processes into the statistics and the hashes.

        Args:
            hashes: the content hashes of the samples are added.
            reduce: replaces a tensor by its sum over all processes; None for a single process.
        """
        self._update_statistics()
        observed = self._hashes
        self._hashes = []
        if reduce is not None:
            if self.introduces_classes:
                self.head.reduce_(reduce)
            if self.additions is not None:
                self.additions.reduce_(reduce)
            observed = [pair for pairs in of_all_processes(observed) for pair in pairs]
            if self.buffer is not None:
                _join_candidates(self.buffer)
        if observed:
            before = hashes.duplicates
            labels = np.concatenate([labels for labels, _ in observed])
            content = np.concatenate([content for _, content in observed])
            hashes.add(labels, content)
            self.head.count_duplicates(hashes.duplicates - before)


def _join_candidates(buffer: CalibrationBuffer) -> None:
    """Give the buffer of each process the candidates of all processes."""
    buffer.offered = sum(of_all_processes(buffer.offered))
    device = buffer.z.device
    z, y, key = buffer.pending()
    candidates = of_all_processes((z.cpu(), y.cpu(), key.cpu()))
    candidates = [candidate for candidate in candidates if len(candidate[1])]
    if candidates:
        buffer.replace_pending(
            torch.cat([z for z, _, _ in candidates]).to(device),
            torch.cat([y for _, y, _ in candidates]).to(device),
            torch.cat([key for _, _, key in candidates]).to(device),
        )
