"""Images: the bytes of one are read once, and give its hash, its time, a thumbnail and its pixels;
many by threads.
"""

from __future__ import annotations

import hashlib
import io
import os
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property, partial
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from cifnet_pl.images.files import find_images, place, read_bytes
from cifnet_pl.utilities.errors import DataError, UsageError
from cifnet_pl.utilities.text import first_line

# A panorama of 90 to 179 million pixels is read, and Pillow's warning that it may be an attack
# helps nobody.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning, append=True)

HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
"""Bytes 8 to 12 of files that are HEIC, whatever their name is (ISO/IEC 23008-12, annex B.4)."""

ImageLike = Path | bytes | Image.Image
"""An image in a file (which may be in a Zip archive), as the content of a file, or decoded."""

LARGEST_IMAGE = 2048
"""Largest ``image_size``, in pixels."""

SIDE = 8
"""Pixels of a thumbnail's side."""

ORIENTATION_TAG = 0x0112
DATE_TAKEN = 0x9003
DATE_CHANGED = 0x0132
EXIF_PART = 0x8769
"""EXIF tags DateTimeOriginal and DateTime, and the part that holds the first (CIPA DC-008)."""

UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""EXIF orientation (CIPA DC-008, table 6) → what turns the stored image upright."""


class UnreadableImage(DataError):
    """An image that is corrupt, truncated, of no known format, or larger than Pillow's limits."""


@contextmanager
def decoding() -> Iterator[None]:
    """Within the block, turn every error of a decoder into UnreadableImage with the reason in one
    line.
    """
    try:
        yield
    except UnidentifiedImageError as error:
        raise UnreadableImage("no image of a known format") from error
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0) // 10**6
        raise UnreadableImage(
            f"more than {most} million pixels, which may be an attack: make it smaller"
        ) from error
    except UnreadableImage:
        raise
    except Exception as error:  # on damaged files every decoder of Pillow fails in its own way
        raise UnreadableImage(getattr(error, "strerror", None) or first_line(error)) from error


def content_hash(content: bytes) -> int:
    """Hash bytes to a number of 63 bits (BLAKE2b): two of a million different images agree once in
    2·10⁷.

    This is the one identity of an image: it tells copies, which embedding is stored, what a buffer
        draws, and what was
    learned.

    Example:
        >>> content_hash(b"") == NOTHING
        True
    """
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little") >> 1


NOTHING = content_hash(b"")
"""The hash of what cannot be read."""


class Look(NamedTuple):
    """The small things that are known of an image once it was read.

    Attributes:
        hash: of its content.
        thumbnail: (SIDE, SIDE, 3) uint8, brightness and colours; None if it cannot be decoded.
        taken: when it was taken, if it says so.
    """

    hash: int
    thumbnail: np.ndarray | None
    taken: datetime | None


class EncodedImage:
    """An image whose bytes have been read.

    Args:
        given: its file, its content, or a decoded image.

    Raises:
        UnreadableImage: the file cannot be read.
    """

    def __init__(self, given: ImageLike):
        with decoding():
            self.given: bytes | Image.Image = (
                read_bytes(given) if isinstance(given, Path) else given
            )

    @cached_property
    def hash(self) -> int:
        """Hash of the file's bytes, or of a decoded image's size, mode and pixels."""
        image = self.given
        if isinstance(image, bytes):
            return content_hash(image)
        return content_hash(
            repr((image.size, image.mode, image.getpalette())).encode() + image.tobytes()
        )

    def open(self, formats: Sequence[str] | None = None) -> Image.Image:
        """Open it; the pixels are not decoded yet.

        Args:
            formats: Pillow's names of those that may be decoded; None for all.

        Raises:
            UnreadableImage: it is no image, of another format, or HEIC, and the package for that is
                missing.
        """
        content = self.given
        if isinstance(content, Image.Image):
            return content
        with decoding():
            try:
                return _opened(content, formats)
            except UnidentifiedImageError:
                if content[4:8] != b"ftyp" or content[8:12] not in HEIC_BRANDS:
                    raise
                _register_heic()
                return _opened(content, formats)

    def square(self, size: int, crop_ratio: float = 1.0) -> np.ndarray:
        """Decode it as :func:`square`; UnreadableImage where that fails."""
        if isinstance(self.given, Image.Image):
            return square(self.given, size, crop_ratio)
        with self.open() as image:
            return opened_square(image, size, crop_ratio)

    def identify(self) -> Look:
        """Return its hash alone, without a thumbnail and time."""
        return Look(self.hash, None, None)

    def look(self) -> Look:
        """Return its hash, thumbnail and time, decoded at a low resolution."""
        try:
            with decoding(), self.open() as image:
                when = taken(image)
                image.draft("RGB", (4 * SIDE, 4 * SIDE))
                return Look(self.hash, thumbnail(image.convert("RGB")), when)
        except UnreadableImage:  # it is reported as unreadable when it is to be learned
            return self.identify()


