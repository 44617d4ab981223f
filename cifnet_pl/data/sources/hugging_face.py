"""Read data sets of the Hugging Face hub, and local Parquet and image folders, with the package
``datasets``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from cifnet_pl.data.sets import TEST, TRAIN, ArraySet, Source, SourceOptions, classes_of, in_parts
from cifnet_pl.images.files import expanded
from cifnet_pl.utilities.errors import DataError, UsageError, explained
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import printable

USUAL = {
    "image": ("image", "img", "image", "picture"),
    "label": ("label", "labels", "fine_label", "class", "target"),
}
"""Names of columns that are tried where their kinds do not tell which is which."""

KINDS = {"image": "Image", "label": "ClassLabel"}


def hugging_face(name: str, options: SourceOptions) -> Source:
    """Read a data set of images: ``hf:NAME`` from the hub, or ``hf`` with a local folder or Parquet
    file as the root.

    What is on this machine is used without the network; anything else is fetched only with
    ``--data.download true``.

    Args:
        name: of the data set; "" for the root.
        options: of the source.

    Options:
        image, label: names of the columns; found by their kind and name if they are not given.
        train, test: names of the splits; if there is none for testing, a share of each class is
            held out by seed.
        config: of a data set with several.

    Raises:
        UsageError: neither a name nor a folder, or a package that is missing.
        DataError: a data set, split or column that is not there.
    """
    if name:
        where = f"hf:{printable(name)}"
    else:
        where = printable(str(options.root))
    parts = _load(name, options, where)
    splits = [(word, _split(parts, word, options, where)) for word in ("train", "test")]
    chosen = [split for _, split in splits if split is not None]
    sets = [parts[split] for split in chosen]
    image, label = (_column(sets[0], kind, options, where) for kind in ("image", "label"))
    sizes = [len(dataset) for dataset in sets]
    labels = [value for dataset in sets for value in dataset.select_columns([label])[label]]
    names = [f"{split}/{i}" for split, size in zip(chosen, sizes, strict=True) for i in range(size)]
    described = f"{where}: column '{printable(label)}'"
    class_names, positions = classes_of(
        labels, described, getattr(sets[0].features[label], "names", None)
    )
    whole = ArraySet(
        row_reader(sets, image, where), positions, names, where=f"{where}#", sequential=True
    )
    held = np.arange(len(names)) >= sizes[0] if len(sets) > 1 else None
    return in_parts(class_names, whole, held, options, where)


def _load(name: str, options: SourceOptions, where: str) -> dict[str, Any]:
    """Return the splits by name."""
    datasets = optional("datasets", "data source hf", "hf")
    if not name and options.root is None:
        raise UsageError(
            "no data set was given: --data.source hf:NAME, or hf with --data.root FOLDER"
        )
    config = options.own.get("config")
    if options.download or not name:
        hint = ""
    else:
        hint = "; allow the download with --data.download true"
    with network(options.download), explained(DataError, f"cannot load {where}", end=hint):
        if name:
            cache = str(expanded(options.root)) if options.root is not None else None
            return dict(datasets.load_dataset(name, config, cache_dir=cache))
        return dict(_local(datasets, expanded(options.root or Path()), config))


def _local(datasets: Any, root: Path, config: Any) -> Any:
    if not root.exists():
        raise DataError(
            f"no data set at {printable(str(root))}: expected a folder or a Parquet file"
        )
    if root.is_file():
        return datasets.load_dataset("parquet", data_files={"train": str(root)})
    if (root / "dataset_dict.json").is_file() or (root / "state.json").is_file():
        dataset = datasets.load_from_disk(str(root))
        if isinstance(dataset, dict):
            return dataset
        return {"train": dataset}
    return datasets.load_dataset(str(root), config)


@contextmanager
def network(allowed: bool) -> Iterator[None]:
    """Within the block, allow the packages to use the network or not, and hide their progress
    bars.
    """
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
    """Return the name of the split for training or testing, or None where there is none for
    testing.
    """
    chosen = options.own.get(kind)
    listed = ", ".join(printable(str(name)) for name in parts)
    if chosen is not None:
        if chosen not in parts:
            raise DataError(f"{where} has no split '{printable(str(chosen))}', it has {listed}")
        return str(chosen)
    split = next((name for name in (TRAIN if kind == "train" else TEST) if name in parts), None)
    if split is None and kind == "train":
        raise DataError(
            f"{where} has no split train, it has {listed}: name one with --data.options.train"
        )
    return split


def _column(dataset: Any, kind: str, options: SourceOptions, where: str) -> str:
    """Return the name of the column of a kind: "image" or "label"."""
    kinds = {name: type(feature).__name__ for name, feature in (dataset.features or {}).items()}
    listed = ", ".join(f"{printable(name)} ({column_kind})" for name, column_kind in kinds.items())
    column = options.own.get(kind)
    if column is not None and column not in kinds:
        raise DataError(f"{where} has no column '{printable(str(column))}', it has {listed}")
    candidates = [name for name, column_kind in kinds.items() if column_kind == KINDS[kind]]
    candidates += [name for name in USUAL[kind] if name in kinds]
    if column is None and not candidates:
        raise DataError(
            f"{where} has no column of {kind}s, it has {listed}: name it with --data.options.{kind}"
        )
    return str(column or candidates[0])


def row_reader(parts: list[Any], column: str, where: str) -> Callable[[int], bytes]:
    """Return a function that reads the image of one row as the bytes of its file; DataError where
    there is none.

    Args:
        parts: data sets of ``datasets``, whose rows are counted one after the other.
        column: of the images.
        where: the data, for messages.
    """
    from datasets import Image, concatenate_datasets

    rows = concatenate_datasets([part.select_columns([column]) for part in parts])
    if type(rows.features[column]).__name__ == "Image":
        rows = rows.cast_column(column, Image(decode=False))

    def read(row: int) -> bytes:
        cell = rows[row][column]
        if isinstance(cell, dict):
            cell = cell.get("bytes") or cell.get("path")
        if isinstance(cell, str) and Path(cell).is_file():
            return Path(cell).read_bytes()
        if not isinstance(cell, bytes):
            raise DataError(
                f"{where}: row {row} of '{printable(column)}' is no image but {type(cell).__name__}"
            )
        return cell

    return read
