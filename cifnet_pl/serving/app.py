"""Serve over HTTP: the page, and one route for each thing that the service can do."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, File, Query, Request, UploadFile
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment
from pydantic import Field
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from cifnet_pl import __version__
from cifnet_pl.images.image import UnreadableImage
from cifnet_pl.images.reader import decoding_cores
from cifnet_pl.serving import inspection, messages
from cifnet_pl.serving.answering import LARGEST_BATCH, ApiObject, ImageAnswer
from cifnet_pl.serving.gate import Access, Gate, check_size, refused
from cifnet_pl.serving.inbox import LARGEST_INBOX, InboxView, Received, UploadGroup
from cifnet_pl.serving.messages import (
    Question,
    RequestError,
    as_request_error,
    has_disk_error,
)
from cifnet_pl.serving.service import (
    ChangeJob,
    ChangeResult,
    Result,
    Service,
    UpdateResult,
)
from cifnet_pl.serving.workspace import DeletedCounts
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.text import printable

PAGE = Path(__file__).parent / "page"

RECEIVED_AT_ONCE = 2
"""Requests whose images are stored at the same time, so that others keep their threads."""

GROUPED_IMAGES = 500
"""Images that are grouped in one request: the time grows with the square of their number."""

MEDIA_TYPES = {
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".bmp": "image/bmp",
}


class Error(ApiObject):
    """Why a request was refused."""

    error: str
    """One sentence."""


class Classification(ApiObject):
    """Answers to one request; all from the same version unless a change was stored in between."""

    version: int
    images: list[ImageAnswer]


class ClassInfo(ApiObject):
    """One class that the model knows."""

    name: str
    images: int
    """Number of images it was learned from."""
    kept_images: list[str] = Field(default=[])
    """Names of images that are kept in the workspace."""


class JobInfo(ApiObject):
    """A change that is asked for but not finished, or its end."""

    job: str
    action: str
    state: Literal["waiting", "at work", "done", "refused"]
    place: int
    """Number of changes that come before this one."""
    done: int
    """Images learned so far."""
    total: int | None = None
    status: int | None = None
    """HTTP status that the change ended with."""
    error: str | None = None
    may_be_asked_for: bool = False
    """Whether a refused change is made where it is sent with anyway=true."""
    instead: dict[str, str] = Field(default={})
    """Name that was given → class that is meant instead, maybe."""
    update: UpdateResult | None = None
    change: ChangeResult | None = None


class VersionInfo(ApiObject):
    """One version of the model."""

    number: int
    parent: int | None
    action: str
    message: str
    time: str
    classes: int
    images: int
    stored: bool
    scores: dict[str, float] = Field(default={})
    """Percentages; held_out_images is how many images held_out_accuracy is a share of."""


class Versions(ApiObject):
    """All versions, newest first."""

    current: int
    can_undo: bool
    can_redo: bool
    versions: list[VersionInfo]


ClassName = Annotated[str, Field(min_length=1, max_length=1000)]


class ForgetRequest(ApiObject):
    """A class to forget."""

    name: ClassName


class RenameRequest(ApiObject):
    """A class, and its new name."""

    old: ClassName
    new: ClassName


class MoveRequest(ApiObject):
    """Images of a class that become images of another one."""

    name: ClassName
    into: ClassName
    """A known class, or a new one."""
    images: list[str] | None = Field(default=None, max_length=LARGEST_INBOX)
    """Names of files; null for all."""


class ImagesRequest(ApiObject):
    """Some of the images that wait or are kept, by the names of their files."""

    images: list[str] = Field(min_length=1, max_length=LARGEST_INBOX)


class LearnRequest(ApiObject):
    """The classes of images that wait."""

    names: dict[str, str] = Field(min_length=1, max_length=LARGEST_INBOX)
    """Name of an image's file → its class."""


class NamesRequest(ApiObject):
    """Classes that someone typed for images that wait."""

    names: dict[str, Annotated[str, Field(max_length=1000)] | None] = Field(
        min_length=1, max_length=LARGEST_INBOX
    )
    """Name of an image's file → its class; null to forget it."""


Count = Annotated[int, Field(ge=0, le=1000)]


class CountRequest(ApiObject):
    """Numbers to add to the counts of this day."""

    asked: Count = 0
    unsure: Count = 0
    corrected: Count = 0


class DayInfo(ApiObject):
    """Counts of classified images and corrections of one day."""

    date: str
    asked: int
    unsure: int
    """Images for which no class, or several, were likely enough."""
    corrected: int
    """Images whose class someone corrected."""


