"""Serve over HTTP: the page, and one route for each thing that the service can do."""

import asyncio
import io
import math
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal
from urllib.parse import quote
from zipfile import ZipFile

from fastapi import (
    APIRouter,
    Body,
    Depends,
    FastAPI,
    File,
    Query,
    Request,
    UploadFile,
)
from fastapi import Path as InPath
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader
from PIL import Image
from pydantic import Field
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from cifnet_pl.images.image import UnreadableImage
from cifnet_pl.images.reader import decoding_cores
from cifnet_pl.serving import inspection
from cifnet_pl.serving.answering import LARGEST_BATCH, ImageAnswer
from cifnet_pl.serving.gate import (
    LIMITS,
    Access,
    ApiObject,
    Gate,
    check_number,
    content_of,
    decoded,
    refused,
)
from cifnet_pl.serving.inbox import InboxView, Received, UploadGroup
from cifnet_pl.serving.messages import RequestError, has_disk_error, refusal_of
from cifnet_pl.serving.service import (
    ChangeResult,
    Job,
    Result,
    Service,
    UpdateResult,
)
from cifnet_pl.serving.workspace import Day, DeletedCounts, Version
from cifnet_pl.utilities.errors import CifnetError, first_mistake
from cifnet_pl.utilities.text import printable
from cifnet_pl.utilities.version import __version__

PAGE = Path(__file__).parent / "page"
TEMPLATES = Environment(loader=FileSystemLoader(PAGE), autoescape=True)
PAGES = {"/": "page.html", "/till": "till.html", "/docs": "docs.html"}
"""Templates of what browsers show, by their paths."""

RECEIVED_AT_ONCE = 2
"""Requests whose images are stored at the same time, so that others keep their threads."""

GROUPED_IMAGES = 2000
"""Images that are grouped in one request: the time grows with the square of their number."""

AUDITED_IMAGES = 2000
"""Kept images that are audited at most, evenly spaced."""

PREVIEW_SIDE = 320
"""Pixels of a side of what is shown where a browser cannot show an image's format."""

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
    """Answers to one request, all from the same version."""

    version: int
    images: list[ImageAnswer]


class ClassInfo(ApiObject):
    """One class that the model knows."""

    name: str
    images: int
    """Number of images it was learned from."""
    kept_images: list[str]
    """Names of images that are kept in the workspace."""


class Versions(ApiObject):
    """All versions, newest first."""

    current: int
    can_undo: bool
    can_redo: bool
    versions: list[Version]


Purged = Literal["forgotten", "all"]


class InboxCount(ApiObject):
    """The number of images that wait."""

    waiting: int


def the_service(request: Request) -> Service:
    """Return the service that answers a request."""
    service: Service = request.app.state.service
    return service


AskedService = Annotated[Service, Depends(the_service)]


def check_writable(service: AskedService) -> None:
    """Raise RequestError if changes are refused."""
    if service.options.read_only:
        raise RequestError(
            403, "this service is read-only: it answers, but does not learn"
        )


SentFiles = Annotated[list[UploadFile], File(description="one image or many")]
Text = Annotated[str, Field(max_length=1000)]
"""A text whose length is checked, so that one with half a character, which no file can store, is
refused."""
ClassName = Annotated[Text, Body(min_length=1)]
FileNames = Annotated[
    list[Text],
    Body(
        embed=True,
        min_length=1,
        description="names of the images' files",
    ),
]
Count = Annotated[int, Body(ge=0, le=1000)]
VersionNumber = Annotated[int, InPath(ge=1, le=10**9)]
KnownVersion = Annotated[
    int | None,
    Body(
        embed=True,
        description="that the client believes to be served; refused with 409 if another is",
    ),
]
Anyway = Annotated[
    bool,
    Query(
        description="true: make even a change that may be a mistake, which is refused with 409"
    ),
]

