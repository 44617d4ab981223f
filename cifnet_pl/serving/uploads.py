"""Check photos from outside: how many, how large and of which kind they may be; keep them until they are learned."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from PIL import Image

from cifnet_pl.data.sets import FileSet
from cifnet_pl.model.description import class_names
from cifnet_pl.photos.files import FAILURES, about_unsafe, is_hidden
from cifnet_pl.photos.photo import Photo, UnreadableImage, opened_square
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.text import printable

FORMATS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tif"}
FORMATS |= {"AVIF": "avif", "HEIF": "heic"}
"""Formats that are decoded, and the extension of their kept files. Pillow has others that run programs (EPS)."""


DIRECTORY_BYTES = 2**23
"""Largest list of entries of a zip file, which is read as a whole: some 100,000 entries."""


@dataclass(frozen=True)
class Limits:
    """The limits of one request.

    Attributes:
        body_bytes: of the whole request.
        photo_bytes: of one photo.
        pixels: of one photo, decoded.
        photos: number of photos, those in zip files included.
        zip_bytes: of one zip file's content, unpacked.
        zip_ratio: unpacked bytes per packed byte of a zip file.
    """

    body_bytes: int = 2**28
    photo_bytes: int = 2**25
    pixels: int = 50_000_000
    photos: int = 5000
    zip_bytes: int = 2**30
    zip_ratio: float = 100.0


@dataclass(frozen=True)
class Upload:
    """One photo of a request: its content, and the path it was sent with (used only for messages and the class)."""

    name: str
    content: bytes

    @property
    def folder(self) -> str | None:
        """Name of the folder that holds the photo, if it was sent with one."""
        parts = [component for component in self.name.replace("\\", "/").split("/") if component not in ("", ".")]
        return parts[-2] if len(parts) > 1 else None


def uploads(files: Iterable[tuple[str, IO[bytes]]], limits: Limits, zips: bool = False) -> Iterator[Upload]:
    """Yield the photos of a request, one at a time.

    Args:
        files: names and open files.
        limits: of one request.
        zips: whether photos in zip files are yielded too.

    Raises:
        RequestError: more than the limits allow, or a zip file that is damaged or hostile.
    """
    count = 0
    for name, file in files:
        packed = zips and name.lower().endswith(".zip")
        for upload in _of_zip(name, file, limits) if packed else [Upload(name, _whole(name, file, limits))]:
            count += 1
            if count > limits.photos:
                raise RequestError(413, f"more than {limits.photos} photos in one request: send them in parts")
            yield upload


def _whole(name: str, file: IO[bytes], limits: Limits) -> bytes:
    content = file.read(limits.photo_bytes + 1)
    if len(content) > limits.photo_bytes:
        raise RequestError(413, f"{printable(name[:200])} is larger than {limits.photo_bytes // 2**20} MiB")
    return content


def _of_zip(name: str, file: IO[bytes], limits: Limits) -> Iterator[Upload]:
    """Yield the photos in a zip file; nothing is unpacked to the disk, and no name in it is used as a path."""
    where = printable(name[:200])
    try:
        bounded = _Bounded(file)
        with zipfile.ZipFile(cast(IO[bytes], bounded)) as archive:
            bounded.largest = None
            entries = archive.infolist()
            _check_entries(entries, where, limits)
            for entry in entries:
                if not entry.is_dir() and not is_hidden(entry.filename):
                    with archive.open(entry) as content:
                        yield Upload(entry.filename, _whole(entry.filename, content, limits))
    except FAILURES as error:
        raise RequestError(422, f"{where} is damaged or not a zip file that can be read") from error
    except Exception as error:  # the decompressors each have an error of their own
        if isinstance(error, RequestError):
            raise
        raise RequestError(422, f"{where} is damaged") from error


class _Bounded:
    """A zip file whose directory is refused before it is read if it is too large: each entry takes memory.

    Attributes:
        largest: bytes of one read; None for any number.
    """

    def __init__(self, file: IO[bytes]):
        self._file = file
        self.largest: int | None = DIRECTORY_BYTES

    def read(self, size: int = -1) -> bytes:
        """Read as the file does; RequestError if that is too much at once."""
        if self.largest is not None and size > self.largest:
            raise RequestError(
                413, f"a zip file lists more than {self.largest // 2**20} MiB of names: send it in parts"
            )
        return self._file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _check_entries(entries: list[zipfile.ZipInfo], where: str, limits: Limits) -> None:
    """Check the directory of a zip file; RequestError if it is hostile or too large."""
    if len(entries) > 2 * limits.photos:
        raise RequestError(413, f"{where} has more than {2 * limits.photos} entries: send it in parts")
    unpacked, packed = (sum(getattr(e, size) for e in entries) for size in ("file_size", "compress_size"))
    if unpacked > limits.zip_bytes:
        raise RequestError(413, f"{where} unpacks to more than {limits.zip_bytes // 2**20} MiB: send it in parts")
    if unpacked > limits.zip_ratio * max(packed, 1):
        raise RequestError(413, f"{where} unpacks to more than {limits.zip_ratio:g} times its size")
    for entry in entries:
        unsafe = about_unsafe(entry)
        if unsafe is not None:
            raise RequestError(422, f"{where} {unsafe}")
        if entry.flag_bits & 1:
            raise RequestError(422, f"{where} is encrypted")


def opened(content: bytes, limits: Limits) -> Image.Image:
    """Open a photo and check what its header says; nothing is decoded yet.

    Raises:
        UnreadableImage: no image of a known format, or one with too many pixels.
    """
    image = Photo(content).open([name for name in FORMATS if name != "MPO"])  # those are opened as JPEG
    if image.width * image.height > limits.pixels:
        image.close()
        raise UnreadableImage(f"{image.width} × {image.height} pixels are more than {limits.pixels:,}")
    return image


def decoded(content: bytes, size: int, crop_ratio: float, limits: Limits) -> np.ndarray:
    """Decode a photo to (size, size, 3) uint8; UnreadableImage if that fails."""
    with opened(content, limits) as image:
        return opened_square(image, size, crop_ratio)


@dataclass
class Staged:
    """Photos of a request that wait in a folder to be learned.

    Attributes:
        folder: holds one file per distinct photo, named by the hash of its content.
        names: classes, in the order they were sent.
        files: (file name, position of its class) of each photo.
        unreadable: name and reason of each photo that cannot be decoded.
    """

    folder: Path
    names: list[str] = field(default_factory=list)
    files: list[tuple[str, int]] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def photos(self) -> FileSet:
        """Return the files with their classes."""
        return FileSet(self.folder, [name for name, _ in self.files], [label for _, label in self.files])

    def of_class(self, name: str) -> list[str]:
        """Return the file names of the photos of one class."""
        return [file for file, label in self.files if self.names[label] == name]

    def leave_out(self, learned: Mapping[str, list[str]]) -> None:
        """Leave out photos that were learned before as the same class; RequestError if none is left."""
        new = [
            (file, self.names[label]) for file, label in self.files if file not in learned.get(self.names[label], [])
        ]
        if not new:
            raise RequestError(422, f"{len(self.files)} photos were sent, and all of them were learned before")
        self.names = list(dict.fromkeys(name for _, name in new))
        self.files = [(file, self.names.index(name)) for file, name in new]

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def stage(
    photos: Iterable[Upload],
    class_name: str | None,
    incoming: Path,
    limits: Limits,
    readable: Callable[[bytes], object],
) -> Staged:
    """Write the photos of a request into a folder of their own.

    Args:
        photos: what was sent.
        class_name: class of all of them; None for the name of the folder that each was sent with.
        incoming: where the folder is made.
        limits: of the photos' headers.
        readable: decodes a photo, or raises UnreadableImage.

    Raises:
        RequestError: a photo without a class, a class name that cannot be stored, or no photo that can be read.
    """
    incoming.mkdir(parents=True, exist_ok=True)
    staged = Staged(Path(tempfile.mkdtemp(dir=incoming)))
    try:
        for upload in photos:
            _stage_one(upload, class_name, staged, limits, readable)
        if not staged.files:
            raise RequestError(422, _nothing(staged))
        staged.names = _checked(staged.names)
    except BaseException:
        staged.remove()
        raise
    return staged


def _stage_one(
    upload: Upload, class_name: str | None, staged: Staged, limits: Limits, readable: Callable[[bytes], object]
) -> None:
    name = class_name if class_name is not None else upload.folder
    if name is None:
        raise RequestError(422, f"{printable(upload.name[:200])} has no class: give class_name, or send it in a folder")
    try:
        with opened(upload.content, limits) as image:
            kind = FORMATS[image.format or "PNG"]
        readable(upload.content)
    except UnreadableImage as error:
        staged.unreadable.append((upload.name, str(error)))
        return
    if name not in staged.names:
        staged.names.append(name)
    entry = (f"{hashlib.sha256(upload.content).hexdigest()}.{kind}", staged.names.index(name))
    if entry not in staged.files:
        (staged.folder / entry[0]).write_bytes(upload.content)
        staged.files.append(entry)


def _nothing(staged: Staged) -> str:
    if not staged.unreadable:
        return "no photo was sent"
    name, reason = staged.unreadable[0]
    return f"none of {len(staged.unreadable)} photos can be read; the first, {printable(name[:200])}: {reason}"


def _checked(names: list[str]) -> list[str]:
    try:
        return class_names(names, "the request")
    except CheckpointError as error:
        raise RequestError(422, str(error)) from error
