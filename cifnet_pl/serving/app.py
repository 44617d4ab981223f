"""Join the service, its page and its guard to one ASGI application."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException as AnyHTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cifnet_pl.serving import messages
from cifnet_pl.serving.api import changes, routes
from cifnet_pl.serving.refusals import as_request_error, has_disk_error
from cifnet_pl.serving.service import Service
from cifnet_pl.serving.uploads import Limits
from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.text import printable
from cifnet_pl.utilities.version import package_version

PAGE = Path(__file__).parent / "page"

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names under which a browser on this machine reaches the service."""

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
REFUSAL_HEADERS = {
    401: {"www-authenticate": "Bearer"},
    429: {"retry-after": "1"},
    503: {"retry-after": "1"},
}
"""Headers of a refusal, by its status."""

BODY_SECONDS = 60.0
"""Longest pause between two parts of a request's body."""

WHOLE_SECONDS = 1800.0
"""Longest time for a request's body: 256 MiB at little more than 1 Mbit/s."""

REMEMBERED_CLIENTS = 10_000
"""Addresses whose rate is remembered; the one that asked longest ago goes first."""

STAGED_AT_ONCE = 2
"""Requests whose images are unpacked at the same time; others wait.

So answers keep their threads.
"""


@dataclass(frozen=True)
class Access:
    """Access rules of the service.

    Attributes:
        token: what clients must send as ``Authorization: Bearer TOKEN``; None to ask for none.
        any_host: whether requests may name any host; otherwise only this machine, so that a page of
            another site cannot reach the service through a name that it points here.
        rate: requests per second of one client address; 0 for no limit.
        hosts: names that requests may have where not any host is allowed.
    """

    token: str | None = None
    any_host: bool = False
    rate: float = 200.0
    hosts: frozenset[str] = LOOPBACK


def public_host(address: str) -> str:
    """Return the host of an address at which a reverse proxy offers the page.

    Raises:
        UsageError: it is no http or https address.
    """
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(
            f"--address is {printable(address)}, expected https://HOST/ or a folder"
        )
    return parts.hostname


