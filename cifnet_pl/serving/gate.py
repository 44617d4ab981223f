"""What comes from outside is checked here, before anything else reads it, and nowhere else.

Checked are who asks (host, origin, token) and what is sent: the size of a request and of an image,
the number, pixels and formats of images, and the names of classes.
"""

import hmac
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import PurePosixPath
from typing import IO, NamedTuple

import numpy as np
from fastapi import HTTPException
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cifnet_pl.images.files import entry_name, is_hidden
from cifnet_pl.images.image import FORMATS, EncodedImage, UnreadableImage
from cifnet_pl.serving import LOOPBACK
from cifnet_pl.serving.messages import RequestError
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.names import class_name, class_names, split_of
from cifnet_pl.utilities.text import shortened, spelled_alike

OPEN = frozenset({"/", "/till", "/docs", "/openapi.json", "/health"})
"""Paths that need no token, as all files of the page: they say nothing about the model."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src"
    " 'self'; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}
WITH_FILES = frozenset({"/classify", "/inbox"})
"""Paths whose requests have files."""

OPENED_FORMATS = [name for name in FORMATS if name != "ICO"]
"""Formats that are decoded; an icon is so as soon as it is opened, before its size is known."""


class ApiObject(BaseModel, use_attribute_docstrings=True):
    """A part of an answer or a request; the texts below its fields describe them in the API."""


@dataclass(frozen=True)
class Access:
    """Who may ask.

    Attributes:
        token: what clients must send as ``Authorization: Bearer TOKEN``; None to ask for none.
        hosts: that requests may name, so that a page of another site cannot reach the service
            through a name that it points here; None for any.
        address: host and port of the page behind a reverse proxy, which may leave the port out of
            the host that it passes on; None without a proxy.
    """

    token: str | None = None
    hosts: frozenset[str] | None = LOOPBACK
    address: str | None = None


@dataclass(frozen=True)
class Limits:
    """What one request may hold at most.

    Attributes:
        body_bytes: of a request with files (``WITH_FILES``).
        json_bytes: of any other request.
        image_bytes: of one image.
        pixels: of one image, decoded.
        images: number of images, those in zip files included.
        zip_bytes: of one zip file's content, unpacked.
        shown_name: characters of a file's name in a message.
    """

    body_bytes: int = 2**28
    json_bytes: int = 2**22
    image_bytes: int = 2**25
    pixels: int = 50_000_000
    images: int = 5000
    zip_bytes: int = 2**30
    shown_name: int = 200


LIMITS = Limits()
"""The limits of this service."""


# ---------------------------------------------------------------------- who asks


@dataclass(frozen=True)
class Gate:
    """ASGI middleware that refuses requests, adds headers to each answer, and limits bodies.

    Attributes:
        app: what answers the rest.
        access: who may ask.
    """

    app: ASGIApp
    access: Access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def reply(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        headers = Headers(scope=scope)
        largest = LIMITS.json_bytes
        if scope["path"] in WITH_FILES:
            largest = LIMITS.body_bytes
        answering = self._refusal(scope["path"], headers) or self.app
        await answering(scope, limited(receive, largest), reply)

    def _refusal(self, path: str, headers: Headers) -> JSONResponse | None:
        """Return the answer to a request that is refused; None to let it in."""
        host = headers.get("host", "")
        origin = headers.get("origin")
        name = re.sub(r":\d+$", "", host).strip("[]")
        if self.access.hosts is not None and name not in self.access.hosts:
            return refused(
                421,
                "this service answers on this machine only: ask for it as localhost",
            )
        own = (host, self.access.address)
        of_another_page = origin is not None and origin.partition("://")[2] not in own
        of_a_site = headers.get("sec-fetch-site") == "cross-site"
        if of_another_page or (of_a_site and path not in ("/", "/till")):
            return refused(403, "requests from pages of other sites are refused")
        token = self.access.token
        is_open = path in OPEN or path.startswith("/page/")
        if token is None or is_open:
            return None
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        is_right = hmac.compare_digest(sent.encode("latin-1"), token.encode())
        if is_right and scheme.lower() == "bearer":
            return None
        return refused(
            401,
            "this service needs a token: send the header Authorization: Bearer TOKEN",
            {"www-authenticate": "Bearer"},
        )


def limited(receive: Receive, largest: int) -> Receive:
    """Return a receiver of a request's body; HTTPException if that is too long.

    Args:
        receive: of the request.
        largest: bytes of the body.
    """
    left = largest

    async def read() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            limit = f"{largest // 2**20} MiB"
            sentence = f"the request is larger than {limit}: send it in parts"
            raise HTTPException(413, sentence, {"connection": "close"})
        return message

    return read


def refused(
    status: int,
    sentence: str,
    headers: Mapping[str, str] | None = None,
) -> JSONResponse:
    """Return the answer to a request that is refused."""
    return JSONResponse({"error": sentence}, status, headers)


# ---------------------------------------------------------------------- what is sent


class Upload(NamedTuple):
    """An image that was sent.

    Attributes:
        path: with which it was sent; used only for messages and the class.
        content: of the file.
        file: name under which it is kept: the SHA-256 of its content, and its format's extension.
        unreadable: why it cannot be decoded; None if it can.
    """

    path: str
    content: bytes
    file: str = ""
    unreadable: str | None = None


def uploads(
    files: Iterable[tuple[str, IO[bytes]]],
    size: int,
    crop_ratio: float,
) -> Iterator[Upload]:
    """Yield the images of a request, those in zip files included, one at a time.

    Args:
        files: names and open files.
        size, crop_ratio: what the model takes, as for :func:`decoded`.

    Raises:
        RequestError: more than the limits allow, or a zip file that is damaged.
    """
    count = 0
    for name, file in files:
        if name.lower().endswith(".zip"):
            images = _zipped_images(name, file)
        else:
            images = iter([(name, content_of(file))])
        for path, content in images:
            count += 1
            check_number(count)
            try:
                decoded(content, size, crop_ratio)
                yield Upload(path, content, file_name(content))
            except UnreadableImage as error:
                yield Upload(path, content, unreadable=str(error))


def check_number(images: int) -> None:
    """Raise RequestError if a request has more images than it may have."""
    if images > LIMITS.images:
        allowed = f"more than {LIMITS.images} photos in one request"
        raise RequestError(413, f"{allowed}: send them in parts")


def content_of(file: IO[bytes]) -> bytes:
    """Read an open file; of one that is too large only enough for :func:`decoded` to say so."""
    return file.read(LIMITS.image_bytes + 1)


def _zipped_images(name: str, file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield the images in a zip file.

    Nothing is unpacked to the disk, and no name in it is used as a path.
    """
    shown = shortened(name, LIMITS.shown_name)
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if sum(entry.file_size for entry in entries) > LIMITS.zip_bytes:
                limit = f"{LIMITS.zip_bytes // 2**20} MiB"
                unpacked = f"{shown} unpacks to more than {limit}"
                raise RequestError(413, f"{unpacked}: send it in parts")
            for entry in entries:
                if entry.is_dir() or is_hidden(entry_name(entry)):
                    continue
                with archive.open(entry) as content:
                    yield entry_name(entry), content_of(content)
    except RequestError:
        raise
    except Exception as error:
        # Zipfile and the decompressors each have errors of their own.
        damaged = f"{shown} is damaged or not a zip file that can be read"
        raise RequestError(422, damaged) from error


