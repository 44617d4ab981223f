"""Read tables as data sources: embeddings computed elsewhere, and lists of image files."""

from __future__ import annotations

import codecs
import glob
import os
import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from cifnet_pl.data.samples import SampleTable, SourceOptions, table_of
from cifnet_pl.data.sources.folders import SplitFiles, required_files
from cifnet_pl.images.files import shown_path
from cifnet_pl.utilities.errors import DataError, explained, unknown_name
from cifnet_pl.utilities.files import expanded, refuse_pointer
from cifnet_pl.utilities.names import Split, split_of
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import printable

BLOCK_ROWS = 2**16
"""Rows of a block of a file that has no blocks of its own; a part of a set reads whole ones."""

ALIASES = {"embeddings": "embedding", "labels": "label", "ids": "id"}
"""Names of columns → another name that they are looked for by."""


@dataclass
class ArrayFile:
    """Named arrays of one file, or of a block of its rows; each is read when it is asked for.

    Attributes:
        path: the file.
        columns: names of its arrays.
        read: name, rows → array.
        edges: the first row of each block of the file, and the number of rows.
        rows: those that are read.
    """

    path: Path
    columns: list[str]
    read: Callable[[str, slice], np.ndarray]
    edges: Callable[[], Sequence[int]]
    rows: slice = field(default_factory=lambda: slice(None))

    def blocks(self) -> list[ArrayFile]:
        """Return blocks of the file's rows, each of which is read without the others."""
        with readable(self.path):
            return [replace(self, rows=slice(*pair)) for pair in pairwise(self.edges())]

    def array(self, name: str) -> np.ndarray:
        """Return an array by its name, in YAML perhaps a number, or its alias.

        Raises:
            DataError: there is none; names those that exist.
        """
        name = str(name)
        column = name if name in self.columns else ALIASES.get(name, name)
        if column not in self.columns:
            where = shown_path(self.path)
            raise lacking(where, f"'{printable(name)}'", self.columns)
        with readable(self.path):
            return self.read(column, self.rows)

    def matrix(self, name: str) -> np.ndarray:
        """Return an (n, d) array of floats; DataError for another shape or dtype."""
        array = self.array(name)
        if array.ndim != 2 or array.dtype.kind != "f" or not array.size:
            raise self._unfit(name, array, "(n, d) floats")
        return array

    def vector(self, name: str, length: int) -> np.ndarray:
        """Return an (n,) array of integers or objects; DataError for another shape."""
        array = self.array(name)
        if array.shape != (length,):
            raise self._unfit(name, array, f"({length},)")
        if array.dtype.kind not in "iu":
            array = array.astype(object)
        return array

    def _unfit(self, name: str, array: np.ndarray, expected: str) -> DataError:
        return DataError(
            f"{shown_path(self.path)}: '{printable(str(name))}' has shape {array.shape} and dtype"
            f" {array.dtype}, expected {expected}"
        )

    def samples(
        self,
        embeddings: str = "embeddings",
        labels: str | None = "labels",
        ids: str | None = None,
        split: str | None = None,
    ) -> SampleTable:
        """Return the embeddings of this file.

        Args:
            embeddings, labels, ids, split: names of the arrays; None for no labels, and for the
                usual names of the others where the file has them.

        Raises:
            DataError: arrays that are missing or do not fit; two samples with one identity.
        """
        where = shown_path(self.path)
        z = self.matrix(embeddings)
        count = len(z)
        columns: dict[str, Any] = {"label": np.zeros(count, dtype=np.int64)}
        if labels is not None:
            columns["label"] = self.vector(labels, count)
        if ids is None and {"ids", "id"} & set(self.columns):
            ids = "ids"
        if ids is not None:
            names = [str(name) for name in self.vector(ids, count)]
            refuse_repeated(names, where, "id")
            columns["name"] = names
        if split is None and "split" in self.columns:
            split = "split"
        if split is not None and labels is not None:
            words = self.vector(split, count)
            columns["split"] = [read_split(word, where) for word in words]
        return SampleTable(pd.DataFrame(columns), embeddings=z, where=where)


def readable(path: Path) -> Any:
    """Return a context in which every error of a parser becomes DataError with the file's name."""
    return explained(DataError, f"cannot read {shown_path(path)}")