def read_square(image: ImageLike, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """Read and decode an image as :func:`square`; UnreadableImage where that fails."""
    return EncodedImage(image).square(size, crop_ratio)


def _opened(content: bytes, formats: Sequence[str] | None) -> Image.Image:
    if formats is not None:
        Image.init()
        formats = [name for name in formats if name in Image.OPEN]
    return Image.open(io.BytesIO(content), formats=formats)


def _register_heic() -> None:
    """Register the HEIC format with Pillow in this process; UnreadableImage if the package for it
    is missing.
    """
    if find_spec("pillow_heif") is None:
        raise UnreadableImage(
            "a HEIC image needs the package pillow-heif: pip install 'cifnet_pl[heic]'"
        )
    from pillow_heif import register_heif_opener

    register_heif_opener()


def thumbnail(image: Image.Image) -> np.ndarray:
    """Compute a small version of an image.

    Args:
        image: RGB.

    Returns:
        (SIDE, SIDE, 3) uint8: brightness and colours.
    """
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX).convert("YCbCr"))


def taken(image: Image.Image) -> datetime | None:
    """Return when an open image was taken; None where it does not say."""
    try:
        exif = image.getexif()
        text = exif.get_ifd(EXIF_PART).get(DATE_TAKEN) or exif.get(DATE_CHANGED)
        if text is None:
            return None
        return datetime.strptime(str(text).strip("\0 "), "%Y:%m:%d %H:%M:%S")
    except (
        ValueError,
        TypeError,
        OSError,
        SyntaxError,
    ):  # the last from Pillow on damaged EXIF data
        return None


# ---------------------------------------------------------------------- pixels


def white_level(mode: str, grey: np.ndarray) -> float:
    """Return the value that is white in a grey image of more than 8 bits.

    That is 65535 for 16 bits. For 32-bit integers and floats it is not defined: we take the
    smallest of 1 (floats only), 255 and 65535 that no pixel exceeds, or 65535.

    Args:
        mode: Pillow's mode of the image.
        grey: its pixels.
    """
    if mode.startswith("I;16"):
        return 65535.0
    levels = (1.0, 255.0) if mode == "F" else (255.0,)
    return next((level for level in levels if grey.max(initial=0) <= level), 65535.0)


def to_rgb(image: Image.Image) -> Image.Image:
    """Convert any Pillow mode to RGB: deep grey scaled to 8 bits, transparency on white."""
    # 16-bit PNG before Pillow 11
    if image.mode == "I" and image.format == "PNG":
        mode = "I;16"
    else:
        mode = image.mode
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        grey = np.nan_to_num(np.asarray(image, dtype=np.float32), posinf=0, neginf=0)
        grey = grey * (255 / white_level(mode, grey))
        return Image.fromarray(grey.clip(0, 255).round().astype(np.uint8)).convert("RGB")
    if image.mode == "La":
        image = image.convert("LA")
    if image.mode in ("RGBA", "LA", "PA", "RGBa") or "transparency" in image.info:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba).convert("RGB")
    if image.mode == "RGB":
        return image
    return image.convert("RGB")


