"""Collect the embeddings of all photos of a folder in one array on disk, from the cache where it has them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import torch

from cifnet_pl.data.cache import EmbeddingCache, pipeline_key
from cifnet_pl.data.image_sets import FileSet, Source
from cifnet_pl.model.class_photos import ClassPhotos, Unreadable
from cifnet_pl.model.incremental import IncrementalClassifier
from cifnet_pl.utilities.errors import DataError


@contextmanager
def embeddings_of(
    model: IncrementalClassifier,
    source: Source,
    cache_folder: Path,
    unreadable: list[Unreadable],
    progress: bool = False,
) -> Iterator[tuple[np.ndarray, np.ndarray, list[Path]]]:
    """Embed all photos of both parts of a source; what the cache lacks is added to it.

    Args:
        model: whose backbone embeds.
        source: photos in class folders.
        cache_folder: where embeddings are kept.
        unreadable: photos that cannot be decoded are appended.
        progress: whether to draw a bar on a terminal.

    Yields:
        (n, d) float32 embeddings in a file that is removed afterwards, (n,) int64 labels, and the n files.

    Raises:
        DataError: no photo can be read.
    """
    parts = [("train", cast(FileSet, source.train)), ("val", cast(FileSet, source.val))]
    total = sum(len(files) for _, files in parts)
    if not total:
        raise DataError("there are no photos to audit")
    with TemporaryDirectory(prefix="cifnet-audit-") as folder:
        z = np.memmap(Path(folder) / "z", dtype=np.float32, mode="w+", shape=(total, model.head.in_features))
        labels, places, filled = np.zeros(total, dtype=np.int64), list[Path](), 0
        for name, files in parts:
            engines = dict.fromkeys([model.engine, "torch"])
            keys = [
                pipeline_key(model.backbone, model.image_size, model.crop_ratio, model.precision, engine)
                for engine in engines
            ]
            for rows, embedded in _embedded(model, files, source.class_names, [cache_folder / k / name for k in keys],
                                            unreadable, progress):  # fmt: skip
                end = filled + len(rows)
                z[filled:end], labels[filled:end] = embedded, files.labels[rows]
                places += [files.root / files.names[row] for row in rows]
                filled = end
        if not filled:
            raise DataError("none of the photos can be read: there is nothing to audit")
        yield z[:filled], labels[:filled], places


def _embedded(
    model: IncrementalClassifier,
    files: FileSet,
    names: list[str],
    folders: Sequence[Path],
    unreadable: list[Unreadable],
    progress: bool,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield rows and embeddings, class by class; each class from the first cache that has it."""
    missing = []
    for label, rows in files.rows_of.items():
        for folder in folders:
            cache = EmbeddingCache(files, names, folder)  # a new one each time keeps no earlier class in memory
            if cache.known(rows[:1]).all():
                yield rows, cache.get(rows).numpy()
                break
        else:
            missing.append(label)
    if not missing:
        return
    photos = ClassPhotos(names, files).select(np.isin(files.labels, missing))
    origin = np.flatnonzero(np.isin(files.labels, missing))
    cache = EmbeddingCache(files, names, folders[0])
    cache.known(origin)  # notes what the files are before they are decoded
    for batch, z in photos.embedded(model, "embedding", unreadable, progress):
        rows = origin[batch]
        cache.collect(torch.from_numpy(rows), z)
        yield rows, z.cpu().numpy()
