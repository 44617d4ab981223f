"""Refuse requests with one sentence and an HTTP status."""

from __future__ import annotations

import errno
import sqlite3

from cifnet_pl.utilities.errors import CifnetError, DataError, UnsupportedError, UsageError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)
"""What the system says when a change cannot be stored."""

FAILED = "the server failed; its log says why"


class RequestError(UsageError):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Question(RequestError):
    """A change that may be a mistake, refused with 409: it is made where the client asks for it
    anyway.

    Attributes:
        instead: name of the class that may be meant.
    """

    def __init__(self, message: str, instead: str | None = None):
        super().__init__(409, message)
        self.instead = instead


def explained(error: CifnetError) -> RequestError:
    """Return an error of the package as the answer to a request, without paths of the server.

    The answer is a new error: a job keeps it, and the traceback of the other one would keep the
        models of its frames.
    """
    if isinstance(error, Question):
        return Question(str(error), error.instead)
    if isinstance(error, RequestError):
        return RequestError(error.status, str(error))
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, sqlite3.OperationalError) or (
            isinstance(cause, OSError) and cause.errno in FULL
        ):
            return RequestError(
                507, "the server's disk is full or not writable; nothing was changed"
            )
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, UnsupportedError):
        return RequestError(409, str(error))
    if isinstance(error, (UsageError, DataError)):
        return RequestError(422, str(error))
    return RequestError(500, "the server could not do that; its log says why")