def square(
    image: Image.Image,
    size: int,
    crop_ratio: float = 1.0,
    extent: tuple[float, float] | None = None,
) -> np.ndarray:
    """Resize and centre-crop to (``size``, ``size``, 3) uint8, EXIF orientation applied.

    Equals resizing the short side to ``size / crop_ratio`` (bicubic, antialiased) and cropping the
    centre, in one step on the cropped region: the memory needed does not depend on how elongated
        the image is. A centred square
    stays one when it is turned, so the small result is turned instead of the image.

    Args:
        image: of any mode.
        size: side of the result in pixels.
        crop_ratio: share of the short side that is kept.
        extent: width and height of the picture within the image, from its upper left corner; the
            whole by default.

    Raises:
        UnreadableImage: the image's pixels cannot be decoded.
    """
    with decoding():
        image.load()
        # Pillow's own exif_transpose writes all tags anew, and fails where a camera stored any of
        # them with another type than the standard's.
        turn = UPRIGHT.get(image.getexif().get(ORIENTATION_TAG, 1))
        rgb = to_rgb(image)
    width, height = rgb.size if extent is None else extent
    side = min(width, height) * crop_ratio
    left = (width - side) / 2
    top = (height - side) / 2
    box = (left, top, left + side, top + side)
    wanted = (size, size)
    small = rgb
    if rgb.size != wanted or box != (0, 0, *wanted):
        small = rgb.resize(wanted, Image.Resampling.BICUBIC, box)
    return np.asarray(small if turn is None else small.transpose(turn))


