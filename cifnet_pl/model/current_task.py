"""The task that a model is learning: its samples are added to the statistics in large batches."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from cifnet_pl.buffer import BufferSamples, CalibrationBuffer
from cifnet_pl.buffer.calibration_buffer import concatenate
from cifnet_pl.heads import Head
from cifnet_pl.model.image_hashes import ImageHashes
from cifnet_pl.utilities.files import of_all_processes

EMBEDDINGS_PER_UPDATE = 256
"""Fewest embeddings of one update: each update reads and writes a whole Gram matrix."""

EMBEDDINGS_PER_GPU_UPDATE = 4096
"""The same on a GPU, for which the program waits at each update, as samples are checked."""


def observe_buffer(head: Head, buffer: CalibrationBuffer) -> None:
    """Let the classes of a head's current task observe the buffer samples, oversampled.

    This is ``OversampleBuffer`` of the paper's Algorithm 1. It applies the factors r_c of
    eq:oversampling (:meth:`CalibrationBuffer.oversampling`): each buffer sample counts r_c times.

    Args:
        head: it has observed all samples of its current task.
        buffer: its samples are of past tasks.
    """
    if len(buffer.y):
        counts = head.class_counts()
        sizes = [counts[label] for label in head.tasks[-1]]
        n_max = max(sizes)
        weights = buffer.oversampling(n_max)
        head.observe_past(*buffer.items(), weights)


class HashBatch(NamedTuple):
    """Labels (n,) and content hashes (n,) of observed images, where they were embedded."""

    labels: Tensor
    hashes: Tensor


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
        self._waiting: list[BufferSamples] = []
        self._hashes: list[HashBatch] = []

    @property
    def introduces_classes(self) -> bool:
        """Whether the task has classes that are new to the model."""
        return bool(self.head.under_way)

    def observe(self, z: Tensor, y: Tensor, key: Tensor) -> None:
        """Take in embeddings (n, d), labels (n,) and content hashes (n,)."""
        if self.buffer is not None:
            self.buffer.add(z, y, key)
        self._hashes.append(HashBatch(y, key))
        batch = BufferSamples(z, y, key)
        self._waiting.append(batch)
        enough = EMBEDDINGS_PER_UPDATE
        if z.device.type != "cpu":
            enough = EMBEDDINGS_PER_GPU_UPDATE
        waiting = [len(batch.y) for batch in self._waiting]
        if sum(waiting) >= enough:
            self._update_statistics()

    def _update_statistics(self) -> None:
        if not self._waiting:
            return
        samples = concatenate(self._waiting)
        self._waiting.clear()
        if self.additions is not None:
            known = torch.isin(samples.y, self.additions.labels)
            additions = samples.at(known)
            self.additions.observe(additions.z, additions.y)
            samples = samples.at(~known)
        if len(samples.y):
            self.head.observe(samples.z, samples.y)

    def add_up(
        self, hashes: ImageHashes, reduce: Callable[[Tensor], object] | None = None
    ) -> None:
        """Bring all samples observed by all processes into the statistics and the hashes.

        Args:
            hashes: the content hashes of the samples are added.
            reduce: replaces a tensor by its sum over all processes; None for a single process.
        """
        self._update_statistics()
        observed = [
            HashBatch(batch.labels.cpu(), batch.hashes.cpu()) for batch in self._hashes
        ]
        self._hashes = []
        if reduce is not None:
            if self.introduces_classes:
                self.head.reduce_(reduce)
            if self.additions is not None:
                self.additions.reduce_(reduce)
            observed = list(chain.from_iterable(of_all_processes(observed)))
            if self.buffer is not None:
                _join_candidates(self.buffer)
        if observed:
            before = hashes.duplicates
            all_labels = [batch.labels for batch in observed]
            labels = torch.cat(all_labels)
            all_hashes = [batch.hashes for batch in observed]
            content = torch.cat(all_hashes)
            hashes.add(labels.numpy(), content.numpy())
            self.head.count_duplicates(hashes.duplicates - before)


def _join_candidates(buffer: CalibrationBuffer) -> None:
    """Give the buffer of each process the candidates of all processes."""
    buffer.n_candidates = sum(of_all_processes(buffer.n_candidates))
    own = [tensor.cpu() for tensor in buffer.pending()]
    parts = [BufferSamples(*part) for part in of_all_processes(own) if len(part[1])]
    if parts:
        candidates = concatenate(parts)
        device = buffer.z.device
        buffer.replace_pending(*(tensor.to(device) for tensor in candidates))