class InboxCount(ApiObject):
    """The number of images that wait."""

    waiting: int


Purged = Literal["forgotten", "all"]


class PurgeRequest(ApiObject):
    """The images and versions to delete for good."""

    images: Purged = "forgotten"
    """Forgotten: kept images that the served version did not learn; all: every kept image."""


def the_service(request: Request) -> Service:
    """Return the service that answers a request."""
    service: Service = request.app.state.service
    return service


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": Error},
    "5XX": {"model": Error},
}
AskedService = Annotated[Service, Depends(the_service)]
SentFiles = Annotated[list[UploadFile], File(description="one image or many")]
VersionNumber = Annotated[int, InPath(ge=1, le=10**9)]
Waits = Annotated[
    bool,
    Query(description="false: answer at once with a job, to be asked for at /jobs"),
]
Anyway = Annotated[
    bool,
    Query(
        description="true: make even a change that may be a mistake, which is refused with 409"
    ),
]

routes = APIRouter(responses=ERRORS)
changes = APIRouter(responses={**ERRORS, 202: {"model": JobInfo}})

# ---------------------------------------------------------------------- classify and inspect


@routes.get("/health")
async def health() -> dict[str, bool]:
    """Whether the service runs and can answer."""
    return {"ready": True}


@routes.post("/classify")
async def classify(
    request: Request,
    service: AskedService,
    files: SentFiles,
    top: Annotated[int, Query(ge=1, le=1000, description="classes per image")] = 5,
) -> Classification:
    """Predict the classes of images. One that cannot be decoded does not stop the others."""
    decoding: asyncio.Semaphore = request.app.state.decoding
    waiting = []
    limits = service.options.limits
    if len(files) > limits.images:
        raise RequestError(413, messages.TOO_MANY_IMAGES, limit=limits.images)
    for file in files:
        name = file.filename or "image"
        check_size(name, file.size or 0, limits)
        content = await file.read()
        await decoding.acquire()
        future = asyncio.wrap_future(service.answering.submit(content))
        future.add_done_callback(lambda _: decoding.release())
        waiting.append((name, future))
    version = service.served.version
    answers = []
    for name, future in waiting:
        try:
            scored = await future
        except UnreadableImage as error:
            answers.append(ImageAnswer(file=printable(name), unreadable=str(error)))
            continue
        version = scored.served.version
        answers.append(service.gallery.answer(scored, name, top))
    return Classification(version=version, images=answers)


@routes.get("/classes")
def classes(service: AskedService) -> list[ClassInfo]:
    """The classes that the model knows, in the order they were learned."""
    served = service.served
    kept = service.workspace.kept_images()
    return [
        ClassInfo(name=name, images=count, kept_images=kept.get(name, []))
        for name, count in served.model.counts.items()
    ]


@routes.get("/classes/predictions")
def class_predictions(service: AskedService) -> inspection.ClassPredictions:
    """Accuracy of each class on new groups, what it is confused with, what more images bring.

    It takes seconds.
    """
    return service.class_predictions()


@routes.get("/summary")
def summary(service: AskedService) -> inspection.ModelSummary:
    """The state of the model, its history and its accuracy."""
    served = service.served
    options = service.options
    return inspection.summarised(
        served.model, options.name, served.version, options.read_only
    )


@routes.get("/days")
def days(service: AskedService) -> list[DayInfo]:
    """Daily counts of classified images and corrections, oldest first."""
    return [DayInfo(**counts) for counts in service.workspace.days()]


@routes.post("/days")
def count_answers(service: AskedService, request: CountRequest) -> list[DayInfo]:
    """Count answers of this day."""
    service.check_writable()
    service.workspace.count_answers(**dict(request))
    return days(service)


@routes.get("/audit")
def audit(service: AskedService) -> inspection.AuditView:
    """Label errors among the kept images; takes seconds."""
    with service.costly:
        kept = service.workspace.kept_images()
        return inspection.audited(service.gallery, kept)


@routes.get("/images/{name}", response_class=Response)
def image(
    service: AskedService,
    name: str,
    small: Annotated[
        bool, Query(description="true: its middle as a small JPEG")
    ] = False,
) -> Response:
    """A kept image; a small JPEG where browsers cannot show its format."""
    path = service.workspace.image(name)
    if path.suffix in MEDIA_TYPES and not small:
        return Response(path.read_bytes(), media_type=MEDIA_TYPES[path.suffix])
    return Response(service.preview(path.read_bytes()), media_type="image/jpeg")


# ---------------------------------------------------------------------- images that wait