def _npz(path: Path) -> ArrayFile:
    with zipfile.ZipFile(path) as archive:
        infos = archive.infolist()
    members = {info.filename.removesuffix(".npy"): info for info in infos}

    def whole(name: str) -> np.ndarray:
        # Mapped anew each time: what was read of a map stays in memory as long as the map.
        if members[name].compress_type == zipfile.ZIP_STORED:
            mapped = _mapped_npy(path, members[name].header_offset)
            if mapped is not None:
                return mapped
        return loaded(name)

    @cache
    def loaded(name: str) -> np.ndarray:
        with np.load(path, allow_pickle=False) as arrays:
            try:
                return np.asarray(arrays[name])
            except ValueError as error:
                shown = printable(name)
                raise DataError(
                    f"{shown_path(path)}: '{shown}' is an array of objects: save"
                    f" {shown}.astype(str), or .astype(float) if it holds numbers"
                ) from error

    def read(name: str, rows: slice) -> np.ndarray:
        return whole(name)[rows]

    def edges() -> list[int]:
        length = len(whole(next(iter(members))))
        return [*range(0, length, BLOCK_ROWS), length]

    return ArrayFile(path, list(members), read, edges)


def _mapped_npy(path: Path, offset: int) -> np.ndarray | None:
    """Map an uncompressed array in a zip archive; None where it cannot be mapped.

    Args:
        path: the archive.
        offset: position of the array's local header, whose layout is that of APPNOTE.TXT, 4.3.7.
    """
    with path.open("rb") as file:
        file.seek(offset + 26)
        name_length, extra_length = struct.unpack("<HH", file.read(4))
        file.seek(name_length + extra_length, os.SEEK_CUR)
        np.lib.format.read_magic(file)
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        start = file.tell()
    if dtype.hasobject or 0 in shape:
        return None
    return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")


