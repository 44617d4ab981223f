"""Read some images of a batch, one after the other, and write their squares side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cifnet_pl.images.image import EncodedImage, ImageLike, Look, UnreadableImage

LEFT_OUT = "left out"
"""Why an image that was not wanted has no pixels."""

GivenImage = ImageLike | UnreadableImage
"""An image, or why there is none."""

Skip = Callable[[int, int], bool]
"""Position and content hash of an image → whether it is not decoded."""


class SliceRequest(NamedTuple):
    """Images that one thread reads.

    Attributes:
        images: the images.
        crop_ratio: share of the short side that is kept.
        look: what is wanted of each image besides its pixels; None for nothing.
    """

    images: Sequence[GivenImage]
    crop_ratio: float
    look: Callable[[EncodedImage], Look] | None


class ReadResult(NamedTuple):
    """Result of reading an image.

    Attributes:
        reason: why it has no pixels, or None.
        look: what was wanted of it besides its pixels; None if it could not be read.
    """

    reason: str | None
    look: Look | None


def read_slice(
    request: SliceRequest, pixels: np.ndarray, skip: Skip | None = None
) -> list[ReadResult]:
    """Read images, in order.

    Args:
        request: the images.
        pixels: (n, s, s, 3) uint8, gets their squares.
        skip: whether the image of a position in the request and a hash is not decoded; ``LEFT_OUT``
            is then its reason.
    """
    results = []
    for position, given in enumerate(request.images):
        try:
            result = _read(request, position, given, pixels[position], skip)
        except UnreadableImage as error:
            result = ReadResult(str(error), None)
        results.append(result)
    return results


def _read(
    request: SliceRequest,
    position: int,
    given: GivenImage,
    pixels: np.ndarray,
    skip: Skip | None,
) -> ReadResult:
    if isinstance(given, UnreadableImage):
        raise given
    image = EncodedImage(given)
    if skip is not None and skip(position, image.hash):
        return ReadResult(LEFT_OUT, image.identify())
    pixels[:] = image.square(len(pixels), request.crop_ratio)
    if request.look is None:
        return ReadResult(None, None)
    return ReadResult(None, request.look(image))