routes = APIRouter()
writes = APIRouter(dependencies=[Depends(check_writable)])

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
    check_number(len(files))
    for file in files:
        name = file.filename or "image"
        content = await run_in_threadpool(content_of, file.file)
        await decoding.acquire()
        future = asyncio.wrap_future(service.answering.submit(content))
        future.add_done_callback(lambda _: decoding.release())
        waiting.append((name, future))
    served = service.answering.served
    answers = []
    for name, future in waiting:
        try:
            scored = await future
        except UnreadableImage as error:
            answers.append(ImageAnswer(file=printable(name), unreadable=str(error)))
            continue
        if scored.served is not served:
            # A change was stored meanwhile; the embedding is right for every version.
            (scored,) = await run_in_threadpool(served.scored, scored.z[None])
        answers.append(scored.answer(name, top))
    return Classification(version=served.version, images=answers)


@routes.get("/classes")
def classes(service: AskedService) -> list[ClassInfo]:
    """The classes that the model knows, in the order they were learned."""
    model = service.answering.served.model
    kept = service.workspace.kept_images()
    return [
        ClassInfo(name=name, images=count, kept_images=kept.get(name, []))
        for name, count in model.counts.items()
    ]


@routes.get("/classes/predictions")
def class_predictions(service: AskedService) -> inspection.ClassPredictions:
    """Accuracy of each class on new groups, and what it is confused with.

    It takes seconds.
    """
    served = service.answering.served
    with service.costly:
        return served.predictions


@routes.get("/summary")
def summary(service: AskedService) -> inspection.ModelSummary:
    """The state of the model, its history and its accuracy."""
    served = service.answering.served
    model = served.model
    return inspection.ModelSummary(
        name=service.options.name,
        version=served.version,
        read_only=service.options.read_only,
        head=type(model.head).__name__,
        backbone=model.backbone.name,
        image_size=model.image_size,
        largest_file=LIMITS.body_bytes,
        photo_side=round(inspection.PHOTO_SCALE * model.image_size / model.crop_ratio),
        classes=len(model.class_names),
        images=sum(model.counts.values()),
        history=model.history,
        accuracy=inspection.AccuracyEstimate.from_model(model),
    )


@routes.get("/days")
def days(service: AskedService) -> list[Day]:
    """Daily counts of classified images and corrections, oldest first."""
    return service.workspace.days()


@writes.post("/days")
def count_answers(
    service: AskedService,
    asked: Count = 0,
    unsure: Count = 0,
    corrected: Count = 0,
    back: Annotated[
        bool, Query(description="true: take them out of the counts instead")
    ] = False,
) -> list[Day]:
    """Count answers of this day."""
    counts = [asked, unsure, corrected]
    if back:
        counts = [-count for count in counts]
    service.workspace.count_answers(*counts)
    return service.workspace.days()


@routes.get("/audit")
def audit(service: AskedService) -> inspection.AuditView:
    """Label errors among the kept images; takes seconds."""
    with service.costly:
        kept = service.workspace.kept_images()
        label_of = {file: name for name, files in kept.items() for file in files}
        step = math.ceil(len(label_of) / AUDITED_IMAGES) or 1
        files, z = service.inbox.embeddings(list(label_of)[::step])
        return inspection.audited(files, z, [label_of[file] for file in files])


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
    content = path.read_bytes()
    if path.suffix in MEDIA_TYPES and not small:
        return Response(content, media_type=MEDIA_TYPES[path.suffix])
    square = decoded(content, PREVIEW_SIDE)
    preview = io.BytesIO()
    Image.fromarray(square).save(preview, "JPEG")
    return Response(preview.getvalue(), media_type="image/jpeg")


# ---------------------------------------------------------------------- images that wait


@writes.post("/inbox")
async def receive(
    request: Request,
    service: AskedService,
    files: SentFiles,
) -> Received:
    """Store images, or zip files of images, until they are labelled; the disk has them then."""
    sent = [(one.filename or "image", one.file) for one in files]
    async with request.app.state.receiving:
        return await run_in_threadpool(service.inbox.receive, sent)


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
def group(service: AskedService, images: FileNames) -> list[UploadGroup]:
    """Group images that wait or are kept by similarity, so that each group is labelled once."""
    if len(images) > GROUPED_IMAGES:
        allowed = f"more than {GROUPED_IMAGES} photos to group in one request"
        raise RequestError(413, f"{allowed}: send them in parts")
    return service.inbox.group(images)


