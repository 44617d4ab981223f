"""Read CIFAR-100 as it is handed out: torchvision's own files, the Parquet files of the hub, or class folders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from cifnet_pl.data.sets import ArraySet, Source, SourceOptions, checked, classes_of
from cifnet_pl.data.sources.benchmarks import DEFAULT_ROOT, torchvision_set
from cifnet_pl.data.sources.embeddings import import_pyarrow, readable
from cifnet_pl.data.sources.folders import folder, parts_of
from cifnet_pl.photos.files import expanded, identity, place
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.text import printable

PARQUET = ("train.parquet", "test.parquet")
IMAGE, LABEL = "img", "fine_label"
"""Columns of the Parquet files: {"bytes": content of a PNG file, …}, and the number of its class."""


def cifar100(options: SourceOptions) -> Source:
    """Read CIFAR-100; its classes are in the order of their names, which is that of torchvision's fine labels.

    ``--data.root`` holds ``train.parquet`` and ``test.parquet``, as the Hugging Face hub has them; or class folders in
    ``train`` and ``test``; or else what torchvision fetches.

    Raises:
        UsageError: the Parquet files need a package that is missing.
        DataError: none of the three is there; one Parquet file without the other, damaged, or with other columns.
    """
    root = expanded(options.root or DEFAULT_ROOT)
    files = [root / name for name in PARQUET]
    missing = [file.name for file in files if not file.is_file()]
    if len(missing) == 1:
        raise DataError(f"{place(root)} has no {missing[0]}, which belongs to the other Parquet file: add it")
    if missing:
        return folder(options) if parts_of(root) is not None else torchvision_set("CIFAR100", options)
    train, test = (ParquetImages(file) for file in files)
    class_names, labels = classes_of(train.labels + test.labels, place(root), train.class_names)
    learned, tested = np.split(labels, [len(train.labels)])
    return checked(Source(class_names, train.images(learned), test.images(tested)), place(root))


class ParquetImages:
    """The images of one Parquet file, as the bytes of image files; in memory, and sent to spawned workers as it is.

    Attributes:
        file: where they are from.
        labels: of each image, as the file has it.
        class_names: name of class 0, 1, …, or None where the file does not tell them.

    Raises:
        DataError: the file is damaged, or a column is missing or of another kind.
    """

    def __init__(self, file: Path):
        pyarrow = import_pyarrow()
        self.file = file
        with readable(file):
            self._mark = repr(identity(file))
            schema = pyarrow.parquet.read_schema(file)
            for name in (IMAGE, LABEL):
                if name not in schema.names:
                    listed = ", ".join(map(printable, schema.names))
                    raise DataError(
                        f"{place(file)} has no column {name}, it has {listed}: expected {IMAGE} and {LABEL}, as on the "
                        "Hugging Face hub"
                    )
            kind = schema.field(IMAGE).type
            if not (pyarrow.types.is_struct(kind) and kind.get_field_index("bytes") >= 0):
                raise DataError(f"{place(file)}: column {IMAGE} has {kind}, expected the bytes of image files")
            columns = pyarrow.parquet.read_table(file, columns=[IMAGE, LABEL])
        self._contents = columns[IMAGE]
        self.labels: list[Any] = columns[LABEL].to_pylist()
        about = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        self.class_names: list[str] | None = about.get("info", {}).get("features", {}).get(LABEL, {}).get("names")

    def images(self, labels: np.ndarray) -> ArraySet:
        """Return the images with their class positions (n,)."""
        return ArraySet(self, labels, where=f"{place(self.file)}#")

    def __call__(self, row: int) -> bytes:
        """Return the content of an image's file; DataError if there is none."""
        content: bytes | None = self._contents[row].as_py()["bytes"]
        if content is None:
            raise DataError(f"{place(self.file)}: row {row} of column {IMAGE} (counted from 0) is empty")
        return content

    def mark(self, row: int) -> str:
        """Return a hash that changes with the file, without reading the image."""
        return hashlib.sha256(f"{self._mark}\0{row}".encode()).hexdigest()
