"""Read arrays by name from .npz, .safetensors, .parquet and .arrow files, memory-mapped where the format allows it."""

from __future__ import annotations

import struct
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cifnet_pl.data.image_sets import place
from cifnet_pl.utilities.errors import CifnetError, DataError, UsageError, unknown_name
from cifnet_pl.utilities.text import first_line, has_controls, printable

ALIASES = {"embeddings": "embedding", "labels": "label", "ids": "id"}
"""Names of columns → another name that they are looked for by."""


@dataclass
class Table:
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
        column_name = name if name in self.columns else ALIASES.get(name, name)
        if column_name not in self.columns:
            known = ", ".join(printable(column) for column in self.columns) or "nothing"
            raise DataError(f"{place(self.path)} has no '{printable(name)}', it has {known}")
        with _readable(self.path):
            return self.read(column_name)

    def matrix(self, name: str) -> np.ndarray:
        """Return an (n, d) array of floats.

        Raises:
            DataError: the array has another shape or dtype.
        """
        array = self.array(name)
        if array.ndim != 2 or array.dtype.kind != "f" or not array.size:
            raise DataError(
                f"{place(self.path)}: '{printable(name)}' has shape {array.shape} and dtype {array.dtype}, "
                "expected (n, d) floats"
            )
        return array

    def vector(self, name: str, length: int) -> np.ndarray:
        """Return an (n,) array.

        Raises:
            DataError: its length is not ``length``, or it has another shape.
        """
        array = self.array(name)
        if array.shape != (length,):
            raise DataError(f"{place(self.path)}: '{printable(name)}' has shape {array.shape}, expected ({length},)")
        return array

    def ids(self, name: str | None, length: int) -> np.ndarray | None:
        """Return the identities of the rows.

        Args:
            name: of the array; None for "ids", if there is one.
            length: number of rows.

        Returns:
            (n,) array; None if there are no identities.

        Raises:
            DataError: two rows have the same one.
        """
        if name is None and not {"ids", "id"} & set(self.columns):
            return None
        ids = self.vector(name or "ids", length)
        values, counts = np.unique(ids, return_counts=True)
        if len(values) < length:
            again = printable(str(values[int(counts.argmax())]))
            raise DataError(f"{place(self.path)}: id '{again}' stands there twice, expected one per sample")
        return ids

    def classes(self, vectors: Sequence[np.ndarray]) -> tuple[list[str], list[np.ndarray]]:
        """Return the names of all classes, and the labels as positions among them.

        Args:
            vectors: labels, integers or names, such as those of training and test samples.

        Returns:
            Sorted names, and (n,) int64 positions for each vector.

        Raises:
            DataError: labels that are neither integers nor names, or a name with control characters.
        """
        for vector in vectors:
            if vector.dtype.kind == "f":
                raise DataError(
                    f"{place(self.path)}: the labels are floats ({vector.dtype}), expected integers or names: "
                    "convert them with labels.astype(int)"
                )
            if vector.dtype.kind not in "iuUTO":
                raise DataError(f"{place(self.path)}: the labels have dtype {vector.dtype}, expected integers or names")
        joined = np.concatenate(vectors)
        empty = [i for i, item in enumerate(joined) if item is None] if joined.dtype.kind == "O" else []
        if empty:
            raise DataError(
                f"{place(self.path)}: {len(empty)} labels are missing, the first in row {empty[0]} (from 0)"
            )
        if joined.dtype.kind == "O" and not all(isinstance(item, str) for item in joined):
            raise DataError(f"{place(self.path)}: a label is missing or not a text, expected integers or names")
        values, positions = np.unique(joined, return_inverse=True)
        names = [str(value) for value in values]
        strange = [name for name in names if not name or has_controls(name)]
        if strange:
            raise DataError(f"{place(self.path)}: '{printable(strange[0])}' cannot be the name of a class: rename it")
        ends = np.cumsum([len(vector) for vector in vectors])[:-1]
        return names, [members.astype(np.int64) for members in np.split(positions.reshape(-1), ends)]