@routes.post("/inbox")
async def receive(
    request: Request, service: AskedService, files: SentFiles
) -> Received:
    """Store images, or zip files of images, until they are labelled; the disk has them then."""
    images = [(file.filename or "image", file.file) for file in files]
    async with request.app.state.receiving:
        return await run_in_threadpool(service.receive, images)


@routes.get("/inbox")
def waiting(
    service: AskedService,
    first: Annotated[
        int, Query(ge=0, description="images to leave out at the beginning")
    ] = 0,
    count: Annotated[int, Query(ge=0, description="images to return")] = 60,
    after: Annotated[
        int | None, Query(description="images with a larger number come first")
    ] = None,
    surest: Annotated[bool, Query(description="true: the most probable first")] = False,
) -> InboxView:
    """Images that wait, predicted by the served version, the least probable first."""
    return service.inbox.view(first, count, after, surest)


@routes.post("/group")
def group(service: AskedService, request: ImagesRequest) -> list[UploadGroup]:
    """Group images that wait or are kept by similarity, so that each group is labelled once."""
    if len(request.images) > GROUPED_IMAGES:
        raise RequestError(413, messages.TOO_MANY_TO_GROUP, limit=GROUPED_IMAGES)
    return service.inbox.group(request.images)


@routes.post("/inbox/remove")
def remove(
    service: AskedService,
    request: ImagesRequest,
    back: Annotated[
        bool, Query(description="true: let them wait again instead")
    ] = False,
) -> InboxCount:
    """Take images away that need no label; their files stay until the service starts again."""
    return InboxCount(waiting=service.remove(request.images, back))


@routes.post("/inbox/names")
def name_images(service: AskedService, request: NamesRequest) -> InboxCount:
    """Remember classes that someone typed; nothing is learned by it."""
    service.check_writable()
    service.workspace.name_images(request.names)
    return InboxCount(waiting=len(service.workspace.waiting()))


# ---------------------------------------------------------------------- changes


@changes.post("/inbox/learn", response_model=UpdateResult)
async def learn_waiting(
    service: AskedService,
    request: LearnRequest,
    dry_run: Annotated[
        bool, Query(description="true: learn on a copy, report, and throw it away")
    ] = False,
    anyway: Anyway = False,
    wait: Waits = True,
) -> Response:
    """Learn images that wait, in one step. Those that wait no more are left out."""
    return await changed(service, wait, service.learn, request.names, dry_run, anyway)


@changes.post("/forget", response_model=ChangeResult)
async def forget(
    service: AskedService,
    request: ForgetRequest,
    anyway: Anyway = False,
    wait: Waits = True,
) -> Response:
    """Remove a class: exactly where all of its images are kept and the head can, else from what
    is predicted.
    """
    return await changed(service, wait, service.forget, request.name, anyway)


@changes.post("/rename", response_model=ChangeResult)
async def rename(
    service: AskedService,
    request: RenameRequest,
    anyway: Anyway = False,
    wait: Waits = True,
) -> Response:
    """Give a class another name."""
    return await changed(
        service, wait, service.rename, request.old, request.new, anyway
    )


@changes.post("/move", response_model=ChangeResult)
async def move(
    service: AskedService,
    request: MoveRequest,
    anyway: Anyway = False,
    wait: Waits = True,
) -> Response:
    """Make images of a class images of another one; without ``images`` both become one.

    All must be kept in the workspace.
    """
    asked = (request.name, request.into, request.images, anyway)
    return await changed(service, wait, service.move, *asked)


@changes.post("/undo", response_model=ChangeResult)
async def undo(service: AskedService, wait: Waits = True) -> Response:
    """Go back by one change."""
    return await changed(service, wait, service.undo)


@changes.post("/redo", response_model=ChangeResult)
async def redo(service: AskedService, wait: Waits = True) -> Response:
    """Do again what was undone last."""
    return await changed(service, wait, service.redo)


@changes.post("/versions/{number}/serve", response_model=ChangeResult)
async def serve(
    service: AskedService, number: VersionNumber, wait: Waits = True
) -> Response:
    """Serve another version; this can be undone, too."""
    return await changed(service, wait, service.go_to, number)


@routes.get("/purge")
def purge_counts(service: AskedService, images: Purged = "forgotten") -> DeletedCounts:
    """Numbers of images and versions that a purge would delete."""
    return service.workspace.purge_counts(images == "all")


@changes.post("/purge", response_model=ChangeResult)
async def purge(
    service: AskedService, request: PurgeRequest, wait: Waits = True
) -> Response:
    """Delete kept images and every version but the served one, for good: this cannot be undone."""
    return await changed(service, wait, service.purge, request.images == "all")