class Rate:
    """Limit of requests per second for each client: a token bucket of two seconds' worth.

    Args:
        per_second: number of requests; 0 for no limit.
        clock: returns the time in seconds.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic):
        self.per_second = per_second
        self.clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        """Return whether one more request of a client is within its rate; if so, count it."""
        if not self.per_second:
            return True
        now = self.clock()
        most = max(1.0, 2 * self.per_second)
        left, last = self._left.pop(client, (most, now))
        left = min(most, left + (now - last) * self.per_second)
        allowed = left >= 1
        self._left[client] = (left - allowed, now)
        if len(self._left) > REMEMBERED_CLIENTS:
            self._left.popitem(last=False)
        return allowed


@dataclass
class Guard:
    """ASGI middleware that refuses requests, adds headers to each answer, and limits bodies.

    Attributes:
        app: what answers the rest.
        access: who may ask.
        limits: of one request.
    """

    app: ASGIApp
    access: Access
    limits: Limits
    wrong_tokens: Rate = field(default_factory=lambda: Rate(0.2))

    def __post_init__(self) -> None:
        self.rate = Rate(self.access.rate)

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

        # Files are sent whole: Starlette refuses a range that it cannot read in plain text.
        whole = {
            **scope,
            "headers": [pair for pair in scope["headers"] if pair[0] != b"range"],
        }
        await (self._refusal(scope) or self.app)(
            whole, limited(receive, self._largest_body(scope)), reply
        )

    def _largest_body(self, scope: Scope) -> int:
        """Return the bytes that the body of a request may have: files may have more."""
        kind = Headers(scope=scope).get("content-type", "")
        if kind.lower().startswith("multipart/form-data"):
            return self.limits.body_bytes
        return min(self.limits.json_bytes, self.limits.body_bytes)

    def _refusal(self, scope: Scope) -> JSONResponse | None:
        headers = Headers(scope=scope)
        if scope.get("client"):
            client = scope["client"][0]
        else:
            client = "unknown"
        host = headers.get("host", "")
        origin = headers.get("origin")
        if "content-length" in headers and "transfer-encoding" in headers:
            return refused(400, messages.TWO_LENGTHS, {"connection": "close"})
        if not self.access.any_host and _without_port(host) not in self.access.hosts:
            return refused(
                421,
                "this service answers on this machine only: ask for it as localhost",
            )
        of_a_site = headers.get("sec-fetch-site") == "cross-site" and scope[
            "path"
        ] not in ("/", "/till")
        if of_a_site or (origin is not None and origin.partition("://")[2] != host):
            return refused(403, "requests from pages of other sites are refused")
        if not self.rate.allows(client):
            return refused(429, "too many requests: wait a second")
        return self._wrong_token(scope["path"], headers, client)

    def _wrong_token(
        self, path: str, headers: Headers, client: str
    ) -> JSONResponse | None:
        token = self.access.token
        if token is None or path in OPEN or path.startswith("/page/"):
            return None
        scheme, _, sent = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(
            sent.encode("latin-1"), token.encode()
        ):
            return None
        if scheme and not self.wrong_tokens.allows(client):
            return refused(429, "too many wrong tokens: wait a few seconds")
        return refused(
            401,
            "this service needs a token: send the header Authorization: Bearer TOKEN",
        )


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    if colon and port.isdecimal():
        return name
    return host


def limited(receive: Receive, largest: int) -> Receive:
    """Return a receiver of a request's body; HTTPException if that is too long or too slow.

    Starlette's own limit answers in plain text, and uvicorn waits for the rest of a body for ever.

    Args:
        receive: of the request.
        largest: bytes of the body.
    """
    left = largest
    whole = False
    until = time.monotonic() + WHOLE_SECONDS
    close = {"connection": "close"}

    async def read() -> Message:
        nonlocal left, whole
        if whole:
            return await receive()
        rest = until - time.monotonic()
        try:
            message = await asyncio.wait_for(
                receive(), max(0.0, min(BODY_SECONDS, rest))
            )
        except asyncio.TimeoutError:
            raise HTTPException(
                408, "the request came too slowly: send it in parts", close
            ) from None
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(
                413,
                f"the request is larger than {largest // 2**20} MiB: send it in parts",
                close,
            )
        whole = not message.get("more_body", False)
        return message

    return read


def make_app(service: Service, access: Access) -> Guard:
    """Build the application, which closes the service when it shuts down.

    Args:
        service: what the routes use.
        access: who may ask.

    Returns:
        The application behind its :class:`Guard`.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="cifnet_pl",
        version=package_version(),
        description="A learned model: classify, learn, inspect, change.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    app.state.staging = asyncio.Semaphore(STAGED_AT_ONCE)
    for router in (routes, changes):
        app.include_router(router)
    app.mount("/page", StaticFiles(directory=PAGE))
    app.add_api_route(
        "/", lambda: FileResponse(PAGE / "page.html"), include_in_schema=False
    )
    app.add_api_route(
        "/till", lambda: FileResponse(PAGE / "till.html"), include_in_schema=False
    )
    app.add_api_route(
        "/docs", lambda: HTMLResponse(_docs(app)), include_in_schema=False
    )
    for kind in (
        OSError,
        CifnetError,
        RequestValidationError,
        AnyHTTPException,
        Exception,
    ):
        app.add_exception_handler(kind, _answer_error)

    return Guard(app, access, service.options.limits)


def _docs(app: FastAPI) -> str:
    """Return the page that describes the API, as FastAPI's own loads scripts from elsewhere."""
    template = Environment(autoescape=True).from_string(
        (PAGE / "docs.html").read_text(encoding="utf-8")
    )
    return template.render(app.openapi())


def refused(
    status: int, sentence: str, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Return the answer to a request that is refused."""
    return JSONResponse(
        {"error": sentence},
        status,
        {**REFUSAL_HEADERS.get(status, {}), **(headers or {})},
    )


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an error.

    Starlette raises an unexpected one again afterwards, and uvicorn writes it to the log.
    """
    if has_disk_error(error):  # also where it was met in reading a request's files
        return refused(507, messages.DISK_FULL)
    if isinstance(error, CifnetError):
        refusal = as_request_error(error)
        return refused(refusal.status, str(refusal))
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        field = ".".join(str(step) for step in first["loc"])[:100]
        return refused(422, f"the request is wrong at {field}: {first['msg']}")
    if isinstance(error, AnyHTTPException):
        sentence = {
            404: "there is nothing here; /docs lists what there is",
            405: "this path takes another method",
        }
        return refused(
            error.status_code,
            sentence.get(error.status_code, str(error.detail)),
            dict(error.headers or {}),
        )
    return refused(500, messages.FAILED)
