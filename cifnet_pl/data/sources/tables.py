"""Read tables as data sources: embeddings computed elsewhere, and lists of image files."""

from __future__ import annotations

import codecs
import csv
import io
import os
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.sets import (
    FileSet,
    SampleGroups,
    SampleSet,
    Source,
    SourceOptions,
    classes_of,
    source_with_split,
)
from cifnet_pl.data.sources.parquet import (
    check_parquet,
    check_unpacked,
    import_pyarrow,
)
from cifnet_pl.images.files import shown_path
from cifnet_pl.images.image import content_hash
from cifnet_pl.utilities.errors import DataError, UsageError, explained, unknown_name
from cifnet_pl.utilities.files import expanded
from cifnet_pl.utilities.names import Split, split_of
from cifnet_pl.utilities.text import has_controls, listed, number_of, printable

ALIASES = {"embeddings": "embedding", "labels": "label", "ids": "id"}
"""Names of columns → another name that they are looked for by."""


@dataclass
class SampleTable:
    """Named arrays of one file; each is read when it is asked for.

    Attributes:
        path: the file.
        columns: names of its arrays.
        read: name → array.
    """

    path: Path
    columns: list[str]
    read: Callable[[str], np.ndarray]

    def array(self, name: str) -> np.ndarray:
        """Return an array by its name or its alias.

        Raises:
            DataError: there is none; names those that exist.
        """
        if name in self.columns:
            column = name
        else:
            column = ALIASES.get(name, name)
        if column not in self.columns:
            known_columns = ", ".join(map(printable, self.columns))
            known = known_columns or "nothing"
            raise DataError(
                f"{shown_path(self.path)} has no '{printable(name)}', it has {known}"
            )
        with readable(self.path):
            return self.read(column)

    def matrix(self, name: str) -> np.ndarray:
        """Return an (n, d) array of floats.

        Raises:
            DataError: the array has another shape or dtype.
        """
        array = self.array(name)
        if array.ndim != 2 or array.dtype.kind != "f" or not array.size:
            raise self._wrong_shape(
                name, f"{array.shape} and dtype {array.dtype}, expected (n, d) floats"
            )
        return array

    def vector(self, name: str, length: int) -> np.ndarray:
        """Return an (n,) array.

        Raises:
            DataError: its length is not ``length``, or it has another shape.
        """
        array = self.array(name)
        if array.shape != (length,):
            raise self._wrong_shape(name, f"{array.shape}, expected ({length},)")
        return array

    def _wrong_shape(self, name: str, shape: str) -> DataError:
        return DataError(
            f"{shown_path(self.path)}: '{printable(name)}' has shape {shape}"
        )

    def samples(
        self, z: np.ndarray, labels: np.ndarray, ids: str | None = None
    ) -> EmbeddingSet:
        """Return embeddings of this file as samples.

        Args:
            z: (n, d), one of the arrays.
            labels: (n,) class positions.
            ids: name of the array of the samples' identities; None for "ids", if there is one.

        Raises:
            DataError: two samples have the same identity.
        """
        id_columns = {"ids", "id"} & set(self.columns)
        if ids is None and not id_columns:
            return EmbeddingSet(z, labels, self.path)
        column = ids or "ids"
        identities = self.vector(column, len(z))
        values, counts = np.unique(identities, return_counts=True)
        if len(values) < len(z):
            repeated = values[counts.argmax()]
            duplicate = printable(str(repeated))
            raise DataError(
                f"{shown_path(self.path)}: id '{duplicate}' stands there twice, expected one per"
                " sample"
            )
        return EmbeddingSet(z, labels, self.path, ids=identities)

    def labelled(
        self,
        embeddings: str = "embeddings",
        labels: str = "labels",
        ids: str | None = None,
    ) -> tuple[list[str], EmbeddingSet]:
        """Return the names of the classes, and all embeddings with their labels.

        Args:
            embeddings, labels, ids: names of the arrays.

        Raises:
            DataError: arrays that are missing or do not fit.
        """
        z = self.matrix(embeddings)
        cells = self.vector(labels, len(z)).tolist()
        class_names, positions = classes_of(cells, shown_path(self.path))
        return class_names, self.samples(z, positions, ids)

    def unlabelled(self) -> EmbeddingSet:
        """Return all embeddings without their labels."""
        z = self.matrix("embeddings")
        zeros = np.zeros(len(z), dtype=np.int64)
        return self.samples(z, zeros)


