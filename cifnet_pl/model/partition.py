"""Cut a training set into parts: planned once, then each part reads its own units alone.

A unit is what can be read without the others: a tar file, a block of rows of a file of embeddings
(in Parquet a row group), or the listing of any other source. Nothing is held out.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from pydantic import Field, Strict

from cifnet_pl.data.duplicates import find_duplicates
from cifnet_pl.data.samples import (
    SampleTable,
    Source,
    SourceOptions,
    labelled,
    table_of,
)
from cifnet_pl.data.sources import build_source
from cifnet_pl.data.sources.tables import ArrayFile, open_table
from cifnet_pl.data.sources.tar_shards import webdataset
from cifnet_pl.images.duplicates import Duplicates
from cifnet_pl.model.bundle import StoredRecord
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import printable

Count = Annotated[int, Strict(), Field(ge=0)]

FILE_ENDS = 2**16
"""Bytes at each end of a file of embeddings that tell it from another one of the same labels."""


class UnitRecord(StoredRecord):
    """A unit of a training set.

    Attributes:
        name: path of a tar file, number of a block; empty for a listing.
        samples: number of its training samples.
        digest: of their names and classes.
    """

    name: str
    samples: Count
    digest: str


class SetPlan(StoredRecord):
    """What all parts of a training set must know of it.

    Attributes:
        data: options that say which set it is.
        set_hash: differs between any two sets.
        class_names: of all classes, in the order of their labels.
        counts: number of samples of each class that are learned, unreadable ones included.
        units: in the order of the samples.
        left_out: positions of samples that are duplicates of others, or lie in two classes.
    """

    data: dict[str, Any]
    set_hash: str
    class_names: list[str]
    counts: list[Count]
    units: list[UnitRecord]
    left_out: list[Count]

    @property
    def total(self) -> int:
        """Number of training samples."""
        return sum(unit.samples for unit in self.units)


class Piece(NamedTuple):
    """The samples of a part that lie in one unit.

    Attributes:
        samples: of the whole unit.
        rows: (n,) those of the part.
        labels: (classes,) the plan's label of each class of the unit.
    """

    samples: SampleTable
    rows: np.ndarray
    labels: np.ndarray


@dataclass(eq=False)
class TrainingSet:
    """The training samples of a source, without its test split.

    Attributes:
        source: name of the source.
        options: of the source; they hold nothing out.
        duplicates: as in ``fit``; None where the source is not searched for them.
    """

    source: str
    options: SourceOptions
    duplicates: Duplicates | None = None

    @cached_property
    def read(self) -> Callable[[str], Source]:
        """Function that reads a unit; several parts that one process makes may lie in it."""
        return lru_cache(maxsize=1)(self._read)

    @cached_property
    def _blocks(self) -> list[ArrayFile]:
        return open_table(self.options.root).blocks()

    @cached_property
    def _columns(self) -> dict[str, str]:
        return {key: str(value) for key, value in self.options.own.items()}

    def _read(self, unit: str) -> Source:
        """Read the training samples of a unit."""
        if self.source == "embeddings":
            samples = training(self._blocks[int(unit)].samples(**self._columns))
        elif self.source == "webdataset":
            samples = training(webdataset(replace(self.options, root=Path(unit))))
        else:
            return build_source(self.source, self.options)
        names, samples = labelled(samples)
        return Source(names, samples, samples.subset(np.arange(0)))

    # ------------------------------------------------------------------ planning

    def plan(self, data: dict[str, Any]) -> tuple[SetPlan, list[str]]:
        """SetPlan the parts of the set: find its classes, units and duplicates.

        Args:
            data: options that say which set it is.

        Returns:
            The plan, and sentences for the user.

        Raises:
            DataError: as for the source; a class whose samples are all in another class, too.
        """
        if self.source == "embeddings":
            return self._plan_embeddings(data), []
        source = build_source(self.source, self.options)
        train = source.train
        notes = list(source.notes)
        left_out = np.zeros(len(train), dtype=bool)
        if self.duplicates is not None:
            found = find_duplicates(source, ())
            notes += found.sentences(self.duplicates)
            if self.duplicates == "leave_out":
                left_out = found.left_out(source)[0]
        rows_of_units = {"": np.arange(len(train))}
        if self.source == "webdataset":
            rows_of_units = train.table.groupby("shard", sort=False).indices
        units = []
        for name, rows in rows_of_units.items():
            unit = replace(source, train=train.subset(rows))
            units.append(UnitRecord(name=name, samples=len(rows), digest=digest(unit)))
        ends = train.hashes(np.array([0, len(train) - 1]))
        learned = train.labels[~left_out]
        counts = np.bincount(learned, minlength=len(source.class_names)).tolist()
        if not all(counts):
            name = printable(source.class_names[counts.index(0)])
            raise DataError(
                f"every image of '{name}' is in another class, too: remove the wrong duplicates"
            )
        plan = SetPlan(
            data=data,
            set_hash=hash_of(units, ends.tobytes()),
            class_names=source.class_names,
            counts=counts,
            units=units,
            left_out=np.flatnonzero(left_out).tolist(),
        )
        return plan, notes

    def _plan_embeddings(self, data: dict[str, Any]) -> SetPlan:
        """SetPlan the parts of a file of embeddings, of which only the labels are read."""
        columns = dict(self._columns)
        for unneeded in ("embeddings", "ids"):
            columns.pop(unneeded, None)
        units = []
        counts: Counter[Any] = Counter()
        for number, block in enumerate(self._blocks):
            size = block.rows.stop - block.rows.start
            no_numbers = np.zeros((size, 0))
            table = block.table(size, **columns)
            samples = training(SampleTable(table, embeddings=no_numbers))
            counts.update(samples.table["label"].value_counts().to_dict())
            names, samples = labelled(samples)
            unit = Source(names, samples, samples)
            units.append(
                UnitRecord(name=str(number), samples=len(samples), digest=digest(unit))
            )
        path = self._blocks[0].path
        distinct = table_of(label=list(counts), count=list(counts.values()))
        names, classes = labelled(SampleTable(distinct, where=str(path)))
        of_class = classes.table.groupby("label")["count"].sum()
        with path.open("rb") as file:
            ends = file.read(FILE_ENDS)
            file.seek(-min(FILE_ENDS, path.stat().st_size), 2)
            ends += file.read()
        return SetPlan(
            data=data,
            set_hash=hash_of(units, ends),
            class_names=names,
            counts=of_class.tolist(),
            units=units,
            left_out=[],
        )

    # ------------------------------------------------------------------ reading

    def pieces(self, plan: SetPlan, start: int, stop: int) -> Iterator[Piece]:
        """Read the samples at positions ``start`` to ``stop`` (exclusive), unit by unit.

        Args:
            plan: of this set.
            start, stop: positions among all training samples.

        Raises:
            DataError: a unit has changed since it was planned.
        """
        left_out = np.array(plan.left_out, dtype=np.int64)
        label_of = {name: label for label, name in enumerate(plan.class_names)}
        first = 0
        for record in plan.units:
            end = first + record.samples
            rows = np.arange(max(start, first), min(stop, end))
            if len(rows):
                unit = self.read(record.name)
                if digest(unit) != record.digest:
                    raise DataError(
                        f"{unit.train.where} has changed since it was planned: choose another"
                        " --output"
                    )
                labels = np.array([label_of[name] for name in unit.class_names])
                rows = rows[~np.isin(rows, left_out)]
                yield Piece(unit.train, rows - first, labels)
            first = end


def training(samples: SampleTable) -> SampleTable:
    """Return the samples of the training split; all of them where there are no splits."""
    if "split" not in samples.table:
        return samples
    split = samples.table["split"].to_numpy()
    return samples.subset(np.flatnonzero(split == "train"))


def digest(unit: Source) -> str:
    """Hash the names and classes of a unit's samples; of embeddings, whose names are positions, the
    classes.
    """
    train = unit.train
    names = np.array(unit.class_names, dtype=object)
    content = [names[train.labels].tolist()]
    if train.are_images:
        content.append(train.names)
    return hashlib.blake2b(repr(content).encode(), digest_size=16).hexdigest()


def hash_of(units: list[UnitRecord], ends: bytes) -> str:
    """Hash a set.

    Args:
        units: of the set.
        ends: contents of its first and last sample, or of its file's ends: names are often only
            positions.
    """
    content = repr([unit.digest for unit in units]).encode()
    return hashlib.blake2b(content + ends, digest_size=16).hexdigest()
