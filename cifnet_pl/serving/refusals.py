"""Refuse requests with one sentence and an HTTP status."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Mapping

from cifnet_pl.serving import messages
from cifnet_pl.utilities.errors import (
    CifnetError,
    DataError,
    UnsupportedError,
    UsageError,
)

DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EIO,
)
"""Error numbers of a system that cannot store a change."""


class RequestError(UsageError):
    """A request that is refused.

    Args:
        status: of HTTP.
        message: one sentence for people.
    """

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Question(RequestError):
    """A change that may be a mistake, refused with 409 unless the client asks for it anyway.

    Args:
        message: what may be wrong.
        instead: name that was given → name of the class that may be meant.
        allowed: whether it may be made anyway; otherwise only with the other names.
    """

    def __init__(
        self,
        message: str,
        instead: Mapping[str, str] | None = None,
        allowed: bool = True,
    ):
        super().__init__(409, message)
        self.instead = dict(instead or {})
        self.allowed = allowed


def as_request_error(error: CifnetError) -> RequestError:
    """Return an error of the package as the answer to a request, without paths of the server.

    The answer is a new error. A job keeps it, and the traceback of the original would keep the
    models of its frames in memory.
    """
    if isinstance(error, Question):
        return Question(str(error), error.instead, error.allowed)
    if isinstance(error, RequestError):
        return RequestError(error.status, str(error))
    if has_disk_error(error):
        return RequestError(507, messages.DISK_FULL)
    if isinstance(error, UnsupportedError):
        return RequestError(409, str(error))
    if isinstance(error, UsageError | DataError):
        return RequestError(422, str(error))
    return RequestError(500, messages.IMPOSSIBLE)


def has_disk_error(error: BaseException) -> bool:
    """Return whether an error, or what caused it, is that a change cannot be stored."""
    if isinstance(error, RequestError):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, sqlite3.OperationalError):
            return True
        if isinstance(cause, OSError) and cause.errno in DISK_ERRORS:
            return True
        cause = cause.__cause__ or cause.__context__
    return False
