"""What is said to the people who use the page, in everyday words: refusals, and what comes next."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Mapping, Sequence

from cifnet_pl.utilities.errors import (
    CifnetError,
    DataError,
    UnsupportedError,
    UsageError,
)
from cifnet_pl.utilities.text import listed, printable

SHOWN_NAMES = 3
"""Class names in one sentence; others are counted."""

ENOUGH_IMAGES = 10
"""Images of a class below which more of it are asked for."""

DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EIO,
)
"""Error numbers of a system that cannot store a change."""

DISK_FULL = (
    "the server's disk is full, not writable, or held by another program; nothing was changed:"
    " delete photos of forgotten classes, or make room on it"
)
DAMAGED = "its file was deleted or changed on the server's disk"

ACCURACY_MESSAGES = {
    "given": "Photos taken together, as they were named, count as one.",
    "found": "Photos taken together, on one day or at one place, count as one.",
    "independent": "No photos taken together were found, so one number serves for both.",
    "measured": "Measured on photos of another place that someone named.",
    "one_group": "Most classes have photos of one day or place only, so how often it is right on"
    " another day cannot be told.",
    "few": "There are too few photos to say how often it is right on another day.",
    "unknown": "How often it is right on another day is not estimated.",
}
"""How the two accuracies were found, by the kind of the estimate."""


def quoted(names: Sequence[str]) -> str:
    """Return a few class names, quoted."""
    return listed([f"'{printable(name)}'" for name in names], SHOWN_NAMES)


def next_step(counts: Mapping[str, int]) -> str:
    """Return the most useful next step, given the numbers of images by class."""
    few = [name for name, count in counts.items() if count < ENOUGH_IMAGES]
    if few:
        return f"Next: add photos of {quoted(few)}, taken on another day."
    return "Next: ask about photos of another day."


class RequestError(UsageError):
    """A request that is refused.

    Args:
        status: of HTTP; 409 for a change that may be a mistake.
        sentence: for people; control characters of names in it are escaped.
        instead: name that was given → name of the class that may be meant.
        anyway: whether the change is made where the client asks for it anyway.
    """

    def __init__(
        self,
        status: int,
        sentence: str,
        instead: Mapping[str, str] | None = None,
        anyway: bool = False,
    ):
        super().__init__(printable(sentence))
        self.status = status
        self.instead = dict(instead or {})
        self.anyway = anyway


def refusal_of(error: BaseException) -> RequestError:
    """Return an error as the answer to a request, without paths of the server."""
    if isinstance(error, RequestError):
        return error
    if has_disk_error(error):
        return RequestError(507, DISK_FULL)
    if isinstance(error, UnsupportedError):
        return RequestError(409, str(error))
    if isinstance(error, UsageError | DataError):
        return RequestError(422, str(error))
    if isinstance(error, CifnetError):
        return RequestError(500, "the server could not do that; its log says why")
    return RequestError(500, "the server failed; its log says why")


def has_disk_error(error: BaseException) -> bool:
    """Return whether an error, or what caused it, is that a change cannot be stored."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, RequestError):
        if isinstance(cause, sqlite3.OperationalError):
            return True
        if isinstance(cause, OSError) and cause.errno in DISK_ERRORS:
            return True
        cause = cause.__cause__ or cause.__context__
    return False
