"""Convert the colours of images to sRGB, by the profiles that they bring along.

Phones write Display P3, cameras Adobe RGB. Read as sRGB, their colours are paler than they are, and
unlike those of the images that backbones were trained with.
"""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageCms

TOLERANCE = 4
"""Largest difference from sRGB, of 255 levels, of colours that need no conversion.

Profiles of sRGB differ a little from each other. What a profile calls itself is not trusted.
"""


def in_srgb(pixels: np.ndarray, profile: bytes | None) -> np.ndarray:
    """Convert pixels to sRGB.

    Args:
        pixels: (h, w, 3) uint8.
        profile: ICC profile of their colours; None for sRGB. One that is damaged, or of other than
            RGB colours, counts as none.

    Returns:
        (h, w, 3) uint8.
    """
    transform = conversion(profile) if profile else None
    if transform is None:
        return pixels
    return np.asarray(ImageCms.applyTransform(Image.fromarray(pixels), transform))


@lru_cache(maxsize=16)
def conversion(profile: bytes) -> Any | None:
    """Return the transform from the colours of a profile to sRGB; None if it needs none."""
    try:
        given = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if given.profile.xcolor_space.strip() != "RGB":
            return None
        transform = ImageCms.buildTransform(
            given,
            ImageCms.createProfile("sRGB"),
            "RGB",
            "RGB",
            ImageCms.Intent.RELATIVE_COLORIMETRIC,
        )
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError):  # a damaged profile
        return None
    colours = _all_colours()
    converted = np.asarray(ImageCms.applyTransform(Image.fromarray(colours), transform))
    difference = np.abs(converted.astype(int) - colours).max()
    return transform if difference > TOLERANCE else None


def _all_colours() -> np.ndarray:
    """Return colours from all over the cube of RGB, as pixels (18, 324, 3) uint8."""
    levels = np.arange(0, 256, 15, dtype=np.uint8)
    grid = np.stack(np.meshgrid(levels, levels, levels, indexing="ij"), axis=-1)
    return grid.reshape(len(levels), -1, 3)