def readable(path: Path) -> Any:
    """Return a context in which every error of a parser becomes DataError with the file's name."""
    return explained(DataError, f"cannot read {shown_path(path)}")


def _npz(path: Path) -> SampleTable:
    with zipfile.ZipFile(path) as archive:
        members = {}
        unpacked = 0
        for info in archive.infolist():
            members[info.filename.removesuffix(".npy")] = info
            unpacked += info.file_size
    check_unpacked(unpacked, path)

    def read(name: str) -> np.ndarray:
        member = members[name]
        if member.compress_type == zipfile.ZIP_STORED:
            mapped = _mapped_npy(path, member.header_offset)
            if mapped is not None:
                return mapped
        with np.load(path, allow_pickle=False) as arrays:
            return np.asarray(arrays[name])

    return SampleTable(path, list(members), read)


def _mapped_npy(path: Path, offset: int) -> np.ndarray | None:
    """Map an uncompressed array in a zip archive; None for an empty one.

    Args:
        path: the archive.
        offset: position of the array's local header, whose layout is that of APPNOTE.TXT, 4.3.7.

    Raises:
        DataError: an array of Python objects.
    """
    with path.open("rb") as file:
        file.seek(offset + 26)
        lengths = file.read(4)
        name_length, extra_length = struct.unpack("<HH", lengths)
        header_length = 30 + name_length + extra_length
        file.seek(offset + header_length)
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
        start = file.tell()
    if dtype.hasobject:
        raise DataError(
            f"{shown_path(path)} holds Python objects, which are never loaded: save plain arrays"
            " of text"
        )
    if 0 in shape:
        return None
    if fortran:
        return np.memmap(path, dtype, "r", start, shape, "F")
    return np.memmap(path, dtype, "r", start, shape, "C")


def _parquet(path: Path) -> SampleTable:
    parquet = import_pyarrow().parquet
    check_parquet(path)

    def read(name: str) -> np.ndarray:
        # A text that is stored once may stand in a million rows: it is not copied into each of
        # them before its length is known.
        table = parquet.read_table(path, columns=[name], read_dictionary=[name])
        column = _without_dictionary(table[name], path, name)
        return _column(column, path, name)

    names = parquet.read_schema(path).names
    return SampleTable(path, names, read)


def _without_dictionary(column: Any, path: Path, name: str) -> Any:
    """Return a column with the text itself in each row; DataError where one is too long."""
    pyarrow = import_pyarrow()
    if not pyarrow.types.is_dictionary(column.type):
        return column
    for chunk in column.chunks:
        lengths = pyarrow.compute.binary_length(chunk.dictionary)
        longest = pyarrow.compute.max(lengths).as_py() or 0
        if longest > CELL_BYTES:
            raise DataError(
                f"{shown_path(path)}: a cell of '{printable(name)}' has {longest} bytes, expected"
                f" at most {CELL_BYTES}"
            )
    return column.cast(column.type.value_type)


def _column(column: Any, path: Path, name: str) -> np.ndarray:
    """Return a column of numbers or texts as (n,), one of lists of equal length as (n, d)."""
    types = import_pyarrow().types
    kind = column.type
    if (
        types.is_list(kind)
        or types.is_large_list(kind)
        or types.is_fixed_size_list(kind)
    ):
        return _list_column(column, path, name)
    if column.null_count:  # NumPy's integers cannot be missing: all would become floats
        return np.array(column.to_pylist(), dtype=object)
    return np.asarray(column.to_numpy())