@writes.post("/inbox/remove")
def remove(
    service: AskedService,
    images: FileNames,
    back: Annotated[
        bool, Query(description="true: let them wait again instead")
    ] = False,
) -> InboxCount:
    """Take images away that need no label; the first start after a week deletes their files."""
    service.workspace.remove(images, back)
    return InboxCount(waiting=len(service.workspace.waiting()))


@writes.post("/inbox/names")
def name_images(
    service: AskedService,
    names: Annotated[
        dict[Text, Text | None],
        Body(
            embed=True,
            min_length=1,
            description="name of an image's file → its class; null to forget it",
        ),
    ],
) -> InboxCount:
    """Remember classes that someone typed; nothing is learned by it."""
    service.workspace.name_images(names)
    return InboxCount(waiting=len(service.workspace.waiting()))


# ---------------------------------------------------------------------- changes


@dataclass(frozen=True)
class ChangeRequest:
    """Asks for changes in the way of one request.

    Attributes:
        service: that makes them.
        wait: whether the client waits for the end.
    """

    service: AskedService
    wait: Annotated[
        bool,
        Query(description="false: answer at once with a job, to be asked for at /jobs"),
    ] = True

    async def __call__(
        self,
        action: str,
        work: Callable[..., Result],
        *args: Any,
    ) -> Response:
        """Return the result of a change, or the job itself where the client does not wait.

        Args:
            action: what the job calls it.
            work: method of the service that makes it.
            args: of the method.
        """
        job = self.service.submit(action, work, *args)
        if not self.wait:
            return JSONResponse(job.model_dump(), status_code=202)
        # A client that goes, or the end of the service, does not cancel the change.
        await asyncio.shield(asyncio.wrap_future(job.end))
        result = job.update or job.change
        if result is None:
            raise RequestError(job.status or 500, str(job.error))
        return JSONResponse(result.model_dump())


AskedChange = Annotated[ChangeRequest, Depends()]


@writes.post("/inbox/learn", response_model=UpdateResult)
async def learn_waiting(
    change: AskedChange,
    names: Annotated[
        dict[Text, Text],
        Body(
            embed=True,
            min_length=1,
            description="name of an image's file → its class",
        ),
    ],
    dry_run: Annotated[
        bool, Query(description="true: learn on a copy, report, and throw it away")
    ] = False,
    anyway: Anyway = False,
) -> Response:
    """Learn images that wait, in one step. Those that wait no more are left out."""
    return await change("learn", change.service.learn, names, dry_run, anyway)


@writes.post("/forget", response_model=ChangeResult)
async def forget(
    change: AskedChange,
    name: Annotated[ClassName, Body(embed=True)],
) -> Response:
    """Remove a class: exactly where all of its images are kept and the head can, else from what
    is predicted.
    """
    return await change("forget", change.service.forget, name)


@writes.post("/rename", response_model=ChangeResult)
async def rename(
    change: AskedChange,
    old: ClassName,
    new: ClassName,
    anyway: Anyway = False,
) -> Response:
    """Give a class another name."""
    return await change("rename", change.service.rename, old, new, anyway)


@writes.post("/move", response_model=ChangeResult)
async def move(
    change: AskedChange,
    name: ClassName,
    into: Annotated[ClassName, Body(description="a known class, or a new one")],
    images: Annotated[
        list[str] | None,
        Body(description="names of files; null for all"),
    ] = None,
    anyway: Anyway = False,
) -> Response:
    """Make images of a class images of another one; without ``images`` both become one.

    All must be kept in the workspace.
    """
    return await change("move", change.service.move, name, into, images, anyway)


@writes.post("/undo", response_model=ChangeResult)
async def undo(change: AskedChange, version: KnownVersion = None) -> Response:
    """Go back by one change."""
    return await change("undo", change.service.walk, "undo", version)


@writes.post("/redo", response_model=ChangeResult)
async def redo(change: AskedChange, version: KnownVersion = None) -> Response:
    """Do again what was undone last."""
    return await change("redo", change.service.walk, "redo", version)


@writes.post("/versions/{number}/serve", response_model=ChangeResult)
async def serve(change: AskedChange, number: VersionNumber) -> Response:
    """Serve another version; this can be undone, too."""
    return await change("go_to", change.service.go_to, number)


