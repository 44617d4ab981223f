"""Partial sums: the statistics of parts of a training set, one file each, merged to one model.

A file is safetensors: the statistics of a head that is not solved yet, the candidates of the
calibration buffer, the content hashes of the samples in them, and a description that is checked as
a bundle's is. Parts of one set record the positions that they cover; parts of different sets are
compared by the hashes.

To merge parts is to finish one task: each adds its statistics and candidates to what is observed,
and the task ends as in ``fit``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from pydantic import Field, Strict
from torch import Tensor

from cifnet_pl.backbones import Backbone
from cifnet_pl.buffer import CalibrationBuffer, concatenate, first_drawn, ungrouped
from cifnet_pl.buffer.calibration_buffer import STREAMING
from cifnet_pl.data.loading import EMBEDDED_BATCH, Batches, ImageLoader
from cifnet_pl.model.assembly import assemble
from cifnet_pl.model.bundle import StoredModel, StoredRecord, parse
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.merge import check_same_embeddings
from cifnet_pl.model.partition import SetPlan, TrainingSet
from cifnet_pl.utilities.errors import CheckpointError, UsageError, explained, prefixed
from cifnet_pl.utilities.files import write_bytes
from cifnet_pl.utilities.growing_tensors import fingerprint
from cifnet_pl.utilities.text import listed, number_of

FILE_ENDING = ".sums"

METADATA_KEY = "cifnet_sums"
"""Entry of a file's metadata that holds the header."""

Position = Annotated[int, Strict(), Field(ge=0)]


class ShardRecord(StoredRecord):
    """Positions ``start`` to ``stop`` (exclusive) of a set of ``total`` samples.

    Attributes:
        set_hash: of the set (:class:`~cifnet_pl.model.partition.SetPlan`).
        learned: number of its samples that are in the sums: duplicates and unreadable images are
            not. None in files of an earlier version, which may have held samples out.
    """

    set_hash: str
    start: Position
    stop: Position
    total: Position
    learned: Position | None = None

    def __str__(self) -> str:
        return f"samples {self.start} to {self.stop - 1} of {self.total}"

    def between(self, start: int, stop: int) -> ShardRecord:
        """Return other positions of the same set."""
        return self.model_copy(update={"start": start, "stop": stop})


class SumsRecord(StoredRecord):
    """The header of a file of partial sums."""

    shards: list[ShardRecord]
    sha256: str
    model: Any
    calibrated: bool = False


@dataclass
class PartialSums:
    """The statistics of one or more parts of training sets.

    Attributes:
        model: its head is not solved; its buffer holds candidates; ``images`` are the content
            hashes of the samples.
        shards: positions in the sums, by set, ascending, without overlap.
        name: what errors call it.
    """

    model: Classifier
    shards: list[ShardRecord]
    name: str = "sums"

    @property
    def learned(self) -> str:
        """How many of the samples at these positions are in the sums, in words."""
        learned = sum(self.model.counts.values())
        samples = sum(shard.stop - shard.start for shard in self.shards)
        return f"learned {learned:,} of {number_of(samples, 'sample')}"

    def check(self) -> None:
        """Check that the sums hold what their records say.

        Raises:
            CheckpointError: they do not, or are of an earlier version.
        """
        recorded = [shard.learned for shard in self.shards]
        if None in recorded:
            raise CheckpointError(
                f"{self.name} is of an earlier version, which may have held samples out: make it"
                " again"
            )
        learned = sum(self.model.counts.values())
        if learned != sum(filter(None, recorded)):
            raise CheckpointError(
                f"{self.name} has {number_of(learned, 'sample')}, not as many as it says: make it"
                " again"
            )

    @property
    def missing(self) -> list[ShardRecord]:
        """Positions of the same sets that are not in the sums."""
        missing: list[ShardRecord] = []
        starts = {shard.set_hash: shard.between(0, 0) for shard in self.shards}
        ends = {
            shard.set_hash: shard.between(shard.total, shard.total)
            for shard in self.shards
        }
        in_order = sorted(
            [*starts.values(), *self.shards, *ends.values()], key=place_of
        )
        for before, after in pairwise(in_order):
            if before.set_hash == after.set_hash and before.stop < after.start:
                missing.append(before.between(before.stop, after.start))
        return missing

    def solved(self) -> Classifier:
        """Return the model of all samples; the sums must not be used afterwards.

        Raises:
            UsageError: a part of a set is missing.
            DataError: a class without samples.
        """
        if self.missing:
            missing = listed([str(shard) for shard in self.missing])
            raise UsageError(
                f"not all sums are there: {missing} are missing; make those shards first"
            )
        candidates = self.model.buffer
        if candidates is not None:
            settings: dict[str, Any] = candidates.settings()
            buffer = CalibrationBuffer(**settings)
            buffer.add(*candidates.samples)
            buffer.add(*candidates.pending())
            self.model.buffer = buffer
        self.model.finish_task()
        self.model.history.clear()
        images = sum(self.model.counts.values())
        self.model.record_event("task", images)
        return self.model


