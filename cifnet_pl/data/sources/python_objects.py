"""Sources of Python objects: arrays, tensors and torch data sets."""

from functools import partial
from typing import Any, TypeGuard

import numpy as np
from torch import Tensor

from cifnet_pl.data.samples import SampleTable, dataset_image, joined, table_of
from cifnet_pl.images.image import pillow_image
from cifnet_pl.images.reader import iterate_images
from cifnet_pl.utilities.errors import UsageError, explained

EXPECTED = (
    "expected a name, arrays (X, y), a torch Dataset of (image, label), or a pair of these to learn"
    " and test with"
)


def source_of(given: Any) -> SampleTable:
    """Return samples of Python objects.

    Args:
        given: arrays (X, y), with X embeddings (n, d) of floats, images (n, h, w, 3) or (n, 3, h,
            w) of uint8 or a list of images, and y (n,) integers or names; a torch ``Dataset`` whose
            items are (image, label), an image being one of Pillow or an array of uint8; or a pair
            of either, to learn and to test with; or
            :class:`~cifnet_pl.data.samples.SampleTable`.

    Raises:
        UsageError: something else.
    """
    if isinstance(given, SampleTable):
        return given
    if _is_pair(given) and all(_is_pair(part) or _is_data_set(part) for part in given):
        return joined([read_samples(part) for part in given], ["train", "test"])
    return read_samples(given)


def are_embeddings(given: Any) -> TypeGuard[np.ndarray | Tensor]:
    """Whether given samples are embeddings: a matrix of floats."""
    return getattr(given, "ndim", 0) == 2 and "float" in str(given.dtype)


def _is_pair(given: Any) -> bool:
    return isinstance(given, tuple | list) and len(given) == 2


def _is_data_set(given: Any) -> bool:
    is_array = isinstance(given, tuple) or hasattr(given, "shape")
    return not is_array and hasattr(given, "__getitem__") and hasattr(given, "__len__")


def read_samples(part: Any) -> SampleTable:
    """Return the samples of a pair of arrays or of a torch data set.

    The labels of a data set are its ``targets``, or those of all items.

    Raises:
        UsageError: something else.
    """
    arrays = getattr(part, "tensors", part)  # of a TensorDataset
    if _is_pair(arrays):
        return _read_arrays(*arrays)
    if not _is_data_set(part):
        kind = type(part).__name__
        raise UsageError(f"the data source is a {kind}, {EXPECTED}")
    problem = "the data are no pairs of sample and label"
    unfit = (TypeError, IndexError, KeyError)
    with explained(UsageError, problem, *unfit, end=f": {EXPECTED}"):
        targets = getattr(part, "targets", None)
        if targets is None:
            targets = [part[i][1] for i in range(len(part))]
        pillow_image(part[0][0], "the first item of the data set")
    return SampleTable(
        table_of(label=np.asarray(targets).tolist()),
        partial(dataset_image, part),
        class_names=getattr(part, "classes", None),
    )


def _read_arrays(samples: Any, labels: Any) -> SampleTable:
    """Read arrays X and y; X may also be a list of images.

    Raises:
        UsageError: shapes or dtypes that are neither those of images nor those of embeddings.
    """
    y = np.asarray(labels)
    images = None
    # An item of other lists is a row of numbers.
    if isinstance(samples, list | tuple) and np.ndim(samples[0]) != 1:
        images = list(iterate_images(samples))
        samples = range(len(images))
    x = np.asarray(samples)
    if y.shape != x.shape[:1]:
        raise UsageError(
            f"X has shape {x.shape} and y {y.shape}, expected a label for each sample: {EXPECTED}"
        )
    table = table_of(label=y.tolist())
    if images is not None:
        return SampleTable(table, images.__getitem__)
    if are_embeddings(x):
        return SampleTable(table, embeddings=x, where="X")
    if x.dtype != np.uint8 or x.ndim not in (3, 4):
        raise UsageError(
            f"X has shape {x.shape} and dtype {x.dtype}, expected (n, d) floats or (n, h, w, 3)"
            " uint8"
        )
    return SampleTable(table, lambda row: pillow_image(x[row], f"X[{row}]"))
