"""Join the service, its page and its gate to one ASGI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment
from starlette.exceptions import HTTPException as AnyHTTPException

from cifnet_pl.serving import messages
from cifnet_pl.serving.api import changes, routes
from cifnet_pl.serving.gate import Access, Gate, refused
from cifnet_pl.serving.refusals import as_request_error, has_disk_error
from cifnet_pl.serving.service import Service
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.version import package_version

PAGE = Path(__file__).parent / "page"

STAGED_AT_ONCE = 2
"""Requests whose images are unpacked at the same time; others wait.

So answers keep their threads.
"""


def make_app(service: Service, access: Access) -> Gate:
    """Build the application, which closes the service when it shuts down.

    Args:
        service: what the routes use.
        access: who may ask.

    Returns:
        The application behind its :class:`~cifnet_pl.serving.gate.Gate`.
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

    return Gate(app, access, service.options.limits)


def _docs(app: FastAPI) -> str:
    """Return the page that describes the API, as FastAPI's own loads scripts from elsewhere."""
    template = Environment(autoescape=True).from_string(
        (PAGE / "docs.html").read_text(encoding="utf-8")
    )
    return template.render(app.openapi())


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
