"""A task's life: begin, observe, add up, observe the buffer, solve, select its samples, calibrate.

A run, ``extend``, the sums of shards and the service all learn in this way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from cifnet_pl.backbones import Backbone
from cifnet_pl.buffer import (
    BufferSamples,
    CalibrationBuffer,
    buffer_samples,
    concatenate,
)
from cifnet_pl.data.loading import EMBEDDED_BATCH
from cifnet_pl.heads import Head
from cifnet_pl.heads.probabilities import CalibrationSamples
from cifnet_pl.model.calibration import Calibration, OpenSetPredictor
from cifnet_pl.model.image_hashes import ImageHashes
from cifnet_pl.utilities.errors import UsageError, no_images, prefixed
from cifnet_pl.utilities.names import class_name
from cifnet_pl.utilities.processes import of_all_processes
from cifnet_pl.utilities.text import printable

JOINED_BATCHES = 64
"""Batches whose labels and hashes are joined."""

NOT_BEGUN = "no task has begun: call begin_task() first"

Reduce = Callable[[Tensor], object]
"""Replaces a tensor by its sum over all processes."""


def observe_buffer(head: Head, buffer: CalibrationBuffer) -> None:
    """Let the classes of a head's current task observe the buffer samples, oversampled.

    This is ``OversampleBuffer`` of the paper's Algorithm 1. It applies the factors r_c of
    eq:oversampling (:meth:`CalibrationBuffer.oversampling`): each buffer sample counts r_c times.
    """
    if len(buffer.y):
        counts = head.class_counts()
        newest = head.tasks[-1]
        largest = max(counts[label] for label in newest)
        weights = buffer.oversampling(largest)
        head.observe_past(buffer.z, buffer.y, weights)


@dataclass
class ModelLearner:
    """What of a model learns: its head, its buffer, and the samples that calibrate it.

    A task is ``begin_task``, ``observe`` for every batch, then ``finish_task``; between tasks the
    head is solved. Samples are added to the statistics in large batches.

    Attributes:
        backbone: the frozen backbone.
        head: the closed-form classifier.
        buffer: the calibration buffer, or None where the head has no use for one.
        class_names: name of each column of the head's scores.
    """

    backbone: Backbone
    head: Head
    buffer: CalibrationBuffer | None = None
    class_names: list[str] = field(default_factory=list)
    calibrated: bool = field(default=False, kw_only=True)
    images: ImageHashes = field(default_factory=ImageHashes, kw_only=True)
    calibration: Calibration = field(default_factory=Calibration, kw_only=True)

    # Of the task that was begun: its additions to known classes are learned by a head of their own.
    _additions: Head | None = field(default=None, init=False)
    _waiting: list[BufferSamples] | None = field(default=None, init=False)
    _observed: list[tuple[Tensor, Tensor]] = field(default_factory=list, init=False)
    # The hashes before the task, which come back where it is aborted.
    _hashes: dict[str, Tensor] = field(default_factory=dict, init=False)
    # By the shares that were asked for, since the model was calibrated last.
    _predictors: dict[Any, OpenSetPredictor] = field(default_factory=dict, init=False)

    @property
    def label_of(self) -> dict[str, int]:
        """Class name → label in the head."""
        return dict(zip(self.class_names, self.head.classes, strict=True))

    @property
    def device(self) -> torch.device:
        """Device of the statistics; the backbone may be on one without float64."""
        return self.head.labels.device

    def begin_task(
        self,
        names: Sequence[str],
        counts: Sequence[int] | None = None,
    ) -> None:
        """Begin a task of new classes, and of more samples of known ones.

        Args:
            names: of its classes.
            counts: number of samples of each, if known.

        Raises:
            UnsupportedError: a known class, where the head cannot take in more samples of it.
            UsageError: no name, or a buffer that is too small for so many classes.
        """
        names = [class_name(name) for name in names]
        label_of = self.label_of
        known = [name for name in names if name in label_of]
        new = [name for name in names if name not in label_of]
        if known:
            with prefixed(
                f"cannot add images to class '{printable(known[0])}', which is learned already"
            ):
                self.head.require("merges")
        if self.buffer is not None:
            self.buffer.quota(max(1, len(label_of) + len(new)))
            self.buffer.discard_pending()
        new_counts = None
        if counts is not None:
            count_of = dict(zip(names, counts, strict=True))
            new_counts = [count_of[name] for name in new]
        self._additions = None
        if known:
            self._additions = self.head.fresh()
            labels = [label_of[name] for name in known]
            self._additions.begin_task(labels)
        if new or not known:
            start = max(label_of.values(), default=-1) + 1
            labels = list(range(start, start + len(new)))
            self.head.begin_task(labels, new_counts)
            self.class_names += new
        self._hashes = self.images.state_dict()
        self._waiting = []
        self._observed = []

    def observe(
        self,
        z: Tensor,
        y: Tensor,
        key: Tensor,
        group: Tensor | None = None,
    ) -> None:
        """Add samples of the task begun last to the statistics, and offer them to the buffer.

        Args:
            z: (n, d) float embeddings.
            y: (n,) int64 labels, as ``labels`` gives them.
            key: (n,) int64 content hash of each image.
            group: (n,) int64 (:class:`~cifnet_pl.buffer.BufferSamples`); None where no group is
                known.

        Raises:
            UsageError: no task has begun.
        """
        if self._waiting is None:
            raise UsageError(NOT_BEGUN)
        device = self.device
        samples = buffer_samples(z.to(device), y.to(device), key.to(device), group)
        if self.buffer is not None:
            self.buffer.add(*samples)
        self._observed.append((samples.y, samples.key))
        if len(self._observed) >= JOINED_BATCHES:
            # Small tensors that stay would keep the memory of large ones from being used again.
            labels, hashes = zip(*self._observed, strict=True)
            self._observed = [(torch.cat(labels), torch.cat(hashes))]
        self._waiting.append(samples)
        # Each update reads and writes a whole Gram matrix, and a GPU is waited for.
        if sum(len(batch.y) for batch in self._waiting) >= EMBEDDED_BATCH:
            self._update_statistics()

    def observe_sums(self, other: ModelLearner) -> None:
        """Add what another learner observed, in place of its samples; :meth:`add_up` afterwards.

        Its classes are matched by name, and new ones are appended. Its buffer's samples become
        candidates. Duplicates that its head counts already would count twice.

        Args:
            other: it must not be used afterwards.

        Raises:
            UsageError: a head or buffer with other settings.
        """
        ours = self.buffer and self.buffer.settings()
        theirs = other.buffer and other.buffer.settings()
        if ours != theirs:
            raise UsageError(f"their buffers differ: {ours}, and {theirs}")
        label_of = self.label_of
        new = [name for name in other.class_names if name not in label_of]
        first = max(label_of.values(), default=-1) + 1
        label_of |= {name: label for label, name in enumerate(new, first)}
        labels = {label: label_of[name] for name, label in other.label_of.items()}
        other.head.relabel(labels)
        other.images.relabel(labels)
        other.calibration.relabel(labels)
        self.head.merge_(other.head)
        self.class_names += new
        self._observed.append((other.images.image_labels, other.images.content))
        if self.buffer is not None and other.buffer is not None:
            other.buffer.relabel(labels)
            self.buffer.add(*other.buffer.samples)

    def _update_statistics(self) -> None:
        if not self._waiting:
            return
        samples = concatenate(self._waiting)
        self._waiting = []
        if self._additions is not None:
            known = torch.isin(samples.y, self._additions.labels)
            additions = samples.at(known)
            self._additions.observe(additions.z, additions.y)
            samples = samples.at(~known)
        if len(samples.y):
            self.head.observe(samples.z, samples.y)

    def add_up(self, reduce: Reduce | None = None) -> None:
        """Bring all that was observed by all processes into the statistics and the hashes."""
        self._update_statistics()
        # Only now is a GPU waited for.
        observed = [(labels.cpu(), hashes.cpu()) for labels, hashes in self._observed]
        self._observed = []
        if reduce is not None:
            if self.head.under_way:
                self.head.reduce_(reduce)
            if self._additions is not None:
                self._additions.reduce_(reduce)
            observed = list(chain.from_iterable(of_all_processes(observed)))
            if self.buffer is not None:
                self.buffer.join_candidates()
        if observed:
            before = self.images.duplicates
            labels, hashes = zip(*observed, strict=True)
            self.images.add(torch.cat(labels), torch.cat(hashes))
            self.head.count_duplicates(self.images.duplicates - before)

    def finish_task(self, reduce: Reduce | None = None) -> None:
        """Finish the task: buffer shown to new classes, head solved, buffer updated, calibrated.

        This is the end of the paper's Algorithm 1. The current task's classes observe the buffer of
        past tasks before the head is solved; only then the task's own samples enter the buffer.

        Args:
            reduce: None for a single process.

        Raises:
            UsageError: no task has begun.
            DataError: a class of which no sample was observed.
        """
        if self._waiting is None:
            raise UsageError(NOT_BEGUN)
        self.add_up(reduce)
        counts = self.head.class_counts().values()
        for name, count in zip(self.class_names, counts, strict=True):
            if not count:
                raise no_images(name)
        self._waiting = None
        introduces_classes = bool(self.head.under_way)
        if self.buffer is not None and self.head.uses_buffer and introduces_classes:
            observe_buffer(self.head, self.buffer)
        if self._additions is not None:
            if introduces_classes:
                self.head.solve()
            self.head.merge_(self._additions)
            self._additions = None
        self.solve()

    def learn_embeddings(
        self,
        names: Sequence[str],
        samples: BufferSamples,
        reduce: Reduce | None = None,
    ) -> None:
        """Learn embeddings that are in memory as one task.

        Args:
            names: of its classes.
            samples: embeddings, with the position of each one's class in ``names`` for its label,
                and hashes.
            reduce: as for :meth:`finish_task`; the samples are those of this process.
        """
        counts = None
        if reduce is None:
            counts = samples.y.bincount(minlength=len(names)).tolist()
        self.begin_task(names, counts)
        label_of = self.label_of
        labels = torch.tensor([label_of[class_name(name)] for name in names])
        for start in range(0, len(samples.y), EMBEDDED_BATCH):
            part = samples.at(slice(start, start + EMBEDDED_BATCH))
            self.observe(part.z, labels[part.y], part.key, part.group)
        self.finish_task(reduce)

    def abort_task(self) -> None:
        """Discard the task that was begun, and all that was observed since.

        What the head has committed stays, with its hashes.
        """
        uncommitted = self._additions is not None or bool(self.head.under_way)
        if uncommitted and self._hashes:
            self.images.load_state_dict(self._hashes)
        self.head.abort_task()
        del self.class_names[len(self.head.classes) :]
        if self.buffer is not None:
            self.buffer.discard_pending()
        self._waiting = None
        self._additions = None
        self._observed = []

    def solve(self) -> None:
        """Solve the head, let the buffer select among its candidates, and calibrate again."""
        self.head.solve()
        if self.buffer is not None:
            self._select_samples(self.buffer)
        self.calibrate()

    def _select_samples(self, buffer: CalibrationBuffer) -> None:
        """Let the buffer select among its candidates: in whole groups, where there are any."""
        if not (self.calibrates and self.head.leaves_one_out):
            buffer.commit()
            return
        at_hand = buffer.at_hand()
        samples = self.calibration.find_groups(
            self.head,
            at_hand,
            self.images.are_whole(at_hand.y),
            torch.isin(at_hand.y, buffer.pending().y),
            buffer.capacity,
        )
        come_in_groups = (
            self.calibration.leaves_groups_out and not self.head.uses_buffer
        )
        if come_in_groups and (samples.group >= 0).any():
            buffer.commit_groups(samples)
        else:
            buffer.commit()
            order = torch.argsort(samples.key)
            found = torch.searchsorted(samples.key, buffer.key, sorter=order)
            groups = samples.group[order[found]]
            are_whole = self.images.are_whole(buffer.y)
            buffer.group = groups.masked_fill(~are_whole, -1)

    @property
    def calibrates(self) -> bool:
        """Whether the head is calibrated after every change."""
        head = self.head
        return self.calibrated or head.selects_rule or float(head.temperature) != 1

    def calibrate(self) -> None:
        """Calibrate by the buffer samples, and again by labelled images that are not learned.

        Samples of one group are left out together.
        """
        self._predictors.clear()
        buffer = self.buffer
        if (
            buffer is not None
            and len(buffer.y)
            and self.head.leaves_one_out
            and self.calibrates
        ):
            samples = self._left_out_alone(buffer)
            self.calibration.calibrate_by_buffer(samples, buffer.group[samples.groups])
        else:
            self.calibration.record("unknown", None, None)
        if len(self.calibration.y):
            learned = self.images.content
            self.calibration.calibrate_by_new_images(self.head, learned)

    def calibration_samples(self) -> CalibrationSamples | None:
        """Return what calibrates the head: labelled images not learned, else the buffer's samples.

        Returns:
            None if there are none.
        """
        new = self.calibration.new_samples(self.head)
        return new or self.stored_samples()

    def stored_samples(self) -> CalibrationSamples | None:
        """Return the samples of the buffer; None if there are none."""
        calibration = self.calibration
        buffer = self.buffer
        if buffer is None or not len(buffer.y):
            return None
        samples = self._left_out_alone(buffer)
        is_grouped = calibration.estimate_kind != "incomplete"
        if is_grouped and calibration.leaves_groups_out:
            samples = samples.grouped(buffer.group[samples.groups])
        return samples

    def _left_out_alone(self, buffer: CalibrationBuffer) -> CalibrationSamples:
        """Return the samples of the buffer to be left out one by one, each with its copies.

        An image that was learned twice is in the sums twice, and would answer for itself. Copies do
        not count. The group of each is its position in the buffer.
        """
        counted = self.calibration.counted(buffer.y, buffer.key)
        rows = torch.arange(len(counted), device=counted.device)
        if (
            self.images.duplicates
        ):  # to count all images takes half a second for a million
            times = self.images.occurrences()
            images = zip(buffer.y.tolist(), buffer.key.tolist(), strict=True)
            further = [max(0, times[image] - 1) for image in images]
            copies = rows.repeat_interleave(rows.new_tensor(further))
            rows = torch.cat([rows, copies])
            counted = pad(counted, (0, len(copies)))
        return CalibrationSamples(
            self.head, buffer.z[rows], buffer.y[rows], rows, counted=counted
        )
