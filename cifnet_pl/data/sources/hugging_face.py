"""Read data sets of the Hugging Face hub, and local files of its formats, with ``datasets``."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from cifnet_pl.data.samples import SampleTable, SourceOptions, joined, table_of
from cifnet_pl.data.sources.folders import find_files
from cifnet_pl.data.sources.tables import lacking
from cifnet_pl.images.files import read_bytes, shown_path
from cifnet_pl.utilities.errors import DataError, UsageError, explained
from cifnet_pl.utilities.names import Split, split_of
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import printable

USUAL = {
    "image": ("image", "img", "picture"),
    "label": ("label", "labels", "fine_label", "class", "target"),
}
"""Names of columns that are tried where the features do not tell which is which."""

FEATURES = {"image": "Image", "label": "ClassLabel"}
"""Meaning of a column → the feature of ``datasets`` that has it."""


def hugging_face(name: str, options: SourceOptions) -> SampleTable:
    """Read a data set of images: ``hf:NAME`` of the hub, or ``hf`` with a local folder or file.

    Data on this machine is used without the network. Other data is fetched only with
    ``--data.download true``.

    Args:
        name: name of the data set; "" for the root.
        options: options of the source.

    Options:
        image, label: names of the columns; found by their features and names if not given.
        train, test: names of the splits. A test split without labels is not used.
        config: name of the configuration, of a data set with several.

    Raises:
        UsageError: neither a name nor a folder, or a package that is missing.
        DataError: a data set, split or column that is not there.
    """
    if name:
        where = f"hf:{printable(name)}"
    else:
        where = printable(str(options.root))
    parts = _load(name, options, where)
    splits = _named_splits(parts, options, where)
    train = parts[splits["train"]]
    image = _column(train, "image", options, where)
    label = _column(train, "label", options, where)
    class_names = getattr(train.features[label], "names", None)
    samples = {}
    notes = []
    for split, given in splits.items():
        part = parts[given]
        labels = []
        if label in part.column_names:
            labels = part.select_columns([label])[label]
        # Hubs give -1 or nothing to the images of a competition.
        if split != "train" and set(labels) <= {None, -1}:
            notes.append(
                f"note: split {printable(given)} of {where} has no labels: it is not used"
            )
            continue
        names = [f"{given}/{i}" for i in range(len(part))]
        samples[split] = SampleTable(
            table_of(name=names, label=labels),
            _row_reader(part, image, where),
            class_names=class_names,
            where=where,
            sequential=True,
        )
    whole = joined(list(samples.values()), list(samples))
    return replace(whole, notes=tuple(notes))


def _load(name: str, options: SourceOptions, where: str) -> dict[str, Any]:
    """Return the splits by name."""
    datasets = optional("datasets", "data source hf", "hf")
    if not name and options.root is None:
        raise UsageError(
            "no data set was given: --data.source hf:NAME, or hf with --data.root FOLDER"
        )
    config = options.own.get("config")
    hint = ""
    if name and not options.download:
        hint = "; allow the download with --data.download true"
    with (
        network(options.download),
        explained(DataError, f"cannot load {where}", end=hint),
    ):
        if not name:
            assert options.root is not None
            return dict(_local(datasets, options.root, config))
        cache = options.root and str(options.root)
        # The number of rows, and the checksums of files where the set records them.
        found = datasets.load_dataset(
            name, config, cache_dir=cache, verification_mode="all_checks"
        )
        return dict(found)


def _local(datasets: Any, root: Path, config: Any) -> Any:
    if (root / "dataset_dict.json").is_file():
        return datasets.load_from_disk(str(root))
    if (root / "state.json").is_file():
        return {"train": datasets.load_from_disk(str(root))}
    found = find_files(root, "**/*", (".parquet",))
    # A folder with a card says itself which files are of which split.
    has_card = (root / "README.md").is_file() or config is not None
    if has_card or (not found.files and root.is_dir()):
        return datasets.load_dataset(str(root), config)
    if not found.files:
        raise DataError(
            f"no data set at {shown_path(root)}: expected a folder or a Parquet file"
        )
    files = defaultdict[str, list[str]](list)
    for file, split in zip_longest(found.files, found.splits, fillvalue="train"):
        files[str(split)].append(str(file))
    return datasets.load_dataset("parquet", data_files=files)


@contextmanager
def network(allowed: bool) -> Iterator[None]:
    """Within the block, let the packages use the network or not, and hide their progress bars."""
    import datasets
    import huggingface_hub.constants as hub

    before = (datasets.config.HF_HUB_OFFLINE, hub.HF_HUB_OFFLINE)
    datasets.disable_progress_bars()
    if not allowed:
        datasets.config.HF_HUB_OFFLINE = True
        hub.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE, hub.HF_HUB_OFFLINE = before


def _named_splits(
    parts: dict[str, Any],
    options: SourceOptions,
    where: str,
) -> dict[Split, str]:
    """Return the names of the splits: those that options give, else by what they are called.

    Raises:
        DataError: there is no training split, or not the one that an option gives.
    """
    splits: dict[Split, str] = {}
    for name in parts:
        split = split_of(name)
        if split is not None:
            splits.setdefault(split, name)
    splits.setdefault("train", "train")
    given: tuple[Split, ...] = ("train", "test")
    for split in given:
        if split in options.own:
            splits[split] = str(options.own[split])
    for name in splits.values():
        if name not in parts:
            remedy = ": name one with --data.options.train or test"
            raise lacking(where, f"split '{printable(name)}'", parts, remedy)
    return splits


def _column(dataset: Any, meaning: str, options: SourceOptions, where: str) -> str:
    """Return the name of the column of a meaning: "image" or "label".

    Raises:
        DataError: no such column; names those that exist.
    """
    kinds = {name: type(kind).__name__ for name, kind in dataset.features.items()}
    candidates: list[str] = [name for name in kinds if kinds[name] == FEATURES[meaning]]
    candidates += USUAL[meaning]
    if meaning in options.own:
        candidates = [str(options.own[meaning])]
    for name in candidates:
        if name in kinds:
            return name
    remedy = f": name it with --data.options.{meaning}"
    raise lacking(where, f"column '{printable(candidates[0])}'", kinds, remedy)


def _row_reader(part: Any, column: str, where: str) -> Callable[[int], bytes]:
    """Return a function that reads the image of a row as the bytes of its file.

    Args:
        part: data set of ``datasets``.
        column: name of the column of images, or of their paths.
        where: the data, for messages.

    Raises:
        DataError: the column has something else.
    """
    from datasets import Image

    with explained(DataError, f"{where}: '{printable(column)}' has no images"):
        rows = part.select_columns([column]).cast_column(column, Image(decode=False))

    def read(row: int) -> bytes:
        image = rows[row][column]
        return image["bytes"] or read_bytes(Path(image["path"]))

    return read