@changes.get("/jobs/{job}")
def job(service: AskedService, job: str) -> JobInfo:
    """Progress of a change."""
    return job_info(service, service.job(job))


async def changed(
    service: Service, wait: bool, work: Callable[..., Result], *args: Any
) -> Response:
    """Ask for a change; return its result, or the job itself where the client does not wait."""
    job = service.submit(work, *args)
    if not wait:
        return JSONResponse(job_info(service, job).model_dump(), status_code=202)
    result = await asyncio.wrap_future(job.result)
    return JSONResponse(result.model_dump())


def job_info(service: Service, job: ChangeJob) -> JobInfo:
    """Return the state of a job."""
    info = JobInfo(
        job=job.key,
        action=job.action,
        state="waiting",
        place=service.place(job),
        done=job.done,
        total=job.total,
    )
    if job.result.running():
        info.state = "at work"
    if not job.result.done():
        return info
    error = job.result.exception()
    if isinstance(error, RequestError):
        info.state = "refused"
        info.status = error.status
        info.error = str(error)
        if isinstance(error, Question):
            info.may_be_asked_for = error.allowed
            info.instead = error.instead
        return info
    info.state = "done"
    info.status = 200
    result = job.result.result()
    if isinstance(result, UpdateResult):
        info.update = result
    else:
        info.change = result
    return info


# ---------------------------------------------------------------------- versions


@routes.get("/versions")
def versions(service: AskedService) -> Versions:
    """All versions, newest first."""
    entries = []
    for version in reversed(service.workspace.versions.values()):
        change = version.change
        entries.append(
            VersionInfo(
                number=version.number,
                parent=version.parent,
                action=change.action,
                message=change.message,
                time=version.time,
                classes=len(version.counts),
                images=sum(version.counts.values()),
                stored=version.stored,
                scores=dict(change.scores),
            )
        )
    return Versions(
        current=service.served.version,
        can_undo=service.workspace.can_undo,
        can_redo=service.workspace.can_redo,
        versions=entries,
    )


@routes.get("/versions/{number}/bundle", response_class=FileResponse)
def bundle(service: AskedService, number: VersionNumber) -> Response:
    """The version as a bundle, zipped: unpack it, and every command takes it as --model."""
    source = service.workspace.bundle(number)

    def write(file: Path) -> None:
        shutil.make_archive(str(file.with_suffix("")), "zip", source)

    return download(service, f"{number}.zip", write)


@routes.get("/versions/{number}/onnx", response_class=FileResponse)
def onnx(service: AskedService, number: VersionNumber) -> Response:
    """The version as one ONNX graph from images to probabilities."""
    from cifnet_pl.model.export import onnx_bytes

    model = service.workspace.load(number)

    def write(file: Path) -> None:
        with service.costly:
            content, _ = onnx_bytes(model)
        file.write_bytes(content)

    return download(service, f"{number}.onnx", write)


def download(
    service: Service, name: str, write: Callable[[Path], None]
) -> FileResponse:
    """Return a file that ``write`` makes; it goes when it is sent, or where that fails."""
    folder = service.workspace.incoming()
    file = folder / name
    try:
        write(file)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    remove = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    return FileResponse(
        file, filename=f"{service.options.name}-{name}", background=remove
    )


# ---------------------------------------------------------------------- the application


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
        version=__version__,
        description="A learned model: classify, learn, inspect, change.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.service = service
    # A batch for each core; requests with more images take turns, one image each.
    app.state.decoding = asyncio.Semaphore(LARGEST_BATCH * decoding_cores())
    app.state.receiving = asyncio.Semaphore(RECEIVED_AT_ONCE)
    app.include_router(routes)
    app.include_router(changes)
    app.mount("/page", StaticFiles(directory=PAGE))
    pages = {
        "/": lambda: FileResponse(PAGE / "page.html"),
        "/till": lambda: FileResponse(PAGE / "till.html"),
        "/docs": lambda: HTMLResponse(_docs(app)),
    }
    for path, page in pages.items():
        app.add_api_route(path, page, include_in_schema=False)
    for kind in (
        OSError,
        CifnetError,
        RequestValidationError,
        HTTPException,
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
    if isinstance(error, HTTPException):
        known = {404: messages.NOTHING_HERE, 405: messages.OTHER_METHOD}
        sentence = known.get(error.status_code, str(error.detail))
        return refused(error.status_code, sentence, dict(error.headers or {}))
    return refused(500, messages.FAILED)
