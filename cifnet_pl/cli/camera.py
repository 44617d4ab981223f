"""Read the still image of a network camera again and again."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from cifnet_pl.images.image import content_hash
from cifnet_pl.images.names import PassedOver
from cifnet_pl.utilities.files import write_bytes
from cifnet_pl.utilities.text import print_text, printable

TIMEOUT_SECONDS = 10.0
"""Longest time that a camera has to answer."""

STILL_BYTES = 2**25
"""Largest still image; larger ones are left out."""

KEPT_STILLS = 1000
"""Still images that are kept, the newest."""


class CameraStills:
    """The still images of a camera that differ from the ones before.

    No proxy is used.

    Args:
        address: http or https address of the image.
        folder: where they are kept.

    Attributes:
        passed_over: always empty; part of the interface of watched folders.
    """

    def __init__(self, address: str, folder: Path):
        self.address = address
        self.folder = folder
        self.passed_over = PassedOver()
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        self._last_hash: int | None = None
        self._problem: str | None = None

    def find(self, settled: bool = True) -> Iterator[Path]:
        """Yield the file of the image that the camera shows now, if it is another one.

        Args:
            settled: ignored; part of the same interface.
        """
        content = self._read()
        if content is None:
            return
        value = content_hash(content)
        if value == self._last_hash:
            return
        file = self.folder / f"{value:016x}.jpg"
        write_bytes(file, content)
        self._remove_old()
        yield file
        self._last_hash = value

    def _read(self) -> bytes | None:
        """Return the image; None, and a note once, while the camera does not answer."""
        try:
            with self._opener.open(self.address, timeout=TIMEOUT_SECONDS) as answer:
                content: bytes = answer.read(STILL_BYTES + 1)
        except (OSError, ValueError, HTTPException) as error:
            self._note(str(error) or type(error).__name__)
            return None
        if len(content) > STILL_BYTES:
            self._note(f"an image of more than {STILL_BYTES // 2**20} MiB")
            return None
        self._problem = None
        return content

    def _note(self, problem: str) -> None:
        """Print a problem unless it is the one before."""
        if problem != self._problem:
            self._problem = problem
            host = printable(urlsplit(self.address).hostname or "")
            print_text(f"{host}: {printable(problem)}; it is asked again")

    def _remove_old(self) -> None:
        """Remove all but the newest images."""
        files = sorted(self.folder.glob("*.jpg"), key=lambda file: file.stat().st_mtime)
        for file in files[:-KEPT_STILLS]:
            file.unlink()
