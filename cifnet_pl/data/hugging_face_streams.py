"""Read data sets of Hugging Face as streams: from their own files, without a copy in the cache of ``datasets``.

A stream has no positions, but its shards can be opened one by one, and those of Parquet are its row groups. Once the
labels are read the rows of each piece are known, so that a row is read as from any other source, in the same order and
divided over processes and workers in the same way.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cifnet_pl.data.photo_files import identity
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import one_line

AT_ONCE = 100
"""Rows that are in memory at once; of Parquet a row group is."""


@dataclass
class _Cursor:
    """The position of one process in one piece: the rows in memory, the first one's number, and those that follow."""

    piece: int
    rest: Iterator[list[Any]]
    first: int = 0
    cells: list[Any] | tuple[()] = ()


class Stream:
    """Read single rows of one column of streams; ascending rows are read in one pass over each piece.

    Args:
        parts: a stream for each part of the data, with this column only.
        column: its name.
        mark: a function that returns what changes with the data.
        where: the data, for messages.
    """

    def __init__(self, parts: list[Any], column: str, mark: Callable[[], str], where: str):
        # Without `iter` below, `datasets` would give a worker of torch a share of the rows of its own choice.
        self.files = [part.shard(part.num_shards, number) for part in parts for number in range(part.num_shards)]
        self.column, self.where, self._mark = column, where, mark
        self.pieces: list[tuple[int, int]] = []  # file, and piece of it
        self.starts = np.zeros(0, dtype=np.int64)
        self.before = mark()
        self._cursors: dict[int, _Cursor] = {}  # a forked process must neither use nor close those of its parent

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cursors": {}}

    def count(self, labels: list[Any], label: str) -> tuple[list[Any], list[int]]:
        """Read the labels, and with them the number of rows of every piece.

        Args:
            labels: the same streams with the column of labels only.
            label: the name of that column.

        Returns:
            The label of every row, and the number of rows of each part.
        """
        found: list[Any] = []
        sizes, counts, file = [], [], 0
        for part in labels:
            before = len(found)
            for number in range(part.num_shards):
                with _readable(self.where):
                    pieces = _pieces(part.shard(part.num_shards, number))
                self.pieces += [(file, piece) for piece in range(pieces.num_shards)]
                for piece in range(pieces.num_shards):
                    start = len(found)
                    for cells in _cells(pieces, piece, label, self.where):
                        found += cells
                    counts.append(len(found) - start)
                file += 1
            sizes.append(len(found) - before)
        self.starts = np.cumsum([0, *counts])
        return found, sizes

    def cell(self, row: int) -> Any:
        """Return the cell of a row.

        Raises:
            DataError: it cannot be read, or the data changed since the labels were read.
        """
        piece = int(np.searchsorted(self.starts, row, side="right")) - 1
        place = row - int(self.starts[piece])
        cursor = self._cursors.get(os.getpid())
        if cursor is None or cursor.piece != piece or place < cursor.first:
            if self._mark() != self.before:
                raise DataError(f"{self.where} changed while it was read: start the run again")
            file, number = self.pieces[piece]
            with _readable(self.where):
                pieces = _pieces(self.files[file])
            cursor = _Cursor(piece, _cells(pieces, number, self.column, self.where))
            self._cursors[os.getpid()] = cursor
        while place >= cursor.first + len(cursor.cells):
            cursor.first, cursor.cells = cursor.first + len(cursor.cells), next(cursor.rest, [])
            if not cursor.cells:
                raise DataError(f"{self.where} changed while it was read: start the run again")
        return cursor.cells[place - cursor.first]

    def mark(self, row: int) -> str:
        """Return a hash that changes with the content of a row, without reading it."""
        return hashlib.sha256(f"{self.before}\0{row}".encode()).hexdigest()


def _pieces(file: Any) -> Any:
    """Return the stream of one file with a shard for each of its row groups, where it has some."""
    return file.reshard()


def _cells(pieces: Any, number: int, column: str, where: str) -> Iterator[list[Any]]:
    with _readable(where):
        for batch in pieces.shard(pieces.num_shards, number).iter(AT_ONCE):
            yield list(batch[column])


@contextmanager
def _readable(where: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the package and its parsers have many kinds of errors
        raise DataError(f"cannot read {where}: {one_line(error)}") from error


def files_mark(root: Path) -> str:
    """Return what changes with the files of a folder, or with one file: names, sizes, inodes and times."""
    files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    try:
        return repr([(str(path.relative_to(root)), identity(path)) for path in files])
    except OSError as error:
        raise DataError(f"cannot read {root}: {one_line(error)}") from error