def _list_column(column: Any, path: Path, name: str) -> np.ndarray:
    """Return a column of lists as (n, d) floats.

    Raises:
        DataError: lists of different lengths, or of other things than floats.
    """
    pyarrow = import_pyarrow()
    whole = column.combine_chunks()
    if isinstance(whole, pyarrow.ChunkedArray):
        whole = whole.chunk(0)
    values = whole.flatten()
    list_lengths = pyarrow.compute.list_value_length(whole)
    lengths = set(list_lengths.to_pylist())
    if (
        len(lengths) > 1
        or values.null_count
        or not pyarrow.types.is_floating(values.type)
    ):
        raise DataError(
            f"{shown_path(path)}: rows of '{printable(name)}' are not all floats, the same number"
            " in each row"
        )
    flat = np.asarray(values.to_numpy())
    return flat.reshape(len(whole), -1)


CELL_BYTES = 2**16
"""Bytes of a text in a cell of a Parquet file."""

READERS: dict[str, Callable[[Path], SampleTable]] = {".npz": _npz, ".parquet": _parquet}
"""Ending of a file's name → function that opens it."""

WHAT = "a file of embeddings (.npz or .parquet) with (n, d) embeddings and (n,) labels"
TRUTH_VALUES: dict[str, Split] = {
    "0": "train",
    "1": "test",
    "false": "train",
    "true": "test",
}
"""Values of a column ``split`` that say whether a sample is tested with, in small letters."""


class EmbeddingSet(SampleSet):
    """Rows of an array of embeddings, read from its memory-mapped file when they are asked for.

    Args:
        embeddings: (N, d) array of floats.
        labels: (n,) class position of each sample.
        file: where the array comes from, for messages.
        rows: (n,) row of each sample in ``embeddings``; None for all.
        ids: (N,) identity of each row, or None for its number.
    """

    def __init__(
        self,
        embeddings: np.ndarray,
        labels: np.ndarray,
        file: Path,
        rows: np.ndarray | None = None,
        ids: np.ndarray | None = None,
    ):
        self.embeddings = embeddings
        self.labels = labels
        self.ids = ids
        self.file = file
        if rows is None:
            self.rows = np.arange(len(labels))
        else:
            self.rows = rows
        if ids is None:
            identities = self.rows
        else:
            identities = ids[self.rows]
        self.names = []
        for name in identities.tolist():
            self.names.append(str(name))

    @property
    def root(self) -> Path:
        """The file, below which the samples are, as images are below a folder."""
        return self.file

    @property
    def features(self) -> int:
        """Width d of the embeddings."""
        return int(self.embeddings.shape[1])

    def get(self, rows: np.ndarray) -> Tensor:
        """Return (n, d) float32 embeddings of the samples at positions ``rows``.

        Raises:
            DataError: some of them hold NaN or infinity; names their rows in the file.
        """
        file_rows = self.rows[rows]
        if len(file_rows) and (np.diff(file_rows) == 1).all():
            # A view of consecutive rows is read from the file in one piece.
            first = file_rows[0]
            last = file_rows[-1]
            part = self.embeddings[first : last + 1]
        else:
            part = self.embeddings[file_rows]
        with np.errstate(over="ignore"):  # values too large become infinity
            in_order = np.array(part, dtype=np.float32, order="C")
            z = torch.from_numpy(in_order)
        is_finite = torch.isfinite(z).all(dim=1)
        finite = is_finite.numpy()
        if not finite.all():
            broken = []
            for row in file_rows[~finite]:
                broken.append(str(row))
            raise DataError(
                f"{shown_path(self.file)}: no finite float32 in row {listed(broken)} of the"
                " embeddings (counted from 0): repair or remove them"
            )
        return z

    def place(self, index: int) -> str:
        """Return the file and the sample's name in it."""
        name = printable(self.names[index])
        return f"{shown_path(self.file)}#{name}"

    def subset(self, rows: np.ndarray) -> EmbeddingSet:
        """Return the samples at positions ``rows``."""
        own_rows = self.rows[rows]
        labels = self.labels[rows]
        return EmbeddingSet(self.embeddings, labels, self.file, own_rows, self.ids)

    def content_hash(self, index: int) -> int:
        """Return the hash of the embedding's bytes."""
        vector = self.embeddings[self.rows[index]]
        row = np.ascontiguousarray(vector)
        return content_hash(row.tobytes())