@routes.get("/purge")
def purge_counts(service: AskedService, images: Purged = "forgotten") -> DeletedCounts:
    """Numbers of images and versions that a purge would delete."""
    return service.workspace.purge_counts(images == "all")


@writes.post("/purge", response_model=ChangeResult)
async def purge(
    change: AskedChange,
    images: Annotated[
        Purged,
        Body(
            embed=True,
            description="forgotten: kept images that the served version did not learn",
        ),
    ] = "forgotten",
) -> Response:
    """Delete kept images and every version but the served one, for good: this cannot be undone."""
    return await change("purge", change.service.purge, images == "all")


@routes.get("/jobs/{job}")
def job(service: AskedService, job: str) -> Job:
    """Progress of a change."""
    return service.job(job)


# ---------------------------------------------------------------------- versions


@routes.get("/versions")
def versions(service: AskedService) -> Versions:
    """All versions, newest first."""
    return Versions(
        current=service.answering.served.version,
        can_undo=service.workspace.step("undo") is not None,
        can_redo=service.workspace.step("redo") is not None,
        versions=list(reversed(service.workspace.versions.values())),
    )


@routes.get("/versions/{number}/bundle", response_class=FileResponse)
def bundle(service: AskedService, number: VersionNumber) -> Response:
    """The version as a bundle, zipped: unpack it, and every command takes it as --model."""
    source = service.workspace.bundle(number)
    folder = TemporaryDirectory(dir=service.workspace.incoming)  # goes with its object
    file = f"{folder.name}/bundle.zip"
    # Files of reproducible builds are dated 1970, which Zip cannot express.
    with ZipFile(file, "w", strict_timestamps=False) as archive:
        for path in source.iterdir():
            archive.write(path, path.name)
    name = f"{service.options.name}-{number}.zip"
    remove = BackgroundTask(folder.cleanup)
    return FileResponse(file, filename=name, background=remove)


@routes.get("/versions/{number}/onnx", response_class=Response)
def onnx(service: AskedService, number: VersionNumber) -> Response:
    """The version as one ONNX graph from images to probabilities."""
    model = service.workspace.load(number)
    with service.costly:
        content = model.to_onnx().content
    name = f"{service.options.name}-{number}.onnx"
    attached = {"content-disposition": f"attachment; filename*=utf-8''{quote(name)}"}
    return Response(content, headers=attached, media_type="application/octet-stream")


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
        responses={"4XX": {"model": Error}, "5XX": {"model": Error}},
        lifespan=lifespan,
    )
    app.state.service = service
    # A batch for each core; requests with more images take turns, one image each.
    app.state.decoding = asyncio.Semaphore(LARGEST_BATCH * decoding_cores())
    app.state.receiving = asyncio.Semaphore(RECEIVED_AT_ONCE)
    app.include_router(routes)
    app.include_router(writes)
    app.mount("/page", StaticFiles(directory=PAGE))
    for path, template in PAGES.items():
        page = partial(_page, app, template)
        app.add_api_route(path, page, methods=["GET", "HEAD"], include_in_schema=False)
    for kind in (
        OSError,
        sqlite3.Error,
        CifnetError,
        RequestValidationError,
        HTTPException,
        Exception,
    ):
        app.add_exception_handler(kind, _answer_error)
    return Gate(app, access)


def _page(app: FastAPI, template: str) -> HTMLResponse:
    """Return a page; that of the API is made of its description.

    FastAPI's own page of the API loads scripts from elsewhere.
    """
    page = TEMPLATES.get_template(template)
    return HTMLResponse(page.render(app.openapi()))


async def _answer_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an error.

    Starlette raises an unexpected one again afterwards, and uvicorn writes it to the log.
    """
    if isinstance(error, RequestValidationError):
        mistake = first_mistake(error)
        return refused(422, f"the request is wrong: {mistake}")
    # A full disk may be met in reading a request's files, too.
    if isinstance(error, HTTPException) and not has_disk_error(error):
        return refused(error.status_code, str(error.detail), error.headers)
    refusal = refusal_of(error)
    return refused(refusal.status, str(refusal))
