"""Read embeddings that were computed elsewhere as a data source: NumPy and Parquet files."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.sets import TEST, SampleSet, Source, SourceOptions, checked, classes_of, in_parts, split_by_seed
from cifnet_pl.photos.files import expanded, place
from cifnet_pl.photos.photo import content_hash
from cifnet_pl.utilities.errors import CifnetError, DataError, UsageError, unknown_name
from cifnet_pl.utilities.text import first_line, printable

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
        with readable(self.path):
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

    def samples(self, z: np.ndarray, labels: np.ndarray, ids: str | None = None) -> EmbeddingSet:
        """Return embeddings z (n, d) of this file as samples.

        Args:
            z: one of the arrays.
            labels: (n,) class positions.
            ids: name of the array of the samples' identities; None for "ids", if there is one.

        Raises:
            DataError: two samples have the same identity.
        """
        identities = None
        if ids is not None or {"ids", "id"} & set(self.columns):
            identities = self.vector(ids or "ids", len(z))
            values, counts = np.unique(identities, return_counts=True)
            if len(values) < len(z):
                again = printable(str(values[int(counts.argmax())]))
                raise DataError(f"{place(self.path)}: id '{again}' stands there twice, expected one per sample")
        return EmbeddingSet(z, labels, np.arange(len(z)), identities, self.path)

    def labelled(
        self, embeddings: str = "embeddings", labels: str = "labels", ids: str | None = None
    ) -> tuple[list[str], EmbeddingSet]:
        """Return the names of the classes, and all embeddings with their labels.

        Args:
            embeddings, labels, ids: names of the arrays.

        Raises:
            DataError: arrays that are missing or do not fit.
        """
        z = self.matrix(embeddings)
        class_names, positions = classes_of(self.vector(labels, len(z)).tolist(), place(self.path))
        return class_names, self.samples(z, positions, ids)

    def unlabelled(self) -> EmbeddingSet:
        """Return all embeddings without their labels."""
        z = self.matrix("embeddings")
        return self.samples(z, np.zeros(len(z), dtype=np.int64))


def read_table(path: Path) -> Table:
    """Open a file of arrays; its ending says the format.

    Args:
        path: an .npz or .parquet file.

    Returns:
        The arrays, none of which is read yet.

    Raises:
        UsageError: another ending, or a package that is needed and missing.
        DataError: the file is damaged or not what its ending says.
    """
    reader = READERS.get(path.suffix.lower())
    if reader is None:
        raise unknown_name(f"kind of file of embeddings in {place(path)}", path.suffix or "no ending", READERS)
    with readable(path):
        return reader(path)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Within the block, turn every error of a parser into DataError with the file's name."""
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


def _parquet(path: Path) -> Table:
    parquet = import_pyarrow().parquet
    columns = parquet.read_schema(path).names
    return Table(path, columns, lambda name: _column(parquet.read_table(path, columns=[name])[name], path, name))


def import_pyarrow() -> Any:
    """Import pyarrow with what reads Parquet files; UsageError if it is missing."""
    try:
        import pyarrow
        import pyarrow.compute
        import pyarrow.parquet
    except ImportError:
        raise UsageError("Parquet files need the package pyarrow: pip install 'cifnet_pl[tables]'") from None
    return pyarrow


def _column(column: Any, path: Path, name: str) -> np.ndarray:
    """Return a column of numbers or texts as (n,), one of lists of equal length as (n, d)."""
    pyarrow = import_pyarrow()
    kind = column.type
    if not (pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind)):
        # NumPy's integers have no missing ones: it would make floats of all.
        return np.asarray(np.array(column.to_pylist(), dtype=object) if column.null_count else column.to_numpy())
    whole = column.combine_chunks()
    whole = whole.chunk(0) if isinstance(whole, pyarrow.ChunkedArray) else whole
    numbers, rows = whole.flatten(), len(whole)
    lengths = set(pyarrow.compute.list_value_length(whole).to_pylist())
    if len(lengths) > 1 or numbers.null_count or not pyarrow.types.is_floating(numbers.type):
        raise DataError(
            f"{place(path)}: '{printable(name)}' has rows without numbers, of other lengths or of other things than "
            "floats: every row must have as many floats"
        )
    return np.asarray(numbers.to_numpy()).reshape(rows, -1)


READERS: dict[str, Callable[[Path], Table]] = {
    ".npz": _npz,
    ".parquet": _parquet,
}
"""Ending of a file's name → function that opens it."""


WHAT = "a file of embeddings (.npz or .parquet) with (n, d) embeddings and (n,) labels"
TEST_WORDS = {*TEST, "1", "true"}
"""What a column ``split`` calls the samples that are held out."""