def place_of(shard: ShardRecord) -> tuple[str, int, int]:
    """Return a key that sorts positions by set, ascending."""
    return shard.set_hash, shard.start, shard.stop


# ---------------------------------------------------------------------- the buffer's candidates


class PartBuffer(CalibrationBuffer):
    """The samples that the buffer's draw among all samples could take, in place of the buffer.

    These are the first of each class in the order of the draw: single images by the seed and their
    content hashes, as many as the buffer can keep of a class once all classes are known. So the
    first ones of all parts are among the first ones of each.
    """

    classes_in_all = 1

    def add(
        self, z: Tensor, y: Tensor, key: Tensor, group: Tensor | None = None
    ) -> None:
        """Offer samples; see :meth:`CalibrationBuffer.add`. No group is whole in a part."""
        self._pending.append(ungrouped(z.detach(), y, key))
        offered = sum(len(batch.y) for batch in self._pending)
        if offered >= EMBEDDED_BATCH:
            self.end()

    def end(self) -> None:
        """Keep the first samples of each class among those that were offered."""
        samples = concatenate([self.samples, *self._pending])
        self.discard_pending()
        quota = self.quota(self.classes_in_all)
        self._store(first_drawn(samples, self.seed, quota))


# ---------------------------------------------------------------------- adding up


def added_up(
    parts: Iterable[PartialSums], class_names: Sequence[str], name: str = "sums"
) -> PartialSums:
    """Add up parts, in the order in which they come, as the observations of one task.

    Args:
        parts: at least one; they are used up, one after the other.
        class_names: of all classes, in the order of their labels in the model.
        name: what errors call the sums.

    Returns:
        Sums whose task is still to be finished.

    Raises:
        UsageError: a sample that is in two parts, or other backbones, image sizes, precisions,
            heads or settings.
        CheckpointError: a part that does not hold what its records say.
    """
    total: PartialSums | None = None
    hashes_of_set: dict[str, list[np.ndarray]] = {}
    for part in parts:
        part.check()
        if total is None:
            total = PartialSums(_without_samples(part.model), [], name)
            _begin(total.model, class_names)
        with prefixed(f"cannot add {part.name} to {name}"):
            check_same_embeddings(total.model, part.model)
            total.model.observe_sums(part.model)
        total.model.record_engines(part.model.engines)
        total.shards += part.shards
        hashes = hashes_of_set.setdefault(part.shards[0].set_hash, [])
        hashes.append(part.model.images.hashes)
    assert total is not None
    total.shards.sort(key=place_of)
    _check_overlap(total.shards)
    if len(hashes_of_set) > 1:
        _check_sets([np.concatenate(hashes) for hashes in hashes_of_set.values()])
    return total


def _begin(
    model: Classifier, class_names: Sequence[str], counts: Sequence[int] | None = None
) -> None:
    """Begin the task of all classes."""
    model.begin_task(class_names, counts)
    if isinstance(model.buffer, PartBuffer):
        model.buffer.classes_in_all = len(class_names)


