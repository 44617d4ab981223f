"""The calibration buffer: a selection of the embeddings of past classes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from cifnet_pl.buffer.selection import (
    STRATEGIES,
    STREAMING,
    Strategy,
    unique_by_key,
)
from cifnet_pl.utilities.errors import UsageError, check_choice, check_that
from cifnet_pl.utilities.files import of_all_processes
from cifnet_pl.utilities.growing_tensors import GrowingModule

MAX_CANDIDATES_RATIO = 4
"""Most candidates that are in memory, as a multiple of the capacity.

With the random strategy the rest are dropped; the others need all until the task ends."""


class BufferSamples(NamedTuple):
    """Samples in the buffer, or candidates of the current task.

    Attributes:
        z: (n, d) float embeddings.
        y: (n,) int64 labels.
        key: (n,) int64 identity of each sample, such as the hash of its content.
    """

    z: Tensor
    y: Tensor
    key: Tensor

    def at(self, rows: Tensor | slice) -> BufferSamples:
        """Return the samples at some rows, a mask or positions."""
        z = self.z[rows]
        y = self.y[rows]
        return BufferSamples(z, y, self.key[rows])


def concatenate(parts: Sequence[BufferSamples]) -> BufferSamples:
    """Join samples; embeddings get the dtype of the last part."""
    last = parts[-1].z
    embeddings = [part.z.to(last) for part in parts]
    z = torch.cat(embeddings)
    labels = [part.y for part in parts]
    y = torch.cat(labels)
    keys = [part.key for part in parts]
    key = torch.cat(keys)
    return BufferSamples(z, y, key)


class CalibrationBuffer(GrowingModule):
    """Embeddings of past classes, at most ``capacity`` in all or ``per_class`` of each.

    With a total capacity each class keeps ``⌊capacity / classes⌋`` samples, with the number of
    classes seen so far, so the quota shrinks with every task.

    ``add`` collects candidates of the current task. ``commit`` selects among them and shrinks the
    older classes.

    Buffers:
        z: (n, d) embeddings, in the dtype they came in.
        y: (n,) int64 labels.
        key: (n,) int64 identity of each sample.

    The samples are grouped by class in the order of commit, best first within a class.

    Attributes:
        n_candidates: number of candidates of the current task; of this process until the processes
            join theirs at the end of the task, then of all.

    Args:
        capacity: total number of embeddings. With ``per_class`` it bounds only the number of
            candidates in memory (``MAX_CANDIDATES_RATIO``).
        per_class: number of embeddings of each class, or None.
        strategy: one of ``STRATEGIES``.
        seed: of the selection; on the command line, ``--seed_everything``.
        oversample: whether ``oversampling`` gives eq:oversampling or all ones (ablation of the
            paper).
    """

    def __init__(
        self,
        capacity: int = 2000,
        per_class: int | None = None,
        strategy: Strategy = "random",
        seed: int = 0,
        oversample: bool = True,
    ):
        super().__init__()
        check_choice("buffer strategy", strategy, Strategy)
        check_that(capacity >= 1, "buffer capacity", capacity, "at least 1")
        if per_class is not None:
            check_that(per_class >= 1, "buffer capacity", per_class, "at least 1")
        check_that(seed >= 0, "buffer seed", seed, "at least 0")
        self.capacity = capacity
        self.per_class = per_class
        self.strategy = strategy
        self.seed = seed
        self.oversample = oversample
        z = torch.zeros(0, 0)
        self.z: Tensor = nn.Buffer(z)
        y = torch.zeros(0, dtype=torch.int64)
        self.y: Tensor = nn.Buffer(y)
        key = torch.zeros(0, dtype=torch.int64)
        self.key: Tensor = nn.Buffer(key)
        self._pending: list[BufferSamples] = []
        self._prune_at = MAX_CANDIDATES_RATIO * capacity
        self.n_candidates = 0

    def _before_load(self, state: Mapping[str, Any]) -> None:
        z = state.get("z")
        # Embeddings keep the dtype that they came in.
        if isinstance(z, Tensor) and z.is_floating_point():
            self.z = self.z.to(z.dtype)

    @property
    def classes(self) -> list[int]:
        """Labels of the classes in the buffer, in the order they were committed."""
        return list(dict.fromkeys(self.y.tolist()))

    def settings(self) -> dict[str, int | str | bool | None]:
        """Return the constructor arguments."""
        return {
            name: getattr(self, name)
            for name in inspect.signature(type(self)).parameters
        }

    def quota(self, classes: int) -> int:
        """Return how many embeddings are kept of each class.

        Args:
            classes: number of classes that share the buffer, at least 1.

        Raises:
            UsageError: without ``per_class``, the capacity is smaller than the number of classes.
        """
        if self.per_class is not None:
            return self.per_class
        if self.capacity < classes:
            raise UsageError(
                f"a buffer of {self.capacity} cannot hold {classes} classes: use a capacity of"
                f" {classes}"
            )
        return self.capacity // classes

    @torch.no_grad()
    def add(self, z: Tensor, y: Tensor, key: Tensor) -> None:
        """Offer samples of the current task.

        Args:
            z: (n, d) float embeddings.
            y: (n,) int64 labels.
            key: (n,) int64 identity of each sample, such as the hash of its content; repeats are
                dropped when samples are selected. ``n_candidates`` counts them.
        """
        if not len(z) == len(y) == len(key):
            raise UsageError(
                f"buffer got {len(z)} embeddings, {len(y)} labels and {len(key)} keys"
            )
        if not len(z):
            return
        self.n_candidates += len(z)
        batch = BufferSamples(z.detach().clone(), y.clone(), key.clone())
        self._pending.append(batch)
        sizes = [len(batch.y) for batch in self._pending]
        in_memory = sum(sizes)
        is_streaming = self.strategy in STREAMING
        if is_streaming and in_memory > self._prune_at:
            self._prune_pending()

    @torch.no_grad()
    def commit(self) -> None:
        """Select among the candidates, and shrink every class to its quota.

        An older class without new candidates keeps its first samples.
        """
        pending = self.pending()
        labels = [*self.classes, *torch.unique(pending.y).tolist()]
        classes = list(dict.fromkeys(labels))
        n_classes = max(1, len(classes))
        quota = self.quota(n_classes)
        self.discard_pending()
        if classes:
            parts = [self._select(label, pending, quota) for label in classes]
            self._replace(concatenate(parts))

    def items(self) -> tuple[Tensor, Tensor]:
        """Return the embeddings (n, d) and labels (n,) of the buffer, of all committed tasks."""
        return self.z, self.y

    def oversampling(self, n_max: int) -> Tensor:
        """Compute each sample's weight: ``r_c = ⌊n_max / n'_c⌋``, at least 1 (eq:oversampling).

        :func:`cifnet_pl.model.task_learner.observe_buffer` applies it when a task ends.

        Args:
            n_max: number of samples of the largest class of the current task.

        Returns:
            (n,) float64; all ones without ``oversample``.

        Example:
            >>> buffer = CalibrationBuffer(capacity=4)
            >>> buffer.add(torch.randn(6, 2), torch.tensor([0, 0, 0, 1, 1, 1]), torch.arange(6))
            >>> buffer.commit()  # two of each class
            >>> buffer.oversampling(5).tolist()
            [2.0, 2.0, 2.0, 2.0]
        """
        if not self.oversample:
            return torch.ones(len(self.y), dtype=torch.float64, device=self.y.device)
        _, inverse, counts = torch.unique(
            self.y, return_inverse=True, return_counts=True
        )
        whole = torch.div(n_max, counts, rounding_mode="floor")
        repeats = whole.clamp_min(1)
        return repeats.double()[inverse]

    @torch.no_grad()
    def remove_classes(self, labels: list[int]) -> None:
        """Drop all embeddings of some classes.

        Args:
            labels: of the classes; those that are not in the buffer are ignored.
        """
        removed = torch.isin(self.y, self.y.new_tensor(labels))
        is_kept = ~removed
        kept = self._stored().at(is_kept)
        self._replace(kept)

    def relabel(self, labels: Mapping[int, int]) -> None:
        """Rename the classes.

        Args:
            labels: old label → new one, of every class in the buffer.
        """
        renamed = [labels[label] for label in self.y.tolist()]
        self.y = self.y.new_tensor(renamed)

    def state_elements(self) -> int:
        """Return how many values the embeddings have."""
        return self.z.numel()

    def pending(self) -> BufferSamples:
        """Return the pending candidates of the current task."""
        if not self._pending:
            return self._stored().at(slice(0))
        return concatenate(self._pending)

    def join_candidates(self) -> None:
        """Join the pending candidates of all processes; each process must call this."""
        self.n_candidates = sum(of_all_processes(self.n_candidates))
        own = [tensor.cpu() for tensor in self.pending()]
        parts = [BufferSamples(*part) for part in of_all_processes(own) if len(part[1])]
        if parts:
            device = self.z.device
            joined = concatenate(parts)
            self._pending = [BufferSamples(*(tensor.to(device) for tensor in joined))]

    def discard_pending(self) -> None:
        """Discard the pending candidates."""
        self._pending = []
        self.n_candidates = 0

    def _stored(self) -> BufferSamples:
        return BufferSamples(self.z, self.y, self.key)

    def _replace(self, samples: BufferSamples) -> None:
        self.z, self.y, self.key = samples

    def _with_stored(self, pending: BufferSamples) -> BufferSamples:
        """Return the samples of the buffer, then the candidates, whose dtype is kept."""
        if not len(self.y):  # an empty buffer has no width yet
            return pending
        return concatenate([self._stored(), pending])

    def _prune_pending(self) -> None:
        """Select among the candidates: no class can keep more than its current quota."""
        pending = self.pending()
        present = torch.unique(pending.y).tolist()
        every_class = {*present, *self.classes}
        quota = self.quota(len(every_class))
        parts = [self._best(pending.at(pending.y == c), quota) for c in present]
        selected = concatenate(parts)
        self._pending = [selected]
        places = MAX_CANDIDATES_RATIO * self.capacity
        self._prune_at = max(places, 2 * len(selected.y))

    def _select(self, label: int, pending: BufferSamples, quota: int) -> BufferSamples:
        """Select among the samples of one class."""
        of_class = pending.at(pending.y == label)
        if len(of_class.y):
            everything = self._with_stored(pending)
            of_class = everything.at(everything.y == label)
            return self._best(of_class, quota)
        is_member = self.y == label
        rows = is_member.nonzero().flatten()  # in order of preference already
        return self._stored().at(rows[:quota])

    def _best(self, samples: BufferSamples, quota: int) -> BufferSamples:
        """Select the best samples of one class.

        They are sorted by key first, each key once, so that the order of arrival has no effect.
        """
        unique = unique_by_key(samples.key)
        distinct = samples.at(unique.rows)
        select = STRATEGIES[self.strategy]
        rows = select(distinct.z, distinct.key, self.seed, quota)
        return distinct.at(rows)
