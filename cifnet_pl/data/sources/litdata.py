"""Read LitData's streaming format, which Lightning itself writes, as a data source."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cifnet_pl.data.sets import TEST, TRAIN, ArraySet, Source, SourceOptions, classes_of, in_parts, picture
from cifnet_pl.photos.files import expanded
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import one_line, printable

USUAL = {"image": ("image", "img", "jpg", "png"), "label": ("label", "cls", "class", "target")}
"""Keys of samples that are tried."""


def litdata(options: SourceOptions) -> Source:
    """Read what ``litdata.optimize`` wrote; ``--data.root`` is its folder, or has folders ``train`` and ``test``.

    A sample is a dictionary with an image (best as the bytes of its file, which are embedded as they are) and a label,
    or a pair of both. Samples are read in the order of the chunks. Without a test part a share is held back by seed.

    Options:
        image, label: keys of the dictionary, where they have other names.

    Raises:
        UsageError: no folder, or a package that is missing.
        DataError: a folder that LitData did not write, or a sample without an image or a label.
    """
    if options.root is None:
        raise UsageError("no folder was given: set --data.root to what litdata.optimize wrote")
    root, where = expanded(options.root), printable(str(options.root))
    parts = [root] if (root / "index.json").is_file() else [_part(root, split_names) for split_names in (TRAIN, TEST)]
    folders = [folder for folder in parts if folder is not None]
    if parts[0] is None:
        raise DataError(f"{where} has no index.json, and no train/index.json: litdata did not write it")
    reader = ChunkReader([str(folder) for folder in folders], {word: options.own.get(word) for word in USUAL})
    class_names, labels = classes_of([reader.label(row) for row in range(sum(reader.sizes))], where)
    names = [f"{folder.name}/{i}" for folder, size in zip(folders, reader.sizes, strict=True) for i in range(size)]
    held = np.arange(len(names)) >= reader.sizes[0] if len(folders) > 1 else None
    whole = ArraySet(reader, labels, names, where=f"{where}#", sequential=True)
    return in_parts(class_names, whole, held, options, where)


def _part(root: Path, names: tuple[str, ...]) -> Path | None:
    return next((root / word for word in names if (root / word / "index.json").is_file()), None)


class ChunkReader:
    """Read one sample of several folders of chunks; an object, so that spawned workers can receive it."""

    def __init__(self, folders: list[str], keys: dict[str, Any]):
        self.folders, self.keys = folders, keys
        self.sizes = [len(_dataset(folder, os.getpid())) for folder in folders]

    def __call__(self, row: int) -> Image.Image | bytes:
        """Return an image, as the bytes of its file where the sample has those.

        Raises:
            DataError: the sample has no image, or a chunk is damaged.
        """
        image = self._entry(row, "image")
        if isinstance(image, bytes | bytearray):
            return bytes(image)
        return picture(image, self._where(row))

    def label(self, row: int) -> Any:
        """Return a sample's label."""
        label = self._entry(row, "label")
        return label.item() if hasattr(label, "item") else label

    def _where(self, row: int) -> str:
        return f"{printable(self.folders[0])}: sample {row}"

    def _entry(self, row: int, kind: str) -> Any:
        sample = self._sample(row)
        if isinstance(sample, list | tuple) and len(sample) == 2:
            return sample[kind == "label"]
        if not isinstance(sample, dict):
            raise DataError(f"{self._where(row)} is a {type(sample).__name__}, expected a dictionary or a pair")
        key = self.keys[kind] or next((name for name in USUAL[kind] if name in sample), None)
        if key not in sample:
            listed = ", ".join(printable(str(name)) for name in sample)
            raise DataError(f"{self._where(row)} has no {kind}, it has {listed}: name it with --data.options.{kind}")
        return sample[key]

    def _sample(self, row: int) -> Any:
        first = np.cumsum([0, *self.sizes])
        folder = int(np.searchsorted(first, row, side="right")) - 1
        try:
            return _dataset(self.folders[folder], os.getpid())[row - int(first[folder])]
        except Exception as error:  # LitData's reader fails in its own ways on damaged chunks
            raise DataError(f"cannot read {self._where(row)}: {one_line(error)}") from error


@lru_cache(maxsize=4)
def _dataset(folder: str, process: int) -> Any:
    """Open a folder of chunks, anew in each process."""
    try:
        from litdata import StreamingDataset
    except ImportError:
        raise UsageError("data source litdata needs the package litdata: pip install 'cifnet_pl[litdata]'") from None
    return StreamingDataset(folder, shuffle=False)