def _without_samples(model: Classifier) -> Classifier:
    """Return a model of the same settings that has observed nothing, and keeps candidates."""
    buffer = None
    if model.buffer is not None:
        settings: dict[str, Any] = model.buffer.settings()
        buffer = PartBuffer(**settings)
    return Classifier(
        model.backbone,
        model.head.fresh(),
        buffer,
        calibrated=model.calibrated,
        image_size=model.image_size,
        crop_ratio=model.crop_ratio,
        precision=model.precision,
    )


def _check_overlap(shards: Sequence[ShardRecord]) -> None:
    """Raise UsageError where a position is in two of the shards, which are in order."""
    for before, after in pairwise(shards):
        if before.set_hash == after.set_hash and after.start < before.stop:
            both = before.between(after.start, min(before.stop, after.stop))
            raise UsageError(f"both have {both}, which would count twice")


def _check_sets(hashes_of_sets: Sequence[np.ndarray]) -> None:
    """Raise UsageError where two sets have samples in common, by their content hashes."""
    distinct = [np.unique(hashes) for hashes in hashes_of_sets]
    together = np.concatenate(distinct)
    common = len(together) - len(np.unique(together))
    if common:
        raise UsageError(
            f"they have {common} samples in common, which would count twice"
        )


def part_of(model: Classifier, shards: list[ShardRecord], name: str) -> PartialSums:
    """End the observation of a part: what its task has observed can be stored, and added up.

    Args:
        model: with a task under way and :class:`PartBuffer`; it is changed in place.
        shards: positions that were observed.
        name: what errors call the sums.
    """
    model.add_up()
    # Which samples are duplicates is known when all are together.
    model.head.count_duplicates(-model.images.duplicates)
    # A fresh head holds nothing of the task that is under way.
    head = model.head.fresh()
    head.merge_(model.head)
    model.head = head
    if isinstance(model.buffer, PartBuffer):
        model.buffer.end()
    return PartialSums(model, shards, name)


# ---------------------------------------------------------------------- files


def is_sums(path: Path) -> bool:
    """Return whether a path names a file of partial sums."""
    return path.suffix == FILE_ENDING


def write_sums(sums: PartialSums, path: Path) -> None:
    """Write a file of partial sums, atomically.

    Args:
        sums: what to write.
        path: the file, which is replaced.

    Raises:
        CifnetError: the disk is full or not writable.
    """
    tensors = sums.model.tensors()
    header = {
        "shards": [shard.model_dump() for shard in sums.shards],
        "sha256": fingerprint("", tensors),
        "model": {**sums.model.describe(), "history": []},
        "calibrated": sums.model.calibrated,
    }
    metadata = {METADATA_KEY: json.dumps(header)}
    write_bytes(path, safetensors.torch.save(tensors, metadata))


def read_sums(
    path: Path, trust: bool = False, backbone: Backbone | None = None
) -> PartialSums:
    """Read a file of partial sums; nothing from it is executed unless ``trust``.

    Args:
        path: the file.
        trust: as for :func:`cifnet_pl.load`.
        backbone: one that is in memory already, as for :func:`~cifnet_pl.model.assembly.assemble`.

    Raises:
        CheckpointError: there is no such file, or it is damaged, or of another version.
    """
    header, tensors = read_tensors(path)
    stored = StoredModel(str(path), header.model, tensors)
    model = assemble(stored, trust=trust, solved=False, backbone=backbone)
    model.calibrated = header.calibrated
    return PartialSums(model, header.shards, path.name)


def read_tensors(path: Path) -> tuple[SumsRecord, dict[str, torch.Tensor]]:
    """Read the header and the tensors of a file of partial sums, and check that it is whole.

    Raises:
        CheckpointError: as :func:`read_sums`.
    """
    header = read_header(path)
    with explained(CheckpointError, f"cannot read {path}"):
        tensors = safetensors.torch.load_file(path)
    if fingerprint("", tensors) != header.sha256:
        raise CheckpointError(
            f"{path} is damaged: its checksum is wrong; make it again"
        )
    return header, tensors


