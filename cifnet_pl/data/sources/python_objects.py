"""Make a data source of what Python programs hold: arrays of images or embeddings, or a data set of torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from cifnet_pl.data.sets import ArraySet, SampleSet, Source, SourceOptions, checked, classes_of, picture, split_by_seed
from cifnet_pl.data.sources.embeddings import EmbeddingSet
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.text import first_line

EXPECTED = (
    "expected a name, arrays (X, y), a torch Dataset of (image, label), or a pair of these to learn and test with"
)


def source_of(given: Any, options: SourceOptions) -> Source:
    """Return a source of Python objects.

    Args:
        given: arrays (X, y), with X embeddings (n, d) of floats or images (n, h, w, 3) or (n, 3, h, w) of uint8, and
            y (n,) integers or names; a torch ``Dataset`` whose items are (image, label), an image being one of Pillow
            or an array of uint8; or a pair of either, to learn and to test with.
        options: share and seed of what is held back where there is nothing to test with.

    Raises:
        UsageError: something else.
        DataError: labels that do not fit, or a class without a training sample.
    """
    if isinstance(given, Source):
        return given
    parts = list(given) if _is_pair(given) and all(_is_pair(part) or _is_data_set(part) for part in given) else [given]
    read = [_read(part) for part in parts]
    class_names, labels = classes_of([label for y, _, _ in read for label in y], "y", read[0][1])
    positions = np.split(labels, np.cumsum([len(y) for y, _, _ in read])[:-1])
    sets = [make(part) for (_, _, make), part in zip(read, positions, strict=True)]
    if len(sets) == 1:
        return split_by_seed(class_names, sets[0], options)
    return checked(Source(class_names, sets[0], sets[1]), "the data")


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2


def _is_data_set(given: Any) -> bool:
    return hasattr(given, "__getitem__") and hasattr(given, "__len__") and not hasattr(given, "shape")


Read = tuple[Sequence[Any], Sequence[str] | None, Callable[[np.ndarray], SampleSet]]
"""Labels; names of the labels 0, 1, …, if there are some; and function of class positions (n,) that makes the set."""


def _read(part: Any) -> Read:
    """Look at a pair of arrays or a data set."""
    tensors = getattr(part, "tensors", None)
    part = tensors if tensors is not None and len(tensors) == 2 else part  # of a TensorDataset
    if _is_pair(part):
        x, y = np.asarray(part[0]), np.asarray(part[1])
        if y.shape != x.shape[:1]:
            raise UsageError(f"X has shape {x.shape} and y {y.shape}, expected a label for each sample: {EXPECTED}")
        if x.ndim == 2 and x.dtype.kind == "f":
            return y.tolist(), None, lambda labels: EmbeddingSet(x, labels, np.arange(len(x)), None, Path("X"))
        if x.dtype != np.uint8 or x.ndim not in (3, 4):
            raise UsageError(f"X has shape {x.shape} and dtype {x.dtype}, expected (n, d) floats or (n, h, w, 3) uint8")
        return y.tolist(), None, partial(ArraySet, partial(_of_array, x))
    if not _is_data_set(part):
        raise UsageError(f"the data source is a {type(part).__name__}, {EXPECTED}")
    try:
        targets = getattr(part, "targets", None)
        given = [part[i][1] for i in range(len(part))] if targets is None else targets
        picture(part[0][0], "the first item of the data set")
    except (TypeError, IndexError, KeyError) as error:
        raise UsageError(
            f"the data are no pairs of a sample and its label ({first_line(error)}): {EXPECTED}"
        ) from error
    labels = [label.item() if hasattr(label, "item") else label for label in given]
    return labels, getattr(part, "classes", None), partial(ArraySet, partial(_of_item, part))


def _of_array(pixels: np.ndarray, index: int) -> Image.Image:
    return picture(pixels[index], f"X[{index}]")


def _of_item(dataset: Any, index: int) -> Image.Image:
    return picture(dataset[index][0], f"item {index}")
