"""Scale images of more than 8 bits a channel, in which cameras store 10, 12 or 14 bits.

Files seldom say how many bits are significant: read as 16 bits these images are nearly black.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image

SIGNIFICANT_BITS = "significant_bits"
"""Key of Pillow's notes on an image for the bits that its file calls significant."""

SENSOR_BITS = (10, 12, 14)
"""Bits of a pixel of cameras."""

OTHER_BYTES = {
    "RGB;16B": "RGB;16L",
    "RGB;16L": "RGB;16B",
    "RGB;16N": "RGB;16B",
    "RGBA;16B": "RGBA;16L",
    "RGBA;16L": "RGBA;16B",
    "RGBA;16N": "RGBA;16B",
    "LA;16B": "RGBA",
}
"""Layout of pixels of 16 bits, of which Pillow keeps the upper bytes → one that keeps the lower.

``N`` is the order of this machine: little-endian on all that Pillow's packages are built for. Read
as four channels of 8 bits, grey and transparency are their upper and lower bytes.
"""


def white_level(largest: float, mode: str, significant: int | None) -> float:
    """Return the value that is white in an image of more than 8 bits.

    Of 16 bits it is the largest value of as many bits as the file calls significant, if no pixel
    exceeds it; else of the smallest number of bits of cameras that no pixel exceeds; else 65535.
    For 32-bit integers and floats white is not defined: it is the smallest of 1 (floats only), 255
    and 65535 that no pixel exceeds, or 65535.

    Args:
        largest: value of a pixel.
        mode: Pillow's mode of the image.
        significant: bits that the file calls significant; None if it does not say.

    Example:
        >>> white_level(900, "I;16", None), white_level(900, "I;16", 12)
        (1023.0, 4095.0)
    """
    if mode == "F":
        levels = [1.0, 255.0]
    elif not mode.startswith("I;16"):
        levels = [255.0]
    else:
        levels = [2.0**bits - 1 for bits in SENSOR_BITS]
        if significant is not None:
            levels = [2.0**significant - 1]
    for level in levels:
        if largest <= level:
            return level
    return 65535.0


def in_eight_bits(values: np.ndarray, mode: str, significant: int | None) -> np.ndarray:
    """Scale the values of an image of more than 8 bits to 0 … 255.

    Args:
        values: of any shape.
        mode: as for :func:`white_level`.
        significant: likewise.

    Returns:
        The same shape, uint8.
    """
    white = white_level(values.max(initial=0), mode, significant)
    return (values * (255 / white)).clip(0, 255).round().astype(np.uint8)


def with_depth(image: Image.Image, reopen: Callable[[], Image.Image]) -> None:
    """Scale the colours of an image of 16 bits a channel that uses fewer of them.

    Pillow keeps the upper bytes, which are nearly black then. The lower ones are decoded, too.

    Args:
        image: opened, but not decoded; other images than these are left as they are.
        reopen: opens the same image again.
    """
    layout = _layout(image)
    if layout not in OTHER_BYTES:
        return
    image.load()
    colours = 1 if layout.startswith("LA") else 3
    upper = np.asarray(image)
    if upper[..., :colours].max(initial=0) >= 2 ** (max(SENSOR_BITS) - 8):
        return
    with reopen() as other:
        _set_layout(other, OTHER_BYTES[layout])
        lower = np.asarray(other)
    if colours == 1:
        values = lower[..., :1] * 256.0 + lower[..., 1:2]
    else:
        values = upper[..., :colours] * 256.0 + lower[..., :colours]
    scaled = upper.copy()
    significant = image.info.get(SIGNIFICANT_BITS)
    scaled[..., :3] = in_eight_bits(values, "I;16", significant)
    image.paste(Image.fromarray(scaled, image.mode))


def _layout(image: Image.Image) -> str:
    """Return Pillow's name of the layout of an image's pixels in its file; "" if it is decoded."""
    tiles = getattr(image, "tile", [])
    if not tiles:
        return ""
    arguments = tiles[0][3]
    return str(arguments[0] if isinstance(arguments, tuple) else arguments)


def _set_layout(image: Image.Image, layout: str) -> None:
    """Let Pillow read the pixels of a file in another layout."""
    tiles = []
    for decoder, place, offset, arguments in image.tile:  # type: ignore[attr-defined]
        if isinstance(arguments, tuple):
            changed: object = (layout, *arguments[1:])
        else:
            changed = layout
        tiles.append((decoder, place, offset, changed))
    image.tile = tiles  # type: ignore[attr-defined]