def read_table(path: Path) -> Table:
    """Open a file of arrays; its ending says the format.

    Args:
        path: an .npz, .safetensors, .parquet or .arrow file.

    Returns:
        The arrays, none of which is read yet.

    Raises:
        UsageError: another ending, or a package that is needed and missing.
        DataError: the file is damaged or not what its ending says.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise unknown_name(f"kind of file of embeddings in {place(path)}", path.suffix or "no ending", READERS)
    with _readable(path):
        return reader(path)


@contextmanager
def _readable(path: Path) -> Any:
    try:
        yield
    except CifnetError:
        raise
    except Exception as error:  # each format's parser fails in its own way on a damaged file
        raise DataError(f"cannot read {place(path)}: {first_line(error)}") from error


def _npz(path: Path) -> Table:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    def read(name: str) -> np.ndarray:
        info = members[name]
        if info.compress_type == zipfile.ZIP_STORED:
            mapped = _mapped_npy(path, info.header_offset)
            if mapped is not None:
                return mapped
        with np.load(path, allow_pickle=False) as arrays:
            return np.asarray(arrays[name])

    return Table(path, list(members), read)


def _mapped_npy(path: Path, offset: int) -> np.ndarray | None:
    """Map an uncompressed array in a zip archive, whose local header is at ``offset``; None for an array of text."""
    with path.open("rb") as file:
        file.seek(offset + 26)
        name, extra = struct.unpack("<HH", file.read(4))
        file.seek(offset + 30 + name + extra)
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(file)
        if dtype.hasobject:
            raise DataError(f"{place(path)} holds Python objects, which are never loaded: save plain arrays of text")
        if 0 in shape:
            return None
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def _safetensors(path: Path) -> Table:
    from safetensors import safe_open

    file: Any = safe_open(path, framework="pt")
    # A tensor that is read stays a view of the mapped file.
    return Table(path, list(file.keys()), lambda name: np.asarray(file.get_tensor(name).numpy()))


def _parquet(path: Path) -> Table:
    parquet = _pyarrow("parquet")
    columns = parquet.read_schema(path).names
    return Table(path, columns, lambda name: _column(parquet.read_table(path, columns=[name])[name], path, name))


def _arrow(path: Path) -> Table:
    pyarrow = _pyarrow()
    mapped = pyarrow.memory_map(str(path))
    try:
        table = pyarrow.ipc.open_file(mapped).read_all()
    except pyarrow.ArrowInvalid:
        table = pyarrow.ipc.open_stream(mapped).read_all()  # what Hugging Face datasets writes
    return Table(path, table.column_names, lambda name: _column(table[name], path, name))


def _pyarrow(module: str | None = None) -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise UsageError("Parquet and Arrow files need the package pyarrow: pip install 'cifnet_pl[tables]'") from None
    return getattr(pyarrow, module) if module else pyarrow


def _column(column: Any, path: Path, name: str) -> np.ndarray:
    """Return a column of numbers or texts as (n,), one of lists of equal length as (n, d)."""
    pyarrow = _pyarrow()
    kind = column.type
    if not any(check(kind) for check in (pyarrow.types.is_list, pyarrow.types.is_large_list,
                                         pyarrow.types.is_fixed_size_list)):  # fmt: skip
        # NumPy's integers have no missing ones: it would make floats of all.
        return np.asarray(np.array(column.to_pylist(), dtype=object) if column.null_count else column.to_numpy())
    if column.null_count:
        first = column.is_null().index(True).as_py()
        raise DataError(
            f"{place(path)}: '{printable(name)}' is missing in {column.null_count} rows, the first is {first} (counted "
            "from 0)"
        )
    whole = column.combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pyarrow.ChunkedArray) else whole
    if not pyarrow.types.is_fixed_size_list(kind):
        lengths = np.diff(whole.offsets.to_numpy())
        usual, _ = Counter(lengths.tolist()).most_common(1)[0]
        other = np.flatnonzero(lengths != usual)
        if len(other):
            raise DataError(
                f"{place(path)}: '{printable(name)}' has {usual} numbers in most rows, but {lengths[other[0]]} in row "
                f"{other[0]} (counted from 0): all must have the same length"
            )
    numbers = whole.flatten()
    if not pyarrow.types.is_floating(numbers.type) and not pyarrow.types.is_integer(numbers.type):
        raise DataError(f"{place(path)}: '{printable(name)}' has lists of {numbers.type}, expected lists of floats")
    if numbers.null_count:
        row = numbers.is_null().to_numpy(zero_copy_only=False).argmax() // (len(numbers) // len(whole))
        raise DataError(f"{place(path)}: a number of '{printable(name)}' is missing in row {row} (counted from 0)")
    return np.asarray(numbers.to_numpy()).reshape(len(whole), -1)


READERS: dict[str, Callable[[Path], Table]] = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".feather": _arrow,
}
"""Ending of a file's name → function that opens it."""
