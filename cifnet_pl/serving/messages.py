"""Refusals of requests: an HTTP status, and a sentence in everyday words."""

import errno
import sqlite3
from collections.abc import Mapping

from cifnet_pl.utilities.errors import DataError, UnsupportedError, UsageError
from cifnet_pl.utilities.files import DISK_ERRORS
from cifnet_pl.utilities.text import printable

SHOWN_NAMES = 3
"""Class names in one sentence; others are counted."""

NOT_STORED = (*DISK_ERRORS, errno.EFBIG, errno.EACCES)
"""Error numbers of a system that cannot store a change."""

DISK_FULL = (
    "the server's disk is full, not writable, or held by another program; nothing was changed:"
    " delete photos of forgotten classes, or make room on it"
)
DAMAGED = "its file was deleted or changed on the server's disk"


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
    return RequestError(500, "the server failed; its log says why")


def has_disk_error(error: BaseException) -> bool:
    """Return whether an error, or what caused it, is that a change cannot be stored."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, RequestError):
        if isinstance(cause, sqlite3.OperationalError):
            return True
        if isinstance(cause, OSError) and cause.errno in NOT_STORED:
            return True
        cause = cause.__cause__ or cause.__context__
    return False
