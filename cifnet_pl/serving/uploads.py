"""Check photos from outside: how many, how large and of which kind they may be; keep them until they are learned."""

from __future__ import annotations

import re
import shutil
import unicodedata
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np

from cifnet_pl.data.sets import FileSet
from cifnet_pl.model.bundle import class_names
from cifnet_pl.model.class_photos import classes_of_hashes
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.photos.files import about_unsafe, find_photos, is_hidden
from cifnet_pl.photos.photo import Photo, UnreadableImage, content_hash, opened_square
from cifnet_pl.serving.refusals import Question, RequestError
from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.text import number_of, printable

FORMATS = {"JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "GIF": "gif", "BMP": "bmp", "TIFF": "tif"}
FORMATS |= {"AVIF": "avif", "HEIF": "heic"}
"""Formats that are decoded, and the extension of their kept files. Pillow has others that run programs (EPS)."""

_OPENED = [name for name in FORMATS if name != "MPO"]  # those are opened as JPEG

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


def uploads(files: Iterable[tuple[str, IO[bytes]]], limits: Limits) -> Iterator[tuple[str, bytes]]:
    """Yield the photos of a request, those in zip files included, one at a time.

    Args:
        files: names and open files.
        limits: of one request.

    Yields:
        The path that a photo was sent with, used only for messages and the class, and its content.

    Raises:
        RequestError: more than the limits allow, or a zip file that is damaged or hostile.
    """
    count = 0
    for name, file in files:
        packed = name.lower().endswith(".zip")
        for photo in _of_zip(name, file, limits) if packed else [(name, _whole(name, file, limits))]:
            count += 1
            if count > limits.photos:
                raise RequestError(413, f"more than {limits.photos} photos in one request: send them in parts")
            yield photo


def _whole(name: str, file: IO[bytes], limits: Limits) -> bytes:
    content = file.read(limits.photo_bytes + 1)
    if len(content) > limits.photo_bytes:
        raise RequestError(413, f"{printable(name[:200])} is larger than {limits.photo_bytes // 2**20} MiB")
    return content


def _of_zip(name: str, file: IO[bytes], limits: Limits) -> Iterator[tuple[str, bytes]]:
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
                        yield entry.filename, _whole(entry.filename, content, limits)
    except RequestError:
        raise
    except Exception as error:  # zipfile and the decompressors each have errors of their own
        raise RequestError(422, f"{where} is damaged or not a zip file that can be read") from error


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


def decoded(content: bytes, size: int, crop_ratio: float, limits: Limits) -> tuple[np.ndarray, str]:
    """Decode a photo whose header says what may be decoded.

    Args:
        content: of the file.
        size, crop_ratio: of the square that the model takes.
        limits: of one request.

    Returns:
        (size, size, 3) uint8, and the extension of its format.

    Raises:
        UnreadableImage: no image of a known format, one that is damaged, or one with too many pixels.
    """
    with Photo(content).open(_OPENED) as image:
        if image.width * image.height > limits.pixels:
            raise UnreadableImage(f"{image.width} × {image.height} pixels are more than {limits.pixels:,}")
        return opened_square(image, size, crop_ratio), FORMATS[image.format or "PNG"]


def learned_photos(model: Classifier, folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Find the photos of a folder that a model has learned, by their content.

    Yields:
        The photo, the name of its kept file, and its class.

    Raises:
        DataError: there is no such folder, or it holds no photo.
    """
    classes = classes_of_hashes(model, model.class_names)
    for path in find_photos(folder):
        try:
            content = path.read_bytes()
            for position in classes.get(content_hash(content), ()):
                yield path, file_name(content, extension_of(content)), model.class_names[position]
        except (OSError, UnreadableImage):  # within an archive, or of a format that is not kept
            continue


def extension_of(content: bytes) -> str:
    """Return the extension of a photo's format; UnreadableImage for a format that is not decoded here."""
    with Photo(content).open(_OPENED) as image:
        return FORMATS[image.format or "PNG"]


def file_name(content: bytes, extension: str) -> str:
    """Return the name of a photo's kept file: the SHA-256 of its content, and the extension of its format."""
    return f"{sha256(content).hexdigest()}.{extension}"


class StagedPhoto(NamedTuple):
    """A photo of a request that waits to be learned.

    Attributes:
        sent: path that it was sent with.
        file: its name in the folder: see :func:`file_name`.
        name: of its class.
        hash: of its content, as models keep it.
    """

    sent: str
    file: str
    name: str
    hash: int


@dataclass
class Staged:
    """Photos of a request that wait in a folder to be learned.

    Attributes:
        folder: holds one file per distinct photo.
        together: whether one class was given for all of them.
        photos: each once for a class.
        unreadable: name and reason of each photo that cannot be decoded.
    """

    folder: Path
    together: bool
    photos: list[StagedPhoto] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Classes, in the order they were sent."""
        return list(dict.fromkeys(photo.name for photo in self.photos))

    @property
    def files(self) -> FileSet:
        """The files with the positions of their classes."""
        position = {name: label for label, name in enumerate(self.names)}
        return FileSet(self.folder, [one.file for one in self.photos], [position[one.name] for one in self.photos])

    def of_class(self, name: str) -> list[str]:
        """Return the file names of the photos of one class."""
        return [photo.file for photo in self.photos if photo.name == name]

    def ask(self, learned: Mapping[int, Collection[str]], known: Sequence[str]) -> None:
        """Raise Question for what may be a mistake.

        That is photos of several folders under one name; a class whose name is nearly that of a known one, or of
        another one in the request; and a photo that is of another class, too.

        Args:
            learned: hash of a photo → classes in which it was learned.
            known: names of the known classes.
        """
        folders = sorted({folder for photo in self.photos if (folder := folder_of(photo.sent)) is not None})
        if self.together and len(folders) > 1:
            shown = ", ".join(f"'{printable(name)}'" for name in folders[:3]) + (", …" if len(folders) > 3 else "")
            given = f"'{printable(self.names[0])}' was given as the class of photos from {len(folders)} folders"
            raise Question(f"{given} ({shown}): without a name each folder is a class")
        for position, name in enumerate(self.names):
            check_alike(name, [*known, *self.names[:position]])
        classes, others = {photo: set(names) for photo, names in learned.items()}, dict[str, str]()
        for photo in self.photos:
            of_it = classes.setdefault(photo.hash, set())
            if rest := of_it - {photo.name}:
                others[photo.sent] = min(rest)
            of_it.add(photo.name)
        for first, other in others.items():
            few = "1 photo is" if len(others) == 1 else f"{len(others)} photos are"
            raise Question(
                f"{few} of another class, too: {printable(first[:200])} is '{printable(other)}'. "
                "A photo in two classes makes both of them worse"
            )

    def leave_out(self, learned: Mapping[int, Collection[str]]) -> None:
        """Leave out photos ``learned`` before as the same class (see :meth:`ask`); RequestError if none is left."""
        new = [photo for photo in self.photos if photo.name not in learned.get(photo.hash, ())]
        if not new:
            all_of_them = "it was" if len(self.photos) == 1 else "all were"
            raise RequestError(422, f"{number_of(len(self.photos), 'photo')} sent, but {all_of_them} learned before")
        self.photos = new

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def stage(
    photos: Iterable[tuple[str, bytes]],
    class_name: str | None,
    folder: Path,
    readable: Callable[[bytes], str],
) -> Staged:
    """Write the photos of a request into a folder of their own, which is removed where that fails.

    Args:
        photos: names that they were sent with, and their contents.
        class_name: class of all of them; None for the name of the folder that each was sent with.
        folder: an empty one.
        readable: decodes a photo and returns the extension of its format, or raises UnreadableImage.

    Raises:
        RequestError: a photo without a class, a class name that cannot be stored, or no photo that can be read.
    """
    staged = Staged(folder, together=class_name is not None)
    try:
        found: dict[tuple[str, str], StagedPhoto] = {}
        for sent, content in photos:
            name = class_name if class_name is not None else folder_of(sent)
            if name is None:
                where = printable(sent[:200])
                raise RequestError(422, f"{where} has no class: give class_name, or send it in a folder")
            try:
                extension = readable(content)
            except UnreadableImage as error:
                staged.unreadable.append((sent, str(error)))
                continue
            photo = StagedPhoto(sent, file_name(content, extension), tidy(name), content_hash(content))
            if found.setdefault((photo.file, photo.name), photo) is photo:
                (folder / photo.file).write_bytes(content)
        staged.photos = list(found.values())
        check_staged(staged)
    except BaseException:
        staged.remove()
        raise
    return staged


def check_staged(staged: Staged) -> None:
    """Raise RequestError where there is nothing to learn, or a name cannot be stored."""
    if not staged.photos and not staged.unreadable:
        raise RequestError(422, "no photo was sent")
    if not staged.photos:
        first, reason = staged.unreadable[0]
        none = f"none of {len(staged.unreadable)} photos can be read"
        raise RequestError(422, f"{none}; the first, {printable(first[:200])}: {reason}")
    try:
        class_names(staged.names, "the request")
    except CheckpointError as error:
        raise RequestError(422, str(error)) from error


def tidy(name: str) -> str:
    """Return a class name in one Unicode form (NFC), without spaces around it and without two in a row.

    Raises:
        RequestError: it holds half a character (a lone surrogate), which no file can store.
    """
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise RequestError(422, "a class name holds half a character: type it again")
    return re.sub(r"[^\S\t-\r]+", " ", unicodedata.normalize("NFC", name)).strip(" ")


def check_alike(name: str, others: Iterable[str]) -> None:
    """Raise Question where a name differs from another one by capitals, spaces or Unicode form only."""
    for other in others:
        if name != other and _bare(name) == _bare(other):
            apart = f"'{printable(name)}' differs from the class '{printable(other)}'"
            raise Question(f"{apart} by capitals, spaces or Unicode form only", instead=other)


def _bare(name: str) -> str:
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def folder_of(sent: str) -> str | None:
    """Return the name of the folder that a photo was sent in, if it was."""
    parts = [part for part in sent.replace("\\", "/").split("/") if part not in ("", ".")]
    return parts[-2] if len(parts) > 1 else None
