"""One image file → one uint8 square, whatever mode, size or orientation it has."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

EXTENSIONS = {
    ".jpg",
    ".jpeg",
    ".jpe",
    ".png",
    ".bmp",
    ".gif",
    ".webp",
    ".tif",
    ".tiff",
    ".ppm",
    ".pgm",
    ".jp2",
}
"""File names that count as images; everything else in a folder is passed over."""

UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError, EOFError, MemoryError)
"""What Pillow raises for files that are corrupt, truncated, of no known format, or larger than its limits."""


def is_image(path: Path) -> bool:
    """Whether a file's name says that it is an image."""
    return path.suffix.lower() in EXTENSIONS and not path.name.startswith(".")


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow mode as RGB: 16-bit grey scaled to 8 bits, transparency on white, EXIF orientation applied."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        grey = np.asarray(image, dtype=np.float32)
        top = (
            1.0 if image.mode == "F" and grey.max(initial=0) <= 1 else 255.0 if grey.max(initial=0) <= 255 else 65535.0
        )
        return Image.fromarray((grey * (255 / top)).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    return image.convert("RGB")


def square(image: Image.Image, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """Resize and centre-crop to (``size``, ``size``, 3) uint8.

    Equals resizing the short side to ``size / crop_ratio`` (bicubic, antialiased) and cropping the centre, in one
    step on the cropped region: the memory needed does not depend on how elongated the image is.
    """
    image = to_rgb(image)
    width, height = image.size
    side = min(width, height) * crop_ratio
    left, top = (width - side) / 2, (height - side) / 2
    box = (left, top, left + side, top + side)
    return np.asarray(image.resize((size, size), Image.Resampling.BICUBIC, box=box))


def read_square(path: Path, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """Decode a file as :func:`square`; raises one of ``UNREADABLE`` where Pillow cannot."""
    with Image.open(path) as image:
        # JPEG only: decode at a half, quarter or eighth where twice the wanted resolution is still there.
        wanted = int(2 * size / crop_ratio)
        image.draft("RGB" if image.mode == "YCbCr" else image.mode, (wanted, wanted))
        return square(image, size, crop_ratio)


def image_files(folder: Path) -> list[Path]:
    """All images below ``folder``, sorted, links followed but no folder entered twice."""
    found: list[Path] = []
    visited: set[Path] = set()
    stack: list[Path] = [folder]
    while stack:
        current = stack.pop()
        real = current.resolve()
        if real in visited:
            continue
        visited.add(real)
        for entry in sorted(current.iterdir()):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                stack.append(entry)
            elif is_image(entry):
                found.append(entry)
    return sorted(found)


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or its type where there is none."""
    lines: Iterable[str] = str(error).splitlines()
    return next(iter(lines), type(error).__name__)
