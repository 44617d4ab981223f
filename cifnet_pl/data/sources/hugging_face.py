"""Read data sets of the Hugging Face hub, and local Parquet and image folders, with the package ``datasets``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cifnet_pl.data.sets import TEST, TRAIN, ArraySet, Source, SourceOptions, classes_of, in_parts
from cifnet_pl.photos.files import expanded, identity
from cifnet_pl.utilities.errors import CifnetError, DataError, UsageError
from cifnet_pl.utilities.text import one_line, printable

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
                    pieces = part.shard(part.num_shards, number).reshard()  # one for each row group
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

    def __call__(self, row: int) -> Any:
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
                pieces = self.files[file].reshard()
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


USUAL = {"image": ("image", "img", "photo", "picture"), "label": ("label", "labels", "fine_label", "class", "target")}
"""Names of columns that are tried where their kinds do not tell which is which."""

KINDS = {"image": "Image", "label": "ClassLabel"}


def hugging_face(name: str, options: SourceOptions) -> Source:
    """Read a data set of images: ``hf:NAME`` from the hub, or ``hf`` with a local folder or Parquet file as the root.

    What is on this machine is used without the network; anything else is fetched only with ``--data.download true``.

    Args:
        name: of the data set; "" for the root.
        options: of the source.

    Options:
        image, label: names of the columns; found by their kind and name if they are not given.
        train, test: names of the splits; if there is none for testing, a share of each class is held back by seed.
        config: of a data set with several.
        streaming: whether to read the set's own files in place of a copy of them in the cache of ``datasets``.

    Raises:
        UsageError: neither a name nor a folder; a package that is missing; streaming that is neither true nor false.
        DataError: a data set, split or column that is not there.
    """
    where = f"hf:{printable(name)}" if name else printable(str(options.root))
    parts = _load(name, options, where)
    splits = [(word, _split(parts, word, options, where)) for word in ("train", "test")]
    chosen = [split for _, split in splits if split is not None]
    sets = [parts[split] for split in chosen]
    image, label = (_column(sets[0], kind, options, where) for kind in ("image", "label"))
    rows: Callable[[int], Any]
    if type(sets[0]).__name__ == "IterableDataset":
        rows, labels, sizes = _streamed(name, options, where, chosen, image, label)
    else:
        rows, sizes = _listed([_encoded(dataset, image) for dataset in sets], image), [len(dataset) for dataset in sets]
        labels = [value for dataset in sets for value in dataset.select_columns([label])[label]]
    names = [f"{split}/{i}" for split, size in zip(chosen, sizes, strict=True) for i in range(size)]
    described = f"{where}: column '{printable(label)}'"
    class_names, positions = classes_of(labels, described, getattr(sets[0].features[label], "names", None))
    whole = ArraySet(RowReader(rows, image, where), positions, names, where=f"{where}#", sequential=True)
    held = np.arange(len(names)) >= sizes[0] if len(sets) > 1 else None
    return in_parts(class_names, whole, held, options, where)


def _listed(parts: list[Any], column: str) -> Callable[[int], Any]:
    """Return a function that reads the cell of a row of data sets in the cache of ``datasets``, one after the other."""
    from datasets import concatenate_datasets

    return partial(_cell, concatenate_datasets(parts), column)


def _cell(dataset: Any, column: str, row: int) -> Any:
    return dataset[row][column]


def _streamed(
    name: str, options: SourceOptions, where: str, splits: list[str], image: str, label: str
) -> tuple[Stream, list[Any], list[int]]:
    """Return the images of the splits, all labels, and the number of rows of each split."""
    parts = {column: _load(name, options, where, column) for column in (image, label)}
    with network(options.download):
        mark = partial(str, _revision(name, where)) if name else partial(files_mark, expanded(options.root or Path()))
        stream = Stream([_encoded(parts[image][split], image) for split in splits], image, mark, where)
        return stream, *stream.count([parts[label][split] for split in splits], label)


def _revision(name: str, where: str) -> str:
    """Return the commit of a data set of the hub."""
    from huggingface_hub import HfApi

    try:
        return str(HfApi().dataset_info(name).sha)
    except Exception as error:  # the package and the network have many kinds of errors
        raise DataError(f"cannot load {where}: {one_line(error)}") from error


def _load(name: str, options: SourceOptions, where: str, column: str | None = None) -> dict[str, Any]:
    """Return the splits by name, with all columns or one."""
    try:
        import datasets
    except ImportError:
        raise UsageError("data source hf needs the package datasets: pip install 'cifnet_pl[hf]'") from None
    if not name and options.root is None:
        raise UsageError("no data set was given: --data.source hf:NAME, or hf with --data.root FOLDER")
    config, streaming = options.own.get("config"), options.own.get("streaming", False)
    if not isinstance(streaming, bool):
        raise UsageError(f"--data.options.streaming is {printable(str(streaming))}, expected true or false")
    with network(options.download):
        try:
            if name:
                cache = str(expanded(options.root)) if options.root is not None else None
                load = partial(datasets.load_dataset, name, config, cache_dir=cache, streaming=streaming)
            else:
                load = partial(_local, datasets, expanded(options.root or Path()), config, streaming)
            dataset = _only(column, load) if column else load()
        except CifnetError:
            raise
        except Exception as error:  # the package and its parsers have many kinds of errors
            hint = "" if options.download or not name else "; allow the download with --data.download true"
            raise DataError(f"cannot load {where}: {one_line(error)}{hint}") from error
    return dict(dataset)


def _only(column: str, load: Callable[..., Any]) -> Any:
    """Load one column, without reading the others where the format allows that."""
    try:
        return load(columns=[column])
    except ValueError:  # Parquet alone has this option
        return {split: dataset.select_columns([column]) for split, dataset in load().items()}


def _local(datasets: Any, root: Path, config: Any, streaming: bool, **options: Any) -> Any:
    if not root.exists():
        raise DataError(f"no data set at {printable(str(root))}: expected a folder or a Parquet file")
    if root.is_file():
        return datasets.load_dataset("parquet", data_files={"train": str(root)}, streaming=streaming, **options)
    if (root / "dataset_dict.json").is_file() or (root / "state.json").is_file():
        dataset = datasets.load_from_disk(str(root))
        return dataset if isinstance(dataset, dict) else {"train": dataset}
    return datasets.load_dataset(str(root), config, streaming=streaming, **options)


@contextmanager
def network(allowed: bool) -> Iterator[None]:
    """Within the block, allow the packages to use the network or not, and hide their progress bars."""
    import datasets
    import huggingface_hub.constants as hub

    loud = datasets.is_progress_bar_enabled()
    before = datasets.config.HF_HUB_OFFLINE, hub.HF_HUB_OFFLINE
    datasets.disable_progress_bars()
    if not allowed:
        datasets.config.HF_HUB_OFFLINE = hub.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, hub.HF_HUB_OFFLINE = before
        if loud:
            datasets.enable_progress_bars()


def _split(parts: dict[str, Any], kind: str, options: SourceOptions, where: str) -> str | None:
    """Return the name of the split for training or testing, or None where there is none for testing."""
    chosen = options.own.get(kind)
    listed = ", ".join(printable(str(name)) for name in parts)
    if chosen is not None:
        if chosen not in parts:
            raise DataError(f"{where} has no split '{printable(str(chosen))}', it has {listed}")
        return str(chosen)
    split = next((name for name in (TRAIN if kind == "train" else TEST) if name in parts), None)
    if split is None and kind == "train":
        raise DataError(f"{where} has no split train, it has {listed}: name one with --data.options.train")
    return split


def _column(dataset: Any, column_kind: str, options: SourceOptions, where: str) -> str:
    """Return the name of the column of images or labels."""
    kinds = {name: type(kind).__name__ for name, kind in (dataset.features or {}).items()}
    listed = ", ".join(f"{printable(name)} ({kind})" for name, kind in kinds.items())
    column = options.own.get(column_kind)
    if column is not None and column not in kinds:
        raise DataError(f"{where} has no column '{printable(str(column))}', it has {listed}")
    candidates = [name for name, kind in kinds.items() if kind == KINDS[column_kind]]
    candidates += [name for name in USUAL[column_kind] if name in kinds]
    if column is None and not candidates:
        raise DataError(
            f"{where} has no column of {column_kind}s, it has {listed}: name it with --data.options.{column_kind}"
        )
    return str(column or candidates[0])


def _encoded(dataset: Any, column: str) -> Any:
    """Return one column of a data set, with images as the bytes of their files."""
    from datasets import Image

    dataset = dataset.select_columns([column])
    is_image = type(dataset.features[column]).__name__ == "Image"
    return dataset.cast_column(column, Image(decode=False)) if is_image else dataset


class RowReader:
    """Read the image of one row as the bytes of its file; an object, so that spawned workers can receive it."""

    def __init__(self, rows: Callable[[int], Any], column: str, where: str):
        self.rows, self.column, self.where = rows, column, where
        self.mark = getattr(rows, "mark", None)

    def __call__(self, row: int) -> bytes:
        """Return the bytes of an image's file.

        Raises:
            DataError: the row holds no image.
        """
        cell = self.rows(row)
        if isinstance(cell, dict):
            cell = cell.get("bytes") or cell.get("path")
        if isinstance(cell, str) and Path(cell).is_file():
            return Path(cell).read_bytes()
        if not isinstance(cell, bytes):
            kind = type(cell).__name__
            raise DataError(f"{self.where}: row {row} of '{printable(self.column)}' is no image but {kind}")
        return cell