def _parquet(path: Path) -> ArrayFile:
    require_pyarrow()
    from pyarrow.parquet import ParquetFile

    with ParquetFile(path) as file:
        names = file.schema_arrow.names
        groups = range(file.num_row_groups)
        sizes = [file.metadata.row_group(group).num_rows for group in groups]
    first_rows = [0, *accumulate(sizes)]

    def read(name: str, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(first_rows[-1])
        # Blocks are whole row groups.
        wanted = [group for group in groups if start <= first_rows[group] < stop]
        with ParquetFile(path) as file:
            cells = file.read_row_groups(wanted, columns=[name]).column(0)
        if cells.null_count:
            raise DataError(f"'{printable(name)}' has rows without a value")
        return array_of(cells)

    return ArrayFile(path, names, read, lambda: first_rows)


def array_of(cells: Any) -> np.ndarray:
    """Return a column of Arrow as an array: (n, d) of lists with d values each, else (n,).

    Raises:
        DataError: lists of different lengths.
    """
    from pyarrow import compute, types

    kind = cells.type
    are_lists = types.is_list(kind) or types.is_large_list(kind)
    if not are_lists and not types.is_fixed_size_list(kind):
        return np.asarray(cells.to_pandas())
    lengths = compute.unique(compute.list_value_length(cells)).to_pylist()
    if len(lengths) > 1:
        raise DataError(
            f"lists must have the same shape, these have {lengths[0]} and {lengths[1]} values"
        )
    values = cells.combine_chunks().flatten()
    numbers: np.ndarray = values.to_numpy(zero_copy_only=False)
    return numbers.reshape(len(cells), -1)


def require_pyarrow() -> None:
    """Raise UsageError where pyarrow is missing, with which pandas reads Parquet files."""
    optional("pyarrow", "a Parquet file", "tables")


READERS: dict[str, Callable[[Path], ArrayFile]] = {".npz": _npz, ".parquet": _parquet}
"""Ending of a file's name → function that opens it."""

WHAT = "a file of embeddings (.npz or .parquet) with (n, d) embeddings and (n,) labels"


def embeddings(options: SourceOptions) -> SampleTable:
    """Read embeddings and their labels from a file, or from several whose names tell their splits.

    A file has ``embeddings`` (n, d) and ``labels`` (n,), integers or names. Optional are ``ids``
    (n,), the identity of each sample, and ``split`` (n,), "train" or "test".

    Options:
        embeddings, labels, ids, split: names of the columns or arrays, where they have other ones.

    Raises:
        UsageError: no file was given.
        DataError: a file that is missing, damaged or of another kind; columns that are missing or
            do not fit.
    """
    files = embedding_files(options.root)
    return files.read(lambda path: open_table(path).samples(**options.own))


def embedding_files(root: Path | None) -> SplitFiles:
    """Find the files of a set of embeddings.

    Raises:
        UsageError: none was given.
        DataError: there is none.
    """
    return required_files(root, "*", tuple(READERS), WHAT)


def refuse_repeated(names: Sequence[str], where: str, noun: str) -> None:
    """Raise DataError where two samples have one name."""
    ((name, times),) = Counter(names).most_common(1)
    if times > 1:
        raise DataError(
            f"{where}: {noun} '{printable(name)}' stands there twice, expected one per sample"
        )


def lacking(where: str, what: str, present: Iterable[str], end: str = "") -> DataError:
    """Return the error for data that lack something; it names what they have.

    Args:
        where: the data.
        what: that is missing, such as "column 'label'".
        present: what is there in its place.
        end: of the sentence.
    """
    known = ", ".join(map(printable, present)) or "nothing"
    return DataError(f"{where} has no {what}, it has {known}{end}")


def read_split(word: Any, where: str) -> Split:
    """Return the split that a cell means; DataError if it means none."""
    text = str(word)
    split = split_of(text)
    if split is None:
        raise DataError(
            f"{where} has split '{printable(text)}', expected train or test"
        )
    return split


def open_table(file: Path) -> ArrayFile:
    """Open a file of arrays without reading them; its ending says the format.

    Raises:
        UsageError: a file with another ending, or a package that is needed and missing.
        DataError: there is no such file, or it is damaged or not what its ending says.
    """
    path = _checked_file(file, WHAT, tuple(READERS))
    with readable(path):
        return READERS[path.suffix.lower()](path)


def _checked_file(file: Path, what: str, endings: Sequence[str]) -> Path:
    """Return the path of a table.

    Args:
        file: as it was given.
        what: what it should be, for messages.
        endings: those that it may have.

    Raises:
        UsageError: it has another ending.
        DataError: there is no such file.
    """
    path = expanded(file)
    if not path.is_file():
        raise DataError(f"no file {shown_path(path)}: expected {what}")
    if path.suffix.lower() not in endings:
        kind = f"kind of table in {shown_path(path)}"
        raise unknown_name(kind, path.suffix or "no ending", endings)
    with readable(path):
        refuse_pointer(path)
    return path


# ---------------------------------------------------------------------- lists of image files

WHAT_MANIFEST = (
    "a table (.csv, .tsv, .xlsx or .parquet) with the columns path and label"
)

ENDINGS = (".csv", ".tsv", ".txt", ".parquet", ".xlsx")
"""Endings of tables."""

DELIMITERS = (",", ";", "\t", "|")
"""Separators of cells in a text file: spreadsheets write that of their language."""

MEANINGS = ("path", "label", "split", "task", "domain")
"""Roles of the columns of a manifest; the first two are needed."""


def manifest(options: SourceOptions) -> SampleTable:
    """Read the images that a table lists; ``--data.root`` is the table.

    It may also be a folder or a pattern of tables whose names tell their splits, such as
    ``{train,val}.csv``. Columns are ``path``, relative to the table's folder; ``label``, the name
    of the class; and, if wanted, ``split`` (train or test), ``task`` and ``domain``. Tasks are
    learned with ``--data.stream Listed``, in sorted order, numbers as numbers; domains with
    ``--data.stream Domains``.

    Options:
        path, label, split, task, domain: names of the columns, where they have other ones.
        pattern: what a path is, with {} for the cell, such as train/{}.png for bare ids.

    Raises:
        UsageError: no table was given, or one of another kind.
        DataError: a column, a value or an image that is missing; an image that is listed twice.
    """
    files = required_files(options.root, "*", ENDINGS, WHAT_MANIFEST)
    return files.read(partial(_listed_images, own=options.own))


def _listed_images(table_file: Path, own: Mapping[str, Any]) -> SampleTable:
    """Return the images of one table; ``own`` are the options of :func:`manifest`.

    Raises:
        DataError: an image that is not there, or is listed twice.
    """
    file = _checked_file(table_file, WHAT_MANIFEST, ENDINGS)
    where = shown_path(file)
    rows = _read_rows(file)
    if rows.empty:
        raise DataError(f"{where} lists no image")
    cells = _by_meaning(rows, own, where)
    pattern = str(own.get("pattern", "{}"))
    names = []
    for cell in cells.pop("path"):
        path = pattern.replace("{}", str(cell))
        # Tables are written on Windows, too.
        if "\\" in path and not os.path.lexists(file.parent / path):
            path = path.replace("\\", "/")
        if not os.path.lexists(file.parent / path):
            raise DataError(
                f"{where} lists {shown_path(file.parent / path)}, which is not there:"
                f" {_where_it_may_be(path, file.parent)}"
            )
        names.append(os.path.normpath(path))
    refuse_repeated(names, where, "image")
    if "split" in cells:
        cells["split"] = [read_split(word, where) for word in cells["split"]]
    paths = [str(file.parent / name) for name in names]
    table = table_of(name=names, path=paths, **cells)
    return SampleTable(table, root=file.parent, where=where)


def _read_rows(path: Path) -> pd.DataFrame:
    """Read a table with a header; the ending of its name says the format.

    Args:
        path: a Parquet file; or a text file or Excel workbook, whose cells are texts, without
            spaces around them. Rows without any content are left out.

    Raises:
        UsageError: a package that is missing.
        DataError: the table is damaged.
    """
    ending = path.suffix.lower()
    with readable(path):
        if ending == ".parquet":
            require_pyarrow()
            return pd.read_parquet(path)
        if ending == ".xlsx":
            optional("openpyxl", "an Excel workbook", "tables")
            cells = pd.read_excel(path, header=None, dtype=str)
        else:
            cells = _read_text(path)
    cells = cells.fillna("").apply(lambda column: column.str.strip())
    rows = cells.iloc[1:]
    rows.columns = cells.iloc[0].tolist()
    is_empty = (rows == "").all(axis=1)
    return rows[~is_empty]


def _read_text(path: Path) -> pd.DataFrame:
    """Read the cells of a text file, whatever delimiter it has; UTF-16 by its byte order mark."""
    with path.open("rb") as file:
        is_utf16 = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    encoding = "utf-16" if is_utf16 else "utf-8-sig"
    failed = f"{shown_path(path)} is not {encoding.removesuffix('-sig').upper()}"
    with explained(DataError, failed, UnicodeDecodeError, end=": save it as CSV UTF-8"):
        with path.open(encoding=encoding) as file:
            header = file.readline()
        return pd.read_csv(
            path,
            sep=max(DELIMITERS, key=header.count),
            header=None,
            dtype=str,
            keep_default_na=False,
            encoding=encoding,
            skipinitialspace=True,
        )


def _by_meaning(
    rows: pd.DataFrame,
    own: Mapping[str, Any],
    where: str,
) -> dict[str, list[Any]]:
    """Return the columns of a manifest by their meaning.

    Args:
        rows: the table; the names of its columns are read in any letter case.
        own: meaning → name of its column, where it has another one.
        where: the table, for messages.

    Raises:
        DataError: the table lacks ``path`` or ``label``, or a column that was named; two columns
            have one name; a cell is empty.
    """
    header = rows.columns.astype(str)
    folded = header.map(str.casefold)
    cells = {}
    for meaning in MEANINGS:
        name = str(own.get(meaning, meaning))
        columns = rows.loc[:, folded == name.casefold()]
        if columns.shape[1] > 1:
            raise DataError(f"{where} has two columns '{printable(name)}': rename one")
        if columns.shape[1]:
            column = columns.iloc[:, 0]
            missing = np.flatnonzero(column.isna() | (column == ""))
            if len(missing):
                number = missing[0] + 1
                raise DataError(f"{where}: row {number} has nothing for {meaning}")
            cells[meaning] = column.tolist()
        elif meaning in ("path", "label") or meaning in own:
            raise lacking(where, f"column '{printable(name)}'", header)
    return cells


def _where_it_may_be(path: str, root: Path) -> str:
    """Return a hint for a path of a table in a folder ``root``, where there is no such file."""
    name = glob.escape(path)
    with_ending = chain(root.glob(f"{name}.*"), root.glob(f"*/{name}.*"))
    found = next(with_ending, None)
    if found is None:
        return "paths are relative to the table's folder"
    like = printable(found.relative_to(root).as_posix())
    pattern = like.replace(path, "{}")
    return f"did you mean {like}? Then add --data.options.pattern '{pattern}'"