def read_header(path: Path) -> SumsRecord:
    """Read the positions and the description of a file of partial sums.

    Raises:
        CheckpointError: as :func:`read_sums`.
    """
    if not path.is_file():
        raise CheckpointError(f"no file of sums at {path}: make it with cifnet sums")
    unreadable = f"{path} is damaged, or not a file of sums"
    with (
        explained(CheckpointError, unreadable),
        safetensors.safe_open(path, framework="pt") as stored,
    ):
        content = json.loads(stored.metadata()[METADATA_KEY])
    header = parse(SumsRecord, content, str(path))
    whole = [shard.start < shard.stop <= shard.total for shard in header.shards]
    if not whole or not all(whole):
        raise CheckpointError(f"{path} is damaged: its shards are not parts of a set")
    return header


@dataclass(frozen=True)
class Shard:
    """Number ``index`` (from 1) of ``count`` parts of nearly the same size."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse a shard.

        Args:
            text: such as "3/64".

        Raises:
            UsageError: anything else.

        Example:
            >>> Shard.parse("3/64").bounds(640)
            (20, 30)
        """
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text.strip())
        if match:
            index, count = int(match[1]), int(match[2])
            if 1 <= index <= count:
                return cls(index, count)
        raise UsageError(f"--shard is '{text}', expected one of n parts, such as 3/64")

    def bounds(self, total: int) -> tuple[int, int]:
        """Return the first and one past the last position of the shard among ``total`` samples."""
        start = (self.index - 1) * total // self.count
        stop = self.index * total // self.count
        return start, stop

    @property
    def name(self) -> str:
        """Name of its file, without the ending."""
        width = len(str(self.count))
        return f"shard-{self.index:0{width}}-of-{self.count}"


def record_of(plan: SetPlan, shard: Shard) -> ShardRecord:
    """Return the positions of a part, of which nothing is learned yet.

    Raises:
        UsageError: there are more parts than samples.
    """
    total = plan.total
    if shard.count > total:
        raise UsageError(
            f"{total} training samples cannot be cut into {shard.count} shards: use fewer"
        )
    start, stop = shard.bounds(total)
    return ShardRecord(set_hash=plan.set_hash, start=start, stop=stop, total=total)


@dataclass
class ShardLearner:
    """Computes the partial sums of any part of a training set.

    Attributes:
        training_set: the samples; those of a part are read when it is made.
        plan: of the set.
        empty: a model without classes, whose head's statistics can be merged; its backbone is
            none:<width> for embeddings.
        batch_size: images embedded in one batch.
        workers: number of processes that decode.
        skip_unreadable: whether to leave out images that cannot be decoded.
    """

    training_set: TrainingSet
    plan: SetPlan
    empty: Classifier
    batch_size: int = 64
    workers: int = 0
    skip_unreadable: bool = False

    def sums(self, shard: Shard) -> PartialSums:
        """Embed the samples of a shard and add them up.

        Raises:
            DataError: an image that cannot be read.
            NonFiniteError: an embedding that holds NaN or infinity.
        """
        record = record_of(self.plan, shard)
        model = _without_samples(self.empty)
        model.record_engines([model.engine])
        # The counts of all parts, so that these agree.
        _begin(model, self.plan.class_names, self.plan.counts)
        for piece in self.training_set.pieces(self.plan, record.start, record.stop):
            samples = piece.samples
            batch_size = EMBEDDED_BATCH
            if samples.are_images:
                batch_size = self.batch_size
            loader = ImageLoader(
                samples,
                model.image_size,
                model.crop_ratio,
                self.workers,
                model.device.type,
            )
            labels = torch.from_numpy(piece.labels)
            model.observe_all(
                Batches(loader, piece.rows, labels, batch_size, self.skip_unreadable)
            )
        sums = part_of(model, [record], shard.name)
        record.learned = sum(model.counts.values())
        return sums


def check_mergeable(model: Classifier) -> None:
    """Check that the sums of parts of a set can be merged to the model of all.

    Args:
        model: without classes.

    Raises:
        UnsupportedError: the statistics of its head are not sums.
        UsageError: its buffer selects by all embeddings of a class.
    """
    model.head.require("merges")
    if model.buffer is not None and model.buffer.strategy not in STREAMING:
        raise UsageError(
            f"buffer strategy {model.buffer.strategy} selects among all embeddings of a class,"
            " which no part has: use random"
        )