def decoded(content: bytes, size: int, crop_ratio: float = 1.0) -> np.ndarray:
    """Decode an image to (size, size, 3) uint8, if its header says what may be decoded.

    Args:
        content: of the file.
        size: pixels of a side of the square that the model takes.
        crop_ratio: share of the image's shorter side that the square takes.

    Raises:
        UnreadableImage: no image of a known format, one that is damaged, or one with too many
            bytes or pixels.
    """
    if len(content) > LIMITS.image_bytes:
        limit = f"{LIMITS.image_bytes // 2**20} MiB"
        raise UnreadableImage(f"the file is larger than {limit}")
    encoded = EncodedImage(content)
    with encoded.open(OPENED_FORMATS) as image:
        if image.width * image.height > LIMITS.pixels:
            area = f"{image.width} × {image.height} pixels"
            raise UnreadableImage(f"{area} are more than {LIMITS.pixels:,}")
    return encoded.square(size, crop_ratio)


def file_name(content: bytes) -> str:
    """Return the name of a kept image: the SHA-256 of its content, and its format's extension.

    Raises:
        UnreadableImage: it is of no format that is decoded.
    """
    with EncodedImage(content).open(OPENED_FORMATS) as image:
        extension = FORMATS[image.format or "PNG"]
    return f"{sha256(content).hexdigest()}.{extension}"


# ---------------------------------------------------------------------- names that are typed


def tidy(name: str) -> str:
    """Return a class name in Unicode form NFC, without spaces around it or two in a row."""
    return re.sub(r"[^\S\t-\r]+", " ", class_name(name)).strip(" ")


def checked_names(
    names: Iterable[str],
    known: Sequence[str],
    anyway: bool,
) -> dict[str, str]:
    """Return the class names that someone typed: as they were typed → as they are stored.

    Args:
        names: that were typed.
        known: names that exist already.
        anyway: whether they may be nearly those of known classes.

    Raises:
        UsageError: one cannot be the name of a class.
        RequestError: one may be a typing mistake.
    """
    stored = {name: tidy(name) for name in names}
    distinct = list(dict.fromkeys(stored.values()))
    class_names(distinct, "the request", UsageError)
    instead = spelled_alike(distinct, known)
    if instead and not anyway:
        pairs = [f"'{name}' and '{other}'" for name, other in instead.items()]
        raise RequestError(
            409,
            f"{'; '.join(pairs)} differ only in spelling",
            instead,
            anyway=True,
        )
    return stored


def folder_of(path: str) -> str | None:
    """Return the name of the folder that an image was sent in; None without one.

    A folder with the name of a split is none: its name is not that of a class.

    Example:
        >>> folder_of("birds/train/hen/1.jpg"), folder_of("birds/train/1.jpg")
        ('hen', None)
    """
    folder = PurePosixPath(path.replace("\\", "/")).parent.name
    if split_of(folder) is not None:
        return None
    return tidy(folder) or None
