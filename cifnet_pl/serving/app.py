"""Join the service, its page and its guard to one ASGI application."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from jinja2 import Environment, select_autoescape
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cifnet_pl.serving.api import asking, history, looking, teaching
from cifnet_pl.serving.refusals import FAILED, explained
from cifnet_pl.serving.service import Service
from cifnet_pl.utilities.errors import CifnetError

LOG = logging.getLogger("cifnet_pl.serving")

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
"""Names under which a browser on this machine reaches the service."""

OPEN = frozenset({"/", "/docs", "/openapi.json", "/health"})
"""Paths that need no token, as all files of the page: they say nothing about the model."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]

BODY_SECONDS = 60.0
"""Longest pause between two parts of a request's body."""

WHOLE_SECONDS = 1800.0
"""Longest time for a request's body: 256 MiB at little more than 1 Mbit/s."""

CLIENTS = 10_000
"""Addresses whose rate is remembered; the one that asked longest ago goes first."""


class Rate:
    """Limit of requests per second for each client, with a reserve of two seconds' worth (token bucket).

    Args:
        per_second: number of requests; 0 for no limit.
        clock: returns the time in seconds.
    """

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic):
        self.per_second, self.clock = per_second, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        """Return whether one more request of a client is within its rate; if so, count it."""
        if not self.per_second:
            return True
        now, most = self.clock(), max(1.0, 2 * self.per_second)
        left, last = self._left.pop(client, (most, now))
        left = min(most, left + (now - last) * self.per_second)
        allowed = left >= 1
        self._left[client] = (left - allowed, now)
        if len(self._left) > CLIENTS:
            self._left.popitem(last=False)
        return allowed


@dataclass
class Guard:
    """ASGI middleware; answers what it refuses itself, with one sentence.

    Attributes:
        app: what answers the rest.
        token: what clients must send as ``Authorization: Bearer TOKEN``; None to ask for none.
        any_host: whether requests may name any host; otherwise only this machine, so that a page of a foreign site
            cannot reach the service through a name that it points here.
        rate: of each client address.
        body_bytes: largest body of a request.
        observe: called with (path, method, status, seconds) of each request.
    """

    app: ASGIApp
    token: str | None
    any_host: bool
    rate: Rate
    body_bytes: int
    observe: Callable[[Scope, int, float], object] = lambda scope, status, seconds: None
    wrong_tokens: Rate = field(default_factory=lambda: Rate(0.2))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        start, reply = time.perf_counter(), _Reply(send)
        body = _Body(receive, self.body_bytes)
        try:
            refusal = self._refusal(scope)
            if refusal is not None:
                await reply.refuse(*refusal)
                return
            await self.app(scope, body, _unless(body, reply))
            if body.refusal is not None:
                await reply.refuse(*body.refusal)
        except Exception:
            if body.refusal is not None:
                await reply.refuse(*body.refusal)
            else:
                LOG.exception("%s %s failed", scope["method"], ascii(scope["path"]))
                await reply.refuse(500, FAILED)
        finally:
            self.observe(scope, reply.status, time.perf_counter() - start)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = {key: value.decode("latin-1") for key, value in scope["headers"]}
        client = scope["client"][0] if scope.get("client") else "unknown"
        host = headers.get(b"host", "")
        if not self.any_host and _without_port(host) not in LOOPBACK:
            return 421, "this service answers on this machine only: ask for it as localhost"
        origin = headers.get(b"origin")
        if headers.get(b"sec-fetch-site") == "cross-site" and scope["path"] != "/":
            return 403, "requests from pages of other sites are refused"
        if origin is not None and origin.partition("://")[2] != host:
            return 403, "requests from pages of other sites are refused"
        if not self.rate.allows(client):
            return 429, "too many requests: wait a second"
        return self._wrong_token(scope, headers, client)

    def _wrong_token(self, scope: Scope, headers: dict[bytes, str], client: str) -> tuple[int, str] | None:
        if self.token is None or scope["path"] in OPEN or scope["path"].startswith("/page/"):
            return None
        scheme, _, sent = headers.get(b"authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(sent.encode("latin-1"), self.token.encode()):
            return None
        if scheme and not self.wrong_tokens.allows(client):
            return 429, "too many wrong tokens: wait a few seconds"
        return 401, "this service needs a token: send the header Authorization: Bearer TOKEN"


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host


class _Reply:
    """The answer to one request: adds the headers, and remembers its status."""

    def __init__(self, send: Send):
        self._send, self.status = send, 0

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            names = {key for key, _ in message.get("headers", ())}
            more = [(key, value) for key, value in HEADERS if key not in names]
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await self._send(message)

    async def refuse(self, status: int, sentence: str) -> None:
        """Answer with an error, unless an answer has begun already."""
        if self.status:
            return
        content = json.dumps({"error": sentence}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
        headers += [(b"retry-after", b"1")] if status in (429, 503) else []
        await self({"type": "http.response.start", "status": status, "headers": headers})
        await self._send({"type": "http.response.body", "body": content})


class _Body:
    """The body of one request; it ends early if it is too long or too slow."""

    def __init__(self, receive: Receive, largest: int):
        self._receive, self._left, self._whole = receive, largest, False
        self.largest, self._until = largest, time.monotonic() + WHOLE_SECONDS
        self.refusal: tuple[int, str] | None = None

    async def __call__(self) -> Message:
        if self._whole:
            return await self._receive()
        left = self._until - time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, min(BODY_SECONDS, left)))
        except asyncio.TimeoutError:
            some = f"nothing of the request came for {BODY_SECONDS:g} seconds"
            self.refusal = 408, some if left > BODY_SECONDS else f"the request took more than {WHOLE_SECONDS:g} seconds"
            return {"type": "http.disconnect"}
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self.refusal = 413, f"the request is larger than {self.largest // 2**20} MiB: send it in parts"
            return {"type": "http.disconnect"}
        self._whole = not message.get("more_body", False)
        return message


