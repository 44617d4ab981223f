"""Tables of images and labels as Hugging Face ``datasets`` writes them."""

from pathlib import Path
from typing import Any

import pytest

from tests.data.layouts import THREE, encoded
from tests.data.tree import COLOURS

datasets = pytest.importorskip("datasets")


def rows(first: int, count: int) -> dict[str, list[Any]]:
    """Columns of a table of images and labels."""
    numbers = range(first, first + count)
    images = [{"bytes": encoded(COLOURS[THREE[i % 3]], i), "path": None} for i in numbers]
    return {"image": images, "label": [i % 3 for i in numbers]}


def features(names: list[str] | None = None) -> Any:
    label = datasets.ClassLabel(names=names) if names else datasets.Value("int64")
    return datasets.Features({"image": datasets.Image(), "label": label})


def in_pieces(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uneven Parquet files of row groups of two, with names of classes and a test part; another column is large."""
    for file, first, count in (("train-0", 0, 1), ("train-1", 1, 9), ("train-2", 10, 2), ("test-0", 60, 3)):
        columns = {**rows(first, count), "notes": ["x" * 10_000] * count}
        kinds = datasets.Features({**features(list(THREE)), "notes": datasets.Value("string")})
        table = datasets.Dataset.from_dict(columns, kinds)
        table.to_parquet(str(root / f"{file}.parquet"), batch_size=2)
