"""Check images from outside: how many, how large and of which kind they may be."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, cast

import numpy as np

from cifnet_pl.images.archives import entry_name, unsafe_entry_message
from cifnet_pl.images.files import find_images
from cifnet_pl.images.image import (
    FORMATS,
    EncodedImage,
    UnreadableImage,
    content_hash,
)
from cifnet_pl.images.names import is_hidden
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.labelled_images import classes_of_hashes
from cifnet_pl.serving import messages
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.utilities.text import printable

OPENED_FORMATS = [name for name in FORMATS if name != "ICO"]
"""Formats that are decoded; an icon is so as soon as it is opened, before its size is known."""

DIRECTORY_BYTES = 2**23
"""Largest list of entries of a zip file, which is read as a whole: some 100,000 entries."""


@dataclass(frozen=True)
class Limits:
    """The limits of one request.

    Attributes:
        body_bytes: of a request with files.
        json_bytes: of any other request.
        image_bytes: of one image.
        pixels: of one image, decoded.
        images: number of images, those in zip files included.
        zip_bytes: of one zip file's content, unpacked.
        zip_ratio: unpacked bytes per packed byte of a zip file.
    """

    body_bytes: int = 2**28
    json_bytes: int = 2**22
    image_bytes: int = 2**25
    pixels: int = 50_000_000
    images: int = 5000
    zip_bytes: int = 2**30
    zip_ratio: float = 100.0


def uploads(
    files: Iterable[tuple[str, IO[bytes]]], limits: Limits
) -> Iterator[tuple[str, bytes]]:
    """Yield the images of a request, those in zip files included, one at a time.

    Args:
        files: names and open files.
        limits: of one request.

    Yields:
        The path that an image was sent with, used only for messages and the class, and its content.

    Raises:
        RequestError: more than the limits allow, or a zip file that is damaged or hostile.
    """
    count = 0
    for name, file in files:
        if name.lower().endswith(".zip"):
            images = _zipped_images(name, file, limits)
        else:
            images = iter([(name, _content(name, file, limits))])
        for image in images:
            count += 1
            if count > limits.images:
                raise RequestError(413, messages.too_many_images(limits.images))
            yield image


def _content(name: str, file: IO[bytes], limits: Limits) -> bytes:
    content = file.read(limits.image_bytes + 1)
    if len(content) > limits.image_bytes:
        raise RequestError(413, messages.too_large(name, limits.image_bytes))
    return content


def _zipped_images(
    name: str, file: IO[bytes], limits: Limits
) -> Iterator[tuple[str, bytes]]:
    """Yield the images in a zip file.

    Nothing is unpacked to the disk, and no name in it is used as a path.
    """
    where = printable(name[: messages.LONGEST_FILE_NAME])
    try:
        bounded = _BoundedDirectory(file)
        with zipfile.ZipFile(cast(IO[bytes], bounded)) as archive:
            bounded.largest = None
            entries = archive.infolist()
            _check_entries(entries, where, limits)
            for entry in entries:
                if entry.is_dir() or is_hidden(entry_name(entry)):
                    continue
                with archive.open(entry) as content:
                    yield entry_name(entry), _content(entry.filename, content, limits)
    except RequestError:
        raise
    except Exception as error:
        # Zipfile and the decompressors each have errors of their own.
        raise RequestError(
            422, f"{where} is damaged or not a zip file that can be read"
        ) from error


class _BoundedDirectory:
    """A zip file whose directory is refused before it is read if it is too large.

    Each entry takes memory.

    Attributes:
        largest: bytes of one read; None for any number.
    """

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.largest: int | None = DIRECTORY_BYTES

    def read(self, size: int = -1) -> bytes:
        """Read as the file does; RequestError if that is too much at once."""
        if self.largest is not None and size > self.largest:
            limit = self.largest // 2**20
            raise RequestError(413, messages.LARGE_ZIP_INDEX.format(limit))
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _check_entries(entries: list[zipfile.ZipInfo], where: str, limits: Limits) -> None:
    """Check the directory of a zip file; RequestError if it is hostile or too large."""
    most = 2 * limits.images
    if len(entries) > most:
        raise RequestError(
            413, f"{where} has more than {most} entries: send it in parts"
        )
    unpacked = sum(entry.file_size for entry in entries)
    packed = sum(entry.compress_size for entry in entries)
    if unpacked > limits.zip_bytes:
        size = f"{limits.zip_bytes // 2**20} MiB"
        raise RequestError(
            413, f"{where} unpacks to more than {size}: send it in parts"
        )
    if unpacked > limits.zip_ratio * max(packed, 1):
        raise RequestError(
            413, f"{where} unpacks to more than {limits.zip_ratio:g} times its size"
        )
    for entry in entries:
        unsafe = unsafe_entry_message(entry)
        if unsafe is not None:
            raise RequestError(422, f"{where} {unsafe}")
        if entry.flag_bits & 1:
            raise RequestError(422, f"{where} is encrypted")


def decoded(
    content: bytes, size: int, crop_ratio: float, limits: Limits
) -> tuple[np.ndarray, str]:
    """Decode an image whose header says what may be decoded.

    Args:
        content: of the file.
        size: pixels of a side of the square that the model takes.
        crop_ratio: share of the image's shorter side that the square takes.
        limits: of one request.

    Returns:
        (size, size, 3) uint8, and the extension of its format.

    Raises:
        UnreadableImage: no image of a known format, one that is damaged, or one with too many
            pixels.
    """
    encoded = EncodedImage(content)
    with encoded.open(OPENED_FORMATS) as image:
        if image.width * image.height > limits.pixels:
            area = f"{image.width} × {image.height} pixels"
            raise UnreadableImage(f"{area} are more than {limits.pixels:,}")
        extension = FORMATS[image.format or "PNG"]
    return encoded.square(size, crop_ratio), extension


def learned_images(model: Classifier, folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Find the images of a folder that a model has learned, by their content.

    Yields:
        The image, the name of its kept file, and its class.

    Raises:
        DataError: there is no such folder, or it holds no image.
    """
    classes = classes_of_hashes(model, model.class_names)
    for path in find_images(folder):
        try:
            content = path.read_bytes()
            for position in classes.get(content_hash(content), ()):
                name = file_name(content, extension_of(content))
                yield path, name, model.class_names[position]
        except (
            OSError,
            UnreadableImage,
        ):
            # Within an archive, or of a format that is not kept.
            continue


def extension_of(content: bytes) -> str:
    """Return the extension of an image's format; UnreadableImage for one that is not decoded."""
    with EncodedImage(content).open(OPENED_FORMATS) as image:
        return FORMATS[image.format or "PNG"]


def file_name(content: bytes, extension: str) -> str:
    """Return the name of a kept file: the SHA-256 of its content, and the format's extension."""
    return f"{sha256(content).hexdigest()}.{extension}"
