"""Read what a run answered for each test image after its last task, from ``predictions.parquet``."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from cifnet_pl.utilities.errors import DataError, UsageError

FILE = "predictions.parquet"


def answers_of(folder: Path) -> Path | None:
    """Return the file with the predictions of a run; None if it did not keep them."""
    path = folder / FILE
    return path if path.is_file() else None


@lru_cache(maxsize=64)
def right_answers(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return which test images a run named right after its last task.

    Args:
        path: its ``predictions.parquet``.

    Returns:
        (n,) identities of the images, class and name, sorted; (n,) bool.

    Raises:
        DataError: the file is damaged.
        UsageError: pyarrow is not installed.
    """
    table = _last_task(path)
    names = [f"{label}\0{image}" for label, image in zip(table["label"], table["image"], strict=True)]
    identities = np.array(names, dtype=object)
    right = np.array([a == b for a, b in zip(table["label"], table["top_1"], strict=True)], dtype=bool)
    order = np.argsort(identities.astype(str), kind="stable")
    return identities[order].astype(str), right[order]


def _last_task(path: Path) -> dict[str, list[Any]]:
    """Return the label, the image and first answer of the last task's rows; each task is a row group."""
    try:
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq
    except ImportError:
        raise UsageError("comparing runs over test images needs pyarrow: pip install 'cifnet_pl[tables]'") from None
    try:
        with pq.ParquetFile(path) as file:
            tables = (file.read_row_group(i) for i in reversed(range(file.num_row_groups)))
            table = next((t for t in tables if len(t)), None)
        if table is None:
            return {"label": [], "image": [], "top_1": []}
        last = pc.max(table["task"]).as_py()
        table = table.filter(pc.equal(table["task"], last))
        return {name: table[name].to_pylist() for name in ("label", "image", "top_1")}
    except (pa.ArrowException, OSError, KeyError) as error:
        raise DataError(f"{path} is damaged: {type(error).__name__}") from error


def paired(a: Path, b: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return whether two runs are right on the test images that both have.

    Args:
        a, b: their ``predictions.parquet``.

    Returns:
        (n,) bool twice, in the same order.
    """
    ours, theirs = right_answers(a), right_answers(b)
    _, i, j = np.intersect1d(ours[0], theirs[0], assume_unique=False, return_indices=True)
    return ours[1][i], theirs[1][j]