class EmbeddingSet(SampleSet):
    """Rows of an array of embeddings, read from its memory-mapped file when they are asked for.

    Args:
        embeddings: (N, d) array of floats.
        labels: (n,) class position of each sample.
        rows: (n,) row of each sample in ``embeddings``.
        ids: (N,) identity of each row, or None for its number.
        file: where the array comes from, for messages.
    """

    def __init__(
        self, embeddings: np.ndarray, labels: np.ndarray, rows: np.ndarray, ids: np.ndarray | None, file: Path
    ):
        self.embeddings, self.labels, self.rows, self.ids, self.file = embeddings, labels, rows, ids, file
        self.names = [str(name) for name in (rows if ids is None else ids[rows]).tolist()]

    @property
    def root(self) -> Path:
        """The file, below which the samples are, as photos are below a folder."""
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
        where = self.rows[rows]
        steps = np.diff(where)
        # A view of consecutive rows is read from the file in one piece.
        split = (
            self.embeddings[where[0] : where[-1] + 1] if len(where) and (steps == 1).all() else self.embeddings[where]
        )
        with np.errstate(over="ignore"):  # what is too large becomes infinity
            z = torch.from_numpy(np.array(split, dtype=np.float32, order="C"))
        broken = where[(~torch.isfinite(z)).any(dim=1).numpy()].tolist()
        if broken:
            listed = ", ".join(map(str, broken[:5])) + (f", … ({len(broken)} in this part)" if len(broken) > 5 else "")
            raise DataError(
                f"{place(self.file)}: no finite float32 in row{'s' * (len(broken) > 1)} {listed} of the embeddings "
                "(counted from 0): repair or remove them"
            )
        return z

    def place(self, index: int) -> str:
        """Return the file and the sample's name in it."""
        return f"{place(self.file)}#{printable(self.names[index])}"

    def subset(self, rows: np.ndarray) -> EmbeddingSet:
        """Return the samples at positions ``rows``."""
        return EmbeddingSet(self.embeddings, self.labels[rows], self.rows[rows], self.ids, self.file)

    def content_hash(self, index: int) -> int:
        """Return the hash of the embedding's bytes."""
        return content_hash(np.ascontiguousarray(self.embeddings[self.rows[index]]).tobytes())


def embeddings(options: SourceOptions) -> Source:
    """Read embeddings and their labels from one file.

    The file has ``embeddings`` (n, d) and ``labels`` (n,), or ``train_embeddings``, ``train_labels``,
    ``test_embeddings`` and ``test_labels``. Labels are integers or names. Optional: ``ids`` (n,), the identity of each
    sample, and ``split`` (n,), "train" or "test". Without a test part a share of each class is held back by seed.

    Options:
        embeddings, labels, ids, split: names of the columns or arrays, where they have other ones.

    Raises:
        UsageError: no file was given.
        DataError: a file that is missing, damaged or of another kind; columns that are missing or do not fit.
    """
    table = open_table(options.root)
    names = {key: str(value) for key, value in options.own.items()}
    split = names.pop("split", "split" if "split" in table.columns else None)
    if "embeddings" not in names and "train_embeddings" in table.columns:
        return _two_parts(table, options)
    class_names, whole = table.labelled(**names)
    held = None
    if split is not None:
        held = np.array([str(word).lower() in TEST_WORDS for word in table.vector(split, len(whole))], dtype=bool)
    return in_parts(class_names, whole, held, options, place(table.path))


def _two_parts(table: Table, options: SourceOptions) -> Source:
    """Build the source from separate arrays for training and testing."""
    parts = [split for split in ("train", "test") if f"{split}_embeddings" in table.columns]
    arrays = [table.matrix(f"{split}_embeddings") for split in parts]
    if len({z.shape[1] for z in arrays}) > 1:
        raise DataError(f"{place(table.path)}: train_embeddings and test_embeddings have different widths")
    vectors = [table.vector(f"{split}_labels", len(z)) for split, z in zip(parts, arrays, strict=True)]
    class_names, labels = classes_of(np.concatenate(vectors).tolist(), place(table.path))
    ends = np.cumsum([len(vector) for vector in vectors])[:-1]
    sets = [
        EmbeddingSet(z, positions, np.arange(len(z)), None, table.path)
        for z, positions in zip(arrays, np.split(labels, ends), strict=True)
    ]
    if len(sets) == 1:
        return split_by_seed(class_names, sets[0], options)
    return checked(Source(class_names, sets[0], sets[1]), place(table.path))


def open_table(root: Path | None) -> Table:
    """Open a file of embeddings.

    Raises:
        UsageError: no file was given.
        DataError: there is no such file, or it is damaged or of another kind.
    """
    if root is None:
        raise UsageError(f"no file was given: set --data.root to {WHAT}")
    path = expanded(root)
    if not path.is_file():
        raise DataError(f"no file {place(path)}: expected {WHAT}")
    return read_table(path)


def embeddings_width(root: Any, options: dict[str, Any] | None = None) -> int:
    """Return the width d of the embeddings in a file, without reading them.

    Args:
        root: the file.
        options: of the source :func:`embeddings`.
    """
    table = open_table(Path(root) if root else None)
    name = str(
        (options or {}).get("embeddings") or ("embeddings" if "embeddings" in table.columns else "train_embeddings")
    )
    return int(table.matrix(name if name in table.columns else "embeddings").shape[1])
