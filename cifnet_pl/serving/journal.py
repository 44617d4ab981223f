"""Append records to a file, each flushed to the disk before it is acknowledged."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from cifnet_pl.utilities.errors import CheckpointError, CifnetError
from cifnet_pl.utilities.files import sync_folder

Record = dict[str, Any]


class Journal:
    """JSON records, one per line, each with a checksum of its own.

    A process that is killed while it writes leaves a torn last line. That record was never acknowledged, so it is
    dropped when the journal is opened again. A damaged line before the last one is an error, because later records
    were built on it.

    Args:
        path: the file; it is made if it is missing.

    Attributes:
        records: everything that was acknowledged, oldest first.

    Raises:
        CheckpointError: a line before the last one is damaged.
        CifnetError: the file cannot be opened for writing.
    """

    def __init__(self, path: Path):
        self.path = path
        self.records: list[Record] = []
        fresh = not path.exists()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._length = self._read()
            os.ftruncate(self._descriptor, self._length)
            os.fsync(self._descriptor)
            if fresh:
                sync_folder(path.parent)
        except OSError as error:
            raise CifnetError(f"cannot open {path}: {error.strerror or error}") from error

    def _read(self) -> int:
        """Fill ``records``; return the number of bytes up to the end of the last complete record."""
        content = self.path.read_bytes()
        position = 0
        while position < len(content):
            end = content.find(b"\n", position) + 1
            record = _decoded(content[position:end]) if end else None
            if record is None:
                if end and end < len(content):
                    line = len(self.records) + 1
                    raise CheckpointError(f"{self.path} is damaged at line {line}: restore the file from a copy")
                break
            self.records.append(record)
            position = end
        return position

    def append(self, record: Record) -> None:
        """Write one record and wait until the disk has it.

        Raises:
            CifnetError: the disk is full or not writable; the journal is as it was.
        """
        line = _encoded(record)
        try:
            _write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._length)
            raise CifnetError(f"cannot write {self.path}: {error.strerror or error}; nothing was changed") from error
        self._length += len(line)
        self.records.append(record)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    unwritten = memoryview(content)
    while unwritten:
        unwritten = unwritten[os.write(descriptor, unwritten) :]


def _encoded(record: Record) -> bytes:
    text = json.dumps(record, allow_nan=False)  # in the order given: classes have one
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]} {text}\n".encode()


def _decoded(line: bytes) -> Record | None:
    """Return the record of a line, or None if the line is torn or its checksum is wrong."""
    try:
        record = json.loads(line.partition(b" ")[2])
    except ValueError:
        return None
    return record if isinstance(record, dict) and _encoded(record) == line else None