def opened_square(image: Image.Image, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """Decode an image as :func:`square`, at a lower resolution if that is enough.

    Args:
        image: opened, but not loaded.
        size, crop_ratio: as for :func:`square`.

    Returns:
        (size, size, 3) uint8.

    Raises:
        UnreadableImage: the image's pixels cannot be decoded.
    """
    with decoding():
        # JPEG only: decode at a half, quarter or eighth where twice the wanted resolution is still
        # there.
        wanted = int(2 * size / crop_ratio)
        drafted = image.draft(image.mode, (wanted, wanted))
    # Sides that the fraction does not divide are decoded to the next whole pixel: the picture ends
    # before it.
    return square(image, size, crop_ratio, drafted[1][2:] if drafted else None)


# ---------------------------------------------------------------------- many images

MOST = 16
"""Cores that decoding takes unless told otherwise."""

BATCHES_AHEAD = 2
"""Batches that are being decoded while one is being embedded."""

PART = 4
"""Images that a thread decodes at once, if there are enough for all threads."""

FIRST = 8
"""Images that are timed before the others are looked at."""

KEPT = 2**27
"""Bytes of images that were looked at which stay in memory until they are decoded (134 MB)."""

LIGHT = 1e-3
"""Seconds of reading an image below which several threads are slower than one.

Most of that time is Python's, whose lock they would pass to each other.
"""


def usable_cores() -> int:
    """Return the number of cores that this process may use; not every system can say which."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cores(processes: int = 1) -> int:
    """Return the number of cores for decoding.

    Args:
        processes: number of processes on this machine that decode; each gets an equal share.

    Returns:
        At least 1, at most ``MOST``.
    """
    return max(1, min(usable_cores() // processes, MOST))


def images_of(images: ImageLike | str | Iterable[ImageLike | str]) -> Iterator[ImageLike]:
    """Yield one or many images.

    Args:
        images: paths, contents of files, or Pillow images; one alone, or several. A single path may
            be a folder.

    Raises:
        DataError: there is no image at a single path.
        UsageError: something else than an image.
    """
    if isinstance(images, str | Path):
        return iter(find_images(images))
    return map(
        _as_image, [images] if isinstance(images, bytes | bytearray | Image.Image) else images
    )


def _as_image(item: object) -> ImageLike:
    if isinstance(item, bytes | Path | Image.Image):
        return item
    if isinstance(item, bytearray | memoryview):
        return bytes(item)
    if isinstance(item, str | os.PathLike):
        return Path(os.fspath(item))
    raise UsageError(
        f"a {type(item).__name__} is no image: give a path, the bytes of a file, or a Pillow image"
    )


def place_of(image: ImageLike) -> str:
    """Return where an image is, for messages, on one line."""
    if isinstance(image, Path):
        return place(image)
    return "an image in memory"


SKIPPED = "left out"
"""Why an image that was not wanted has no pixels."""

Outcome = tuple[str | None, Look | None]
"""Why an image could not be read, or None; and what is small of it."""


class DecodedBatch(NamedTuple):
    """Decoded images.

    Attributes:
        files: all images of the batch.
        image: (m, 3, s, s) uint8, those that could be read, in the order of ``files``.
        unreadable: for each of ``files`` the reason why it could not be read, or None.
        seen: for each of ``files`` what ``look`` of :func:`squares` gave; None if it could not be
            read.
    """

    files: tuple[ImageLike, ...]
    image: Tensor
    unreadable: tuple[str | None, ...]
    seen: tuple[Look | None, ...]

    @property
    def readable(self) -> list[ImageLike]:
        """Those of the files that could be read, as ``image`` has them."""
        return [
            file for file, reason in zip(self.files, self.unreadable, strict=True) if reason is None
        ]


def squares(
    files: Iterable[ImageLike],
    size: int,
    crop_ratio: float,
    look: Callable[[EncodedImage], Look] | None = None,
    skip: Callable[[int, int], bool] | None = None,
) -> Iterator[DecodedBatch]:
    """Decode images in threads, a few batches ahead of the consumer; memory does not grow with
    their number.

    Args:
        files: the images.
        size: side of the squares in pixels.
        crop_ratio: share of the short side that is kept.
        look: what else is wanted of each image while its bytes are in memory; None for nothing.
        skip: whether the image of a position and hash is not decoded; ``SKIPPED`` is then its
            reason.
    """
    remaining = enumerate(files)

    def read(item: tuple[int, ImageLike], pixels: np.ndarray) -> Outcome:
        position, given = item
        try:
            image = EncodedImage(given)
            if skip is not None and skip(position, image.hash):
                return SKIPPED, Look(image.hash, None, None)
            pixels[:] = image.square(size, crop_ratio)
            return None, None if look is None else look(image)
        except UnreadableImage as error:
            return str(error), None

    pool = ThreadPoolExecutor(cores(), "decode")
    try:
        batches = iter(lambda: tuple(islice(remaining, batch_size(size))), ())
        for images, pixels, outcomes in decoded(pool, batches, size, read):
            reasons, seen = zip(*outcomes, strict=True)
            readable = torch.tensor([reason is None for reason in reasons])
            tensor = pixels if readable.all() else pixels[readable]
            yield DecodedBatch(
                tuple(image for _, image in images), tensor.permute(0, 3, 1, 2), reasons, seen
            )
    finally:
        pool.shutdown(cancel_futures=True)


T = TypeVar("T")
R = TypeVar("R")


def decoded(
    pool: ThreadPoolExecutor,
    batches: Iterator[Sequence[T]],
    size: int,
    read: Callable[[T, np.ndarray], R],
    ahead: int = BATCHES_AHEAD + 1,
    alternate: bool = False,
    pinned: bool = False,
) -> Iterator[tuple[Sequence[T], Tensor, list[R]]]:
    """Decode batches by the threads of a pool, some ahead of the consumer; they begin at once.

    Args:
        pool: of the threads.
        batches: images.
        size: side of the squares in pixels.
        read: reads an image, writes its square (``size``, ``size``, 3) uint8, and returns what is
            known of it.
        ahead: batches that are being decoded, or wait for the consumer.
        alternate: decode only while the consumer waits: for a network of several threads on the
            cores that decode, which wait for each other at every layer.
        pinned: whether the pixels are to be copied to a GPU.

    Returns:
        Images, their squares (n, ``size``, ``size``, 3) uint8, and what ``read`` returned of each.
    """
    waiting: deque[tuple[Sequence[T], Tensor, list[Future[list[R]]]]] = deque()

    def read_part(images: Sequence[T], pixels: np.ndarray) -> list[R]:
        return [read(image, pixels[i]) for i, image in enumerate(images)]

    def begin(count: int) -> None:
        for images in islice(batches, count):
            pixels = torch.empty(len(images), size, size, 3, dtype=torch.uint8, pin_memory=pinned)
            part = max(1, min(PART, len(images) // cores()))
            starts = range(0, len(images), part)
            rows = pixels.numpy()
            waiting.append(
                (
                    images,
                    pixels,
                    [
                        pool.submit(read_part, images[i : i + part], rows[i : i + part])
                        for i in starts
                    ],
                )
            )

    def results() -> Iterator[tuple[Sequence[T], Tensor, list[R]]]:
        while waiting:
            if alternate:
                wait([part for _, _, parts in waiting for part in parts])
            images, pixels, parts = waiting.popleft()
            outcomes = [outcome for part in parts for outcome in part.result()]
            if not alternate:
                begin(1)
            yield images, pixels, outcomes
            if alternate and not waiting:
                begin(ahead)

    begin(ahead)
    return results()


def batch_size(size: int) -> int:
    """Return the number of images in a batch: 64 for sides from 256 to 512 pixels, more of smaller
    ones, at most 256.

    At the end of each batch the threads that embed wait for each other. In batches of small images
    they would do so too often.
    """
    return max(1, min(256, max(64, 2**22 // size**2), 2**24 // size**2))


class Contents:
    """Contents of images that were looked at, in memory until they are decoded, so that each image
    is opened once.

    Of more than ``KEPT`` bytes the rest is read again.
    """

    def __init__(self) -> None:
        self._contents: dict[Path, bytes] = {}
        self._free = KEPT
        self._counting = Lock()  # images are looked at by several threads

    def keep(self, file: Path) -> EncodedImage:
        """Read an image, and keep its content; UnreadableImage as :class:`EncodedImage`."""
        image = EncodedImage(file)
        with self._counting:
            if isinstance(image.given, bytes) and len(image.given) <= self._free:
                self._contents[file] = image.given
                self._free -= len(image.given)
        return image

    def take(self, file: Path) -> EncodedImage:
        """Return an image whose content is not needed any more, read unless it is here."""
        with self._counting:
            content = self._contents.pop(file, None)
            self._free += len(content or b"")
        return EncodedImage(file if content is None else content)


def look_at(file: Path, read: Callable[[Path], EncodedImage] = EncodedImage) -> Look:
    """Read an image, and return what is small of it; the hash of nothing where it cannot be
    read.
    """
    try:
        return read(file).look()
    except UnreadableImage:
        return Look(NOTHING, None, None)


def looks_at(
    files: Sequence[Path], read: Callable[[Path], EncodedImage] = EncodedImage
) -> list[Look]:
    """Look at images: the first ones in this thread, the rest in several if they take long to
    decode.

    Args:
        files: the images.
        read: reads one.
    """
    begun = time.perf_counter()
    seen = [look_at(file, read) for file in files[:FIRST]]
    if time.perf_counter() - begun < FIRST * LIGHT:
        return seen + [look_at(file, read) for file in files[FIRST:]]
    with ThreadPoolExecutor(cores(), "look") as pool:
        return seen + list(pool.map(partial(look_at, read=read), files[FIRST:]))
