"""Refuse requests with one sentence and an HTTP status."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.types import Scope

from cifnet_pl.utilities.errors import CifnetError, DataError, UnsupportedError, UsageError
from cifnet_pl.utilities.text import printable

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO)
"""What the system says when a change cannot be stored."""


FAILED = "the server failed; its log says why"


class RequestError(UsageError):
    """A request that is refused, with its HTTP status."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


def explained(error: CifnetError) -> RequestError:
    """Return an error of the package as the answer to a request, without paths of the server.

    The answer is a new error: a job keeps it, and the traceback of the other one would keep the models of its frames.
    """
    if isinstance(error, RequestError):
        return RequestError(error.status, str(error))
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in FULL:
            return RequestError(507, "the server's disk is full or not writable; nothing was changed")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, UnsupportedError):
        return RequestError(409, str(error))
    if isinstance(error, (UsageError, DataError)):
        return RequestError(422, str(error))
    return RequestError(500, "the server could not do that; its log says why")


SHORTEST_TOKEN = 16


def given_token(token: str | None, token_file: str | None) -> str | None:
    """Return the token that clients must send, None without one; UsageError for one that cannot be used."""
    if token is not None and token_file is not None:
        raise UsageError("--token and --token_file: give one of them")
    if token_file is not None:
        try:
            token = Path(token_file).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read --token_file {printable(token_file)}: {error}") from error
    if token is None:
        return None
    if len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable() or " " in token:
        raise UsageError(f"the token must have {SHORTEST_TOKEN} or more plain characters without spaces")
    return token


def check_shares(unknown: float | None, coverage: float | None) -> None:
    """Raise UsageError unless both are shares between 0 and 1, or None."""
    for option, share in (("unknown", unknown), ("coverage", coverage)):
        if share is not None and not 0 < share < 1:
            raise UsageError(f"--{option} is {share:g}, expected a share between 0 and 1, or null")


SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60)
BATCHES = (1, 2, 4, 8, 16, 32, 64)


class Measures:
    """The numbers of ``/metrics``. They belong to this object, so that one process can hold several services."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self.requests = Counter("cifnet_requests", "Requests answered", ["path", "method", "status"], registry=registry)
        self.seconds = Histogram(
            "cifnet_request_seconds", "Time to answer", ["path"], buckets=SECONDS, registry=registry
        )
        self.batches = Histogram("cifnet_batch_photos", "Photos embedded together", buckets=BATCHES, registry=registry)
        self.classified = Counter("cifnet_photos_classified", "Photos answered", registry=registry)
        self.unknown = Counter("cifnet_photos_unknown", "Photos answered with 'none of these'", registry=registry)
        self.unreadable = Counter("cifnet_photos_unreadable", "Photos that could not be decoded", registry=registry)
        self.learned = Counter("cifnet_photos_learned", "Photos learned", registry=registry)

    def watch(self, name: str, about: str, value: Callable[[], float]) -> None:
        """Add a number that is computed when it is read.

        Args:
            name: of the metric.
            about: its description.
            value: returns the number.
        """
        Gauge(name, about, registry=self.registry).set_function(value)

    def request(self, scope: Scope, status: int, seconds: float) -> None:
        """Count one request by the template of its path; paths that clients make up would fill the memory.

        Args:
            scope: of the request.
            status: HTTP status of the answer.
            seconds: that it took.
        """
        route = scope.get("route")
        path = getattr(route, "path", None) or "other"
        method = scope["method"] if scope["method"] in ("GET", "POST", "HEAD") else "other"
        self.requests.labels(path, method, str(status)).inc()
        self.seconds.labels(path).observe(seconds)

    def text(self) -> bytes:
        """Return everything, in the text format."""
        return generate_latest(self.registry)
