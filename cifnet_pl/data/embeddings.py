"""Read embeddings that were computed elsewhere as a data source: NumPy, safetensors, Parquet and Arrow files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.data.embedding_files import Table, read_table
from cifnet_pl.data.image_sets import SampleSet, Source, SourceOptions, expanded, place, split_by_seed
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import printable

WHAT = "a file of embeddings (.npz, .safetensors, .parquet or .arrow) with (n, d) embeddings and (n,) labels"
TEST_WORDS = {"test", "val", "validation", "valid", "eval", "1", "true"}
"""What a column ``split`` calls the samples that are held out."""

AT_ONCE = 10_000
"""Rows that are looked through at a time."""


class Numbers(Sequence[str]):
    """The names ``"0"``, ``"1"``, … of given positions, without a string object for each."""

    def __init__(self, rows: np.ndarray):
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Numbers: ...
    def __getitem__(self, index: int | slice) -> str | Numbers:
        return Numbers(self.rows[index]) if isinstance(index, slice) else str(self.rows[index])


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
        self.names: Sequence[str] = Numbers(rows) if ids is None else [str(name) for name in ids[rows]]

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
        if not torch.isfinite(z).all():
            raise DataError(self._what_is_not_finite())
        return z

    def _what_is_not_finite(self) -> str:
        """Name the rows of the whole file that are no numbers in float32, so that all are repaired at once."""
        broken, numbers = [], True
        for start in range(0, len(self.embeddings), AT_ONCE):
            part = self.embeddings[start : start + AT_ONCE]
            with np.errstate(over="ignore"):
                rows = np.flatnonzero(~np.isfinite(part.astype(np.float32)).all(axis=1))
            numbers &= bool(np.isfinite(part[rows]).all())
            broken += (start + rows).tolist()
        listed = ", ".join(map(str, broken[:5])) + (f", … ({len(broken)} in all)" if len(broken) > 5 else "")
        what = "a number too large for float32" if numbers else "NaN or infinity"
        return (
            f"{place(self.file)}: {what} in row{'s' * (len(broken) > 1)} {listed} of the embeddings (counted from 0): "
            f"repair or remove {'it' if len(broken) == 1 else 'them'}"
        )

    def place(self, index: int) -> str:
        """Return the file and the sample's name in it."""
        return f"{place(self.file)}#{printable(self.names[index])}"

    def subset(self, rows: np.ndarray) -> EmbeddingSet:
        """Return the samples at positions ``rows``."""
        return EmbeddingSet(self.embeddings, self.labels[rows], self.rows[rows], self.ids, self.file)

    def content(self, index: int) -> bytes:
        """Return the bytes of the embedding."""
        return np.ascontiguousarray(self.embeddings[self.rows[index]]).tobytes()


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
    table = read_table(embeddings_file(options))
    names = {key: str(value) for key, value in options.own.items()}
    if "embeddings" not in names and "train_embeddings" in table.columns:
        return _two_parts(table, options)
    z = table.matrix(names.get("embeddings", "embeddings"))
    class_names, labels = table.classes([table.vector(names.get("labels", "labels"), len(z))])
    ids = table.ids(names.get("ids"), len(z))
    whole = EmbeddingSet(z, labels[0], np.arange(len(z)), ids, table.path)
    split = names.get("split", "split" if "split" in table.columns else None)
    if split is None:
        return split_by_seed(class_names, whole, options)
    held = np.array([str(word).lower() in TEST_WORDS for word in table.vector(split, len(z))], dtype=bool)
    return _checked(class_names, whole.subset(np.flatnonzero(~held)), whole.subset(np.flatnonzero(held)), table)


def _two_parts(table: Table, options: SourceOptions) -> Source:
    """Build the source from separate arrays for training and testing."""
    parts = [split for split in ("train", "test") if f"{split}_embeddings" in table.columns]
    arrays = [table.matrix(f"{split}_embeddings") for split in parts]
    if len({z.shape[1] for z in arrays}) > 1:
        raise DataError(f"{place(table.path)}: train_embeddings and test_embeddings have different widths")
    vectors = [table.vector(f"{split}_labels", len(z)) for split, z in zip(parts, arrays, strict=True)]
    class_names, labels = table.classes(vectors)
    sets = [
        EmbeddingSet(z, label, np.arange(len(z)), None, table.path) for z, label in zip(arrays, labels, strict=True)
    ]
    if len(sets) == 1:
        return split_by_seed(class_names, sets[0], options)
    return _checked(class_names, sets[0], sets[1], table)


def _checked(class_names: list[str], train: EmbeddingSet, val: EmbeddingSet, table: Table) -> Source:
    """Return the source; DataError if a class cannot be learned, or nothing is held out."""
    if not len(val):
        raise DataError(f"{place(table.path)}: no sample is in the test part, expected some with split 'test'")
    missing = [name for label, name in enumerate(class_names) if label not in train.rows_of]
    if missing:
        raise DataError(
            f"{place(table.path)}: class '{printable(missing[0])}' has test samples but none for training: add some, "
            "or take the class out"
        )
    return Source(class_names, train, val)


def unlabelled(path: Path) -> EmbeddingSet:
    """Return the embeddings of a file without their labels.

    Raises:
        UsageError, DataError: as :func:`embeddings`.
    """
    table = read_table(embeddings_file(SourceOptions(path)))
    z = table.matrix("embeddings")
    rows = np.arange(len(z))
    return EmbeddingSet(z, np.zeros(len(z), dtype=np.int64), rows, table.ids(None, len(z)), path)


def labelled(path: Path) -> tuple[list[str], EmbeddingSet]:
    """Return the names of the classes, and all embeddings of a file with their labels.

    Raises:
        UsageError, DataError: as :func:`embeddings`.
    """
    table = read_table(embeddings_file(SourceOptions(path)))
    z = table.matrix("embeddings")
    class_names, (labels,) = table.classes([table.vector("labels", len(z))])
    return class_names, EmbeddingSet(z, labels, np.arange(len(z)), table.ids(None, len(z)), path)


def embeddings_file(options: SourceOptions) -> Path:
    """Return the file of embeddings that ``--data.root`` names.

    Raises:
        UsageError: no file was given.
        DataError: there is no such file.
    """
    if options.root is None:
        raise UsageError(f"no file was given: set --data.root to {WHAT}")
    path = expanded(options.root)
    if not path.is_file():
        raise DataError(f"no file {place(path)}: expected {WHAT}")
    return path


def embeddings_width(root: Any, options: dict[str, Any] | None = None) -> int:
    """Return the width d of the embeddings in a file, without reading them.

    Args:
        root: the file.
        options: of the source :func:`embeddings`.
    """
    table = read_table(embeddings_file(SourceOptions(Path(root) if root else None)))
    name = str(
        (options or {}).get("embeddings") or ("embeddings" if "embeddings" in table.columns else "train_embeddings")
    )
    return int(table.matrix(name if name in table.columns else "embeddings").shape[1])
