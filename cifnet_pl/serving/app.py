"""Join the service, its page and its guard to one ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from jinja2 import Environment, select_autoescape
from starlette.exceptions import HTTPException

from cifnet_pl.serving.api import asking, history, teaching
from cifnet_pl.serving.guard import Guard, Rate
from cifnet_pl.serving.inference import protocol
from cifnet_pl.serving.refusals import FAILED, explained
from cifnet_pl.serving.service import Service
from cifnet_pl.utilities.errors import CifnetError

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
    for router in (asking(service), teaching(service), history(service), protocol(service)):
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
