"""Read data sets of the Hugging Face hub, and local Parquet and image folders, with the package ``datasets``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cifnet_pl.data.encoded_sets import TEST, TRAIN, EncodedSet, classes_of, in_parts
from cifnet_pl.data.hugging_face_streams import Stream, files_mark
from cifnet_pl.data.image_sets import Source, SourceOptions, expanded
from cifnet_pl.utilities.errors import CifnetError, DataError, UsageError
from cifnet_pl.utilities.text import one_line, printable

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
    rows: Rows
    if type(sets[0]).__name__ == "IterableDataset":
        rows, labels, sizes = _streamed(name, options, where, chosen, image, label)
    else:
        rows, sizes = _Table(sets, image), [len(dataset) for dataset in sets]
        labels = [value for dataset in sets for value in dataset.select_columns([label])[label]]
    if None in labels:
        raise DataError(f"{where}: column '{printable(label)}' is empty in row {labels.index(None)} (counted from 0)")
    class_names, positions = classes_of(labels, where, getattr(sets[0].features[label], "names", None))
    names = [f"{split}/{i}" for split, size in zip(chosen, sizes, strict=True) for i in range(size)]
    whole = EncodedSet(RowReader(rows, image, where), positions, names, where=f"{where}#")
    held = np.arange(len(names)) >= sizes[0] if len(sets) > 1 else None
    return in_parts(class_names, whole, held, options, where)


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


class Rows(Protocol):
    """A column of images."""

    def cell(self, row: int) -> Any:
        """Return the cell of a row."""

    def mark(self, row: int) -> str | None:
        """Return a hash that changes with the content of a row, or None where that takes reading it."""


class _Table:
    """A column of data sets in the cache of ``datasets``, one after the other."""

    def __init__(self, parts: list[Any], column: str):
        self.parts, self.column = [_encoded(dataset, column) for dataset in parts], column

    def cell(self, row: int) -> Any:
        position = row
        for dataset in self.parts:
            if position < len(dataset):
                return dataset[position][self.column]
            position -= len(dataset)
        raise IndexError(row)

    def mark(self, row: int) -> None:
        return None


class RowReader:
    """Read the image of one row as the bytes of its file; an object, so that spawned workers can receive it."""

    def __init__(self, rows: Rows, column: str, where: str):
        self.rows, self.column, self.where = rows, column, where
        self.mark = rows.mark

    def __call__(self, row: int) -> bytes:
        """Return the bytes of an image's file.

        Raises:
            DataError: the row holds no image.
        """
        cell = self.rows.cell(row)
        if isinstance(cell, dict):
            cell = cell.get("bytes") or cell.get("path")
        if isinstance(cell, str) and Path(cell).is_file():
            return Path(cell).read_bytes()
        if not isinstance(cell, bytes):
            kind = type(cell).__name__
            raise DataError(f"{self.where}: row {row} of '{printable(self.column)}' is no image but {kind}")
        return cell
