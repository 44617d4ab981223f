"""Bound what a Parquet file unpacks to, by the headers of its pages, before it is read.

What the footer of a file says of its sizes need not be true; the sizes in the headers of pages are,
as no reader accepts another one. A page of a dictionary holds a value once for all its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from io import BufferedReader
from pathlib import Path
from typing import Any

from cifnet_pl.images.files import shown_path
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.plugins import optional

RATIO = 100
"""Unpacked bytes per byte of a file that is read."""

SMALL_BYTES = 2**26
"""Unpacked bytes of a file that is read however small it is."""

NUMBER_BYTES = 8
"""Bytes of a number, or of the position of a text."""

REPEATING_ENCODINGS = (2, 7, 8)
"""Numbers of the encodings that store what several texts share once: dictionaries and prefixes."""

DATA_HEADERS = (5, 8)
"""Fields of a page's header that describe rows, in the two versions of the format."""

FIXED_BYTES = {4: 1, 7: 8}
"""Type of a field (Thrift's compact protocol) → its length, where all are equally long."""


def import_pyarrow() -> Any:
    """Import pyarrow with its reader of Parquet files; UsageError if it is missing."""
    pyarrow = optional("pyarrow", "a Parquet file", "tables")
    for part in ("compute", "parquet"):
        import_module(f"pyarrow.{part}")
    return pyarrow


def check_parquet(path: Path) -> None:
    """Check that a Parquet file does not unpack to far more than its size.

    Raises:
        DataError: it does; no more than the allowed size was unpacked.
    """
    file = import_pyarrow().parquet.ParquetFile(path)
    unpacked = 0
    repeated: dict[int, ColumnSize] = {}
    for number, size in _column_sizes(path, file):
        unpacked += size.certain
        if size.repeated:
            column = repeated.setdefault(number, ColumnSize())
            column.repeated += size.repeated
            column.longest = max(column.longest, size.longest)
        check_unpacked(unpacked, path)
    limit = largest_unpacked(path)
    if unpacked + sum(size.repeated for size in repeated.values()) <= limit:
        return
    for number, size in repeated.items():
        for cells in _cell_bytes(file, number, limit // size.longest):
            unpacked += cells
            check_unpacked(unpacked, path)


def largest_unpacked(path: Path) -> int:
    """Return the bytes to which a file may unpack."""
    return max(SMALL_BYTES, RATIO * path.stat().st_size)


def check_unpacked(unpacked: int, path: Path) -> None:
    """Raise DataError for a file that unpacks to far more bytes than it has."""
    if unpacked > largest_unpacked(path):
        raise DataError(
            f"{shown_path(path)} unpacks to more than {RATIO} times its size: make it again from"
            " the images"
        )


@dataclass
class ColumnSize:
    """Bytes that a column unpacks to.

    Attributes:
        certain: of its pages, and a number for each cell.
        repeated: upper bound for the texts that its pages hold once for several cells.
        longest: upper bound for one of these texts.
    """

    certain: int = 0
    repeated: int = 0
    longest: int = 0


def _column_sizes(path: Path, file: Any) -> Iterator[tuple[int, ColumnSize]]:
    """Yield the number and the size of each column in each row group."""
    metadata = file.metadata
    with path.open("rb") as stream:
        for group in range(metadata.num_row_groups):
            row_group = metadata.row_group(group)
            for number in range(metadata.num_columns):
                width = 0
                column = metadata.schema.column(number)
                if column.physical_type != "BYTE_ARRAY":
                    width = max(NUMBER_BYTES, column.length)
                yield number, _column_size(stream, row_group.column(number), width)


def _column_size(stream: BufferedReader, chunk: Any, width: int) -> ColumnSize:
    """Return the size of a column in a row group.

    Args:
        stream: the file.
        chunk: pyarrow's description of the column.
        width: bytes of each cell; 0 for texts and other content of any length.
    """
    size = ColumnSize()
    dictionary = 0
    start = min(
        chunk.dictionary_page_offset or chunk.data_page_offset, chunk.data_page_offset
    )
    for page in _pages(stream, start, start + chunk.total_compressed_size):
        page_bytes = page[2]
        size.certain += page_bytes
        rows = page.get(DATA_HEADERS[0]) or page.get(DATA_HEADERS[1])
        if rows is None:
            dictionary = max(dictionary, page_bytes)
            continue
        cells = rows[1]
        encoding = rows[2 if DATA_HEADERS[0] in page else 4]
        size.certain += cells * (width or NUMBER_BYTES)
        if encoding in REPEATING_ENCODINGS and not width:
            longest = max(dictionary, page_bytes)
            size.longest = max(size.longest, longest)
            size.repeated += cells * longest
    return size


def _pages(stream: BufferedReader, start: int, end: int) -> Iterator[dict[int, Any]]:
    """Yield the headers of the pages between two places of a file.

    A header has the fields 2 (bytes unpacked), 3 (bytes in the file) and one of those in
    ``DATA_HEADERS``, or none for a dictionary (parquet.thrift of Apache Parquet).
    """
    place = start
    while place < end:
        stream.seek(place)
        header = _thrift_fields(stream)
        if min(header[2], header[3]) < 0:
            raise ValueError("a page of negative size")
        yield header
        place = stream.tell() + header[3]


def _thrift_fields(stream: BufferedReader) -> dict[int, Any]:
    """Read a structure in Thrift's compact protocol: number of a field → integer or structure."""
    fields: dict[int, Any] = {}
    number = 0
    while (first := _byte(stream)) != 0:
        step, kind = divmod(first, 16)
        if step:
            number += step
        else:
            number = _signed(stream)
        if kind in (1, 2):  # true, false
            continue
        if kind in (4, 5, 6):  # integers
            fields[number] = _signed(stream)
        elif kind == 8:  # bytes
            stream.seek(_unsigned(stream), 1)
        elif kind == 12:
            fields[number] = _thrift_fields(stream)
        else:
            stream.seek(FIXED_BYTES[kind], 1)
    return fields


def _byte(stream: BufferedReader) -> int:
    return stream.read(1)[0]


def _unsigned(stream: BufferedReader) -> int:
    value = 0
    for shift in range(0, 64, 7):
        byte = _byte(stream)
        value |= (byte & 127) << shift
        if byte < 128:
            return value
    raise ValueError("a number of more than 64 bits")


def _signed(stream: BufferedReader) -> int:
    value = _unsigned(stream)
    return (value >> 1) ^ -(value & 1)


def _cell_bytes(file: Any, column: int, rows: int) -> Iterator[int]:
    """Yield the bytes of a column's cells, some rows at a time.

    Raises:
        DataError: the column holds lists, of which one may be of any size.
    """
    pyarrow = import_pyarrow()
    described = file.metadata.schema.column(column)
    if described.max_repetition_level:
        raise DataError(f"column {described.path} holds lists of texts that repeat")
    batches = file.iter_batches(
        batch_size=max(1, rows), columns=[described.path], use_threads=False
    )
    for batch in batches:
        cells = batch.column(0)
        while pyarrow.types.is_struct(cells.type):
            cells = cells.field(0)
        if pyarrow.types.is_dictionary(cells.type):
            lengths = pyarrow.compute.binary_length(cells.dictionary).take(
                cells.indices
            )
        else:
            lengths = pyarrow.compute.binary_length(cells)
        yield pyarrow.compute.sum(lengths).as_py() or 0
