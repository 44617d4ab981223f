"""Read what a run answered for each test image after its last task, from ``predictions.parquet``."""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from cifnet_pl.utilities.errors import DataError

FILE = "predictions.parquet"
NOT_INSTALLED = "no run is compared over its test images: that needs pyarrow (pip install 'cifnet_pl[tables]')"


def answers_of(folder: Path) -> Path | None:
    """Return the file with the predictions of a run; None if it did not keep them.

    Args:
        folder: of the run.

    Raises:
        DataError: the file cannot be read; the sentence says why.
    """
    path = folder / FILE
    if not path.is_file():
        return None
    if find_spec("pyarrow") is None:
        raise DataError(NOT_INSTALLED)
    right_answers(path)
    return path


@lru_cache(maxsize=64)
def right_answers(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return which test images a run named right after its last task.

    Args:
        path: its ``predictions.parquet``.

    Returns:
        (n,) identities of the images, class and name, sorted; (n,) bool.

    Raises:
        DataError: the file is damaged.
    """
    table = _last_task(path)
    names = [f"{label}\0{image}" for label, image in zip(table["label"], table["image"], strict=True)]
    identities = np.array(names, dtype=np.str_)
    right = np.array([a == b for a, b in zip(table["label"], table["top_1"], strict=True)], dtype=bool)
    order = np.argsort(identities, kind="stable")
    return identities[order], right[order]


def _last_task(path: Path) -> dict[str, list[Any]]:
    """Return the label, the image and first answer of the last task's rows; each task is a row group."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            tables = (file.read_row_group(i) for i in reversed(range(file.num_row_groups)))
            table = next((t for t in tables if len(t)), None)
        if table is None:
            return {"label": [], "image": [], "top_1": []}
        last = pc.max(table["task"]).as_py()
        table = table.filter(pc.equal(table["task"], last))
        return {name: table[name].to_pylist() for name in ("label", "image", "top_1")}
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(f"{path} is damaged, so its run is not compared over test images") from error


def paired(a: Path, b: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return whether two runs are right on the test images that both have.

    Args:
        a, b: their ``predictions.parquet``.

    Returns:
        (n,) identities of the images; (n,) bool twice, in the same order.
    """
    ours, theirs = right_answers(a), right_answers(b)
    images, i, j = np.intersect1d(ours[0], theirs[0], assume_unique=False, return_indices=True)
    return images, ours[1][i], theirs[1][j]