def _unless(body: _Body, reply: _Reply) -> Send:
    """Return a function that passes an answer on unless the body was refused, as then the refusal is the answer."""

    async def send(message: Message) -> None:
        if body.refusal is None or reply.status:
            await reply(message)

    return send


TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
"""Extension of a file of the page → its type. The page asks no other server for anything."""


@dataclass(frozen=True)
class Access:
    """Access rules of the service.

    Attributes:
        token: what clients must send; None to ask for none.
        any_host: whether the service may be asked for under any host name.
        rate: requests per second of one client address; 0 for no limit.
    """

    token: str | None = None
    any_host: bool = False
    rate: float = 200.0


def make_app(service: Service, access: Access) -> Guard:
    """Build the application, which closes the service when it shuts down.

    Args:
        service: what answers.
        access: who may ask.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = FastAPI(
        title="cifnet_pl",
        version=version("cifnet_pl"),
        description="A learned model: ask it, teach it, look at it, change it.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    for router in (asking(service), looking(service), teaching(service), history(service)):
        app.include_router(router)
    _add_page(app)
    app.add_exception_handler(CifnetError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _failed)
    body = service.options.limits.body_bytes
    return Guard(app, access.token, access.any_host, Rate(access.rate), body, service.measures.request)


def _add_page(app: FastAPI) -> None:
    """Add the page's files, which are read once, and the page that describes the API."""
    folder = files("cifnet_pl.serving") / "page"
    for file in folder.iterdir():
        kind = TYPES["." + file.name.rpartition(".")[2]]
        path = "/" if file.name == "page.html" else f"/page/{file.name}"
        app.add_api_route(path, partial(_content, file.read_bytes(), kind), include_in_schema=False)
    template = Environment(autoescape=select_autoescape(default=True, default_for_string=True)).from_string(
        (folder / "docs.html").read_text(encoding="utf-8")
    )

    async def docs() -> Response:
        return Response(template.render(paths=_operations(app.openapi())), media_type="text/html")

    app.add_api_route("/docs", docs, include_in_schema=False)


async def _content(content: bytes, kind: str) -> Response:
    return Response(content, media_type=kind)


def _operations(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return every operation of the OpenAPI description, as the page of the API shows it."""
    listed = []
    for path, operations in schema["paths"].items():
        for method, about in operations.items():
            body = about.get("requestBody", {}).get("content", {})
            answer = about["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
            listed.append(
                {
                    "method": method.upper(),
                    "path": path,
                    "says": about.get("description", ""),
                    "parameters": about.get("parameters", []),
                    "body": {kind: _fields(content.get("schema", {}), schema) for kind, content in body.items()},
                    "answer": _fields(answer, schema),
                }
            )
    return listed


def _fields(description: dict[str, Any], schema: dict[str, Any]) -> dict[str, str]:
    """Return the description of each field of an object or of a list of objects."""
    description = description.get("items", description)
    name = description.get("$ref", "").rpartition("/")[2]
    description = schema["components"]["schemas"].get(name, description)
    return {key: about.get("description", "") for key, about in description.get("properties", {}).items()}


async def _refused(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, CifnetError)
    refusal = explained(error)
    return JSONResponse({"error": str(refusal)}, status_code=refusal.status)


async def _invalid(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    field = ".".join(str(step) for step in first["loc"])[:100]
    return JSONResponse({"error": f"the request is wrong at {field}: {first['msg']}"}, status_code=422)


async def _http(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    sentence = {404: "there is nothing here; /docs lists what there is", 405: "this path takes another method"}
    answer = {"error": sentence.get(error.status_code, str(error.detail))}
    return JSONResponse(answer, status_code=error.status_code, headers=dict(error.headers or {}))


async def _failed(request: Request, error: Exception) -> JSONResponse:
    """Answer an unexpected error; Starlette raises it again afterwards, and the guard writes it to the log."""
    return JSONResponse({"error": FAILED}, status_code=500)