def embeddings(options: SourceOptions) -> Source:
    """Read embeddings and their labels from one file.

    The file has ``embeddings`` (n, d) and ``labels`` (n,), integers or names. Optional are ``ids``
    (n,), the identity of each sample, and ``split`` (n,), "train" or "test". Without a test split a
    share of each class is held out by seed.

    Options:
        embeddings, labels, ids, split: names of the columns or arrays, where they have other ones.

    Raises:
        UsageError: no file was given.
        DataError: a file that is missing, damaged or of another kind; columns that are missing or
            do not fit.
    """
    table = open_table(options.root)
    where = shown_path(table.path)
    names = {}
    for key, value in options.own.items():
        names[key] = str(value)
    default = None
    if "split" in table.columns:
        default = "split"
    split_column = names.pop("split", default)
    class_names, whole = table.labelled(**names)
    splits = None
    if split_column is not None:
        cells = table.vector(split_column, len(whole))
        words = cells.tolist()
        splits = [read_split(word, where) for word in words]
    return source_with_split(class_names, whole, splits, options, where)


def read_split(word: Any, where: str) -> Split:
    """Return the split that a cell means: a name, or true and 1 for the test split.

    Raises:
        DataError: it means none.
    """
    text = str(word)
    by_name = split_of(text)
    split = TRUTH_VALUES.get(text.casefold(), by_name)
    if split is None:
        raise DataError(
            f"{where} has split '{printable(text)}', expected train or test"
        )
    return split


def open_table(root: Path | None) -> SampleTable:
    """Open a file of arrays without reading them; its ending says the format.

    Raises:
        UsageError: no file was given, one with another ending, or a package that is needed and
            missing.
        DataError: there is no such file, or it is damaged or not what its ending says.
    """
    if root is None:
        raise UsageError(f"no file was given: set --data.root to {WHAT}")
    path = expanded(root)
    if not path.is_file():
        raise DataError(f"no file {shown_path(path)}: expected {WHAT}")
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise unknown_name(
            f"kind of file of embeddings in {shown_path(path)}",
            path.suffix or "no ending",
            READERS,
        )
    with readable(path):
        return reader(path)


def embeddings_width(root: Any, options: dict[str, Any] | None = None) -> int:
    """Return the width d of the embeddings in a file, without reading them.

    Args:
        root: the file.
        options: of the source :func:`embeddings`.
    """
    path = None
    if root:
        path = Path(root)
    table = open_table(path)
    column = (options or {}).get("embeddings", "embeddings")
    matrix = table.matrix(str(column))
    return int(matrix.shape[1])


# ---------------------------------------------------------------------- lists of image files

WHAT_MANIFEST = "a table (.csv, .tsv or .parquet) with the columns path and label"

ENDINGS = (".csv", ".tsv", ".txt", ".parquet")
"""Endings of tables."""

DELIMITERS = (",", ";", "\t", "|")
"""Separators of cells in a text file: spreadsheets write that of their language."""

BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""First bytes of a text file → its encoding; without them it is UTF-8."""

MEANINGS = ("path", "label", "split", "task", "domain")
"""Roles of the columns of a manifest; the first two are needed."""


def manifest(options: SourceOptions) -> Source:
    """Read the images that a table lists; ``--data.root`` is the table.

    Columns are ``path``, relative to the table's folder; ``label``, the name of the class; and, if
    wanted, ``split`` (train or test), ``task`` and ``domain``. Tasks are learned with
    ``--data.stream Listed``, in sorted order, numbers as numbers; domains with ``--data.stream
    Domains``. Without a split a share of each class is held out by seed.

    Options:
        path, label, split, task, domain: names of the columns, where they have other ones.

    Raises:
        UsageError: no table was given, or one of another kind.
        DataError: a column, a value or an image that is missing; an image that is listed twice.
    """
    if options.root is None:
        raise UsageError(f"no table was given: set --data.root to {WHAT_MANIFEST}")
    file = expanded(options.root)
    where = shown_path(options.root)
    names = {}
    for meaning in MEANINGS:
        own_name = options.own.get(meaning, meaning)
        names[meaning] = str(own_name)
    table = _read_table(file, names)
    cells = _manifest_cells(table, names, options, where)
    if not cells["path"]:
        raise DataError(f"{where} lists no image")
    _check_cells(cells, where)
    paths = _existing_files(cells["path"], file.parent, where)
    class_names, labels = classes_of(cells["label"], where)
    whole = FileSet(file.parent, paths, labels.tolist())
    splits = None
    if "split" in cells:
        splits = []
        for word in cells["split"]:
            splits.append(read_split(word, where))
    domains = None
    if "domain" in cells:
        domains = _groups(cells["domain"])
    tasks = None
    if "task" in cells:
        tasks = _groups(cells["task"])
    source = source_with_split(
        class_names, whole, splits, options, where, domains, tasks
    )
    if not table.empty_rows:
        return source
    note = f"note: {where}: {number_of(table.empty_rows, 'empty row')} passed over"
    notes = (note, *source.notes)
    return replace(source, notes=notes)


class ManifestTable(NamedTuple):
    """The cells of a table.

    Attributes:
        header: names of all columns.
        columns: name → cells; of a text file texts, without spaces around them.
        empty_rows: number of rows without any content, which are left out.
    """

    header: list[str]
    columns: dict[str, list[Any]]
    empty_rows: int


def _manifest_cells(
    table: ManifestTable, names: dict[str, str], options: SourceOptions, where: str
) -> dict[str, list[Any]]:
    """Return the columns of a manifest by their meaning.

    Args:
        table: the table.
        names: meaning → name of its column, in any letter case.
        options: options of the source.
        where: the table, for messages.

    Raises:
        DataError: the table lacks ``path`` or ``label``, or a column that was named.
    """
    cells = {}
    folded = {}
    for name in table.columns:
        folded[name.casefold()] = name
    for meaning, name in names.items():
        column: str | None = name
        if name not in table.columns:
            column = folded.get(name.casefold())
        if column is not None:
            cells[meaning] = table.columns[column]
        elif meaning in ("path", "label") or meaning in options.own:
            known_columns = ", ".join(map(printable, table.header))
            known = known_columns or "none"
            raise DataError(
                f"{where} has no column '{printable(name)}', it has {known}"
            )
    return cells


def _read_table(path: Path, names: dict[str, str]) -> ManifestTable:
    """Read a table; the ending of its name says the format.

    Args:
        path: the table.
        names: meaning → name of its column.

    Raises:
        UsageError: another ending.
        DataError: no such table, or one that is damaged.
    """
    if not path.is_file():
        raise DataError(
            f"no file {shown_path(path)}: set --data.root to {WHAT_MANIFEST}"
        )
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        ending = path.suffix or "no ending"
        raise unknown_name(f"kind of table in {shown_path(path)}", ending, ENDINGS)
    if ending == ".parquet":
        table = open_table(path)
        wanted = {name.casefold() for name in names.values()}
        columns = {}
        for name in table.columns:
            if name.casefold() in wanted:
                values = table.array(name)
                columns[name] = values.tolist()
        return ManifestTable(table.columns, columns, 0)
    with readable(path):
        content = path.read_bytes()
    return _parse_text(_decode_text(content, path), path, names)


def _decode_text(content: bytes, path: Path) -> str:
    """Decode a text file: UTF-16 with its byte order mark, else UTF-8.

    Raises:
        DataError: it is neither; spreadsheets on Windows write other encodings by default.
    """
    encoding = "utf-8"
    for mark, name in BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            encoding = name
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        breaks = content.count(b"\n", 0, error.start)
        line = breaks + 1
        raise DataError(
            f"{shown_path(path)} is not {encoding.upper()} (line {line}): save it as CSV UTF-8"
        ) from error


def _parse_text(text: str, path: Path, names: dict[str, str]) -> ManifestTable:
    """Parse the text of a table, whatever delimiter it has.

    Raises:
        DataError: a row has another number of cells than the header, or two columns have one name.
    """
    with readable(path):
        delimiter = _delimiter(text, names)
        stream = io.StringIO(text, newline="")
        lines = csv.reader(stream, delimiter=delimiter)
        rows = []
        for line in lines:
            rows.append([cell.strip() for cell in line])
    if rows:
        header = rows[0]
    else:
        header = []
    columns: dict[str, list[Any]] = {}
    for name in filter(None, header):
        if name in columns:
            raise DataError(
                f"{shown_path(path)} has two columns '{printable(name)}': rename one"
            )
        columns[name] = []
    empty_rows = 0
    numbered_rows = enumerate(rows[1:], 1)
    for number, row in numbered_rows:
        if not any(row):
            empty_rows += bool(row)
            continue
        if len(row) != len(header):
            cells = f"row {number} has {len(row)} cells, the header has {len(header)}"
            name = printable(row[0])
            raise DataError(f"{shown_path(path)}: {cells}: {name}")
        for name, cell in zip(header, row, strict=True):
            if name:
                columns[name].append(cell)
    return ManifestTable(header, columns, empty_rows)


def _delimiter(text: str, names: dict[str, str]) -> str:
    """Return the delimiter with which the header has the most of the wanted columns."""
    wanted = {name.casefold() for name in names.values()}

    def columns_found(delimiter: str) -> int:
        first_line = text.splitlines(True)[:1]
        header = next(csv.reader(first_line, delimiter=delimiter), [])
        names = {name.strip().casefold() for name in header}
        return len(wanted & names)

    return max(DELIMITERS, key=columns_found)


def _check_cells(cells: dict[str, list[Any]], where: str) -> None:
    """Check that no cell is empty, is no text or number, or has control characters.

    Raises:
        DataError: one is.
    """
    for meaning, column in cells.items():
        for number, cell in enumerate(column, 1):
            if cell is None or cell == "" or cell != cell:  # the last: not a number
                raise DataError(f"{where}: row {number} has nothing for {meaning}")
            numbers_allowed = meaning != "path"
            if not isinstance(cell, str) and not (
                numbers_allowed and isinstance(cell, int)
            ):
                raise DataError(
                    f"{where}: row {number} has {printable(str(cell)[:60])}"
                    f" ({type(cell).__name__}) for {meaning}, expected a text"
                )
            if meaning != "label" and has_controls(str(cell)):
                raise DataError(
                    f"{where}: row {number} has control characters for {meaning},"
                    f" '{printable(str(cell))}'"
                )


def _existing_files(paths: Sequence[str], root: Path, where: str) -> list[str]:
    """Return the paths of a table's files, each in one spelling.

    Backslashes separate folders where a file of the name with backslashes is not there: tables are
    written on Windows, too.

    Raises:
        DataError: files that are not there, or one that is listed twice.
    """
    found = []
    missing = []
    for path in paths:
        if not os.path.lexists(root / path) and os.path.lexists(
            root / path.replace("\\", "/")
        ):
            path = path.replace("\\", "/")
        if not os.path.lexists(root / path):
            missing.append(path)
        found.append(os.path.normpath(path))
    if missing:
        raise DataError(
            f"{where} lists {len(missing)} files that are not there, the first is"
            f" {shown_path(root / missing[0])}: paths are relative to the table's folder"
        )
    counts = Counter(found)
    name, times = counts.most_common(1)[0]
    if times > 1:
        raise DataError(
            f"{where} lists an image twice ({printable(name)}): an image has one row"
        )
    return found


def _groups(column: list[Any]) -> SampleGroups:
    """Return the groups that a column names, sorted, numbers as numbers."""
    cells = [str(cell) for cell in column]
    names = sorted(set(cells), key=_number_order)
    position = {name: i for i, name in enumerate(names)}
    numbers = [position[cell] for cell in cells]
    return SampleGroups(names, np.array(numbers, dtype=np.int64))


def _number_order(name: str) -> tuple[bool, int, str]:
    """Return a key that sorts numbers by their value, and before other names."""
    if name.isdecimal():
        return (False, int(name), name)
    return (True, 0, name)
