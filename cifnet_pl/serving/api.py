"""Serve over HTTP: one route for each thing that the service can do."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, File, Query, Request, Response, UploadFile
from fastapi import Path as InPath
from fastapi.responses import FileResponse, JSONResponse
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from cifnet_pl.images.image import UnreadableImage
from cifnet_pl.serving import inspection, messages
from cifnet_pl.serving.answering import ApiObject, ImageAnswer
from cifnet_pl.serving.change_queue import ChangeJob
from cifnet_pl.serving.inbox import LARGEST_INBOX, InboxView, Received, UploadGroup
from cifnet_pl.serving.refusals import Question, RequestError
from cifnet_pl.serving.service import ChangeResult, Service, UpdateResult
from cifnet_pl.utilities.text import printable

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


class ForgetRequest(ApiObject):
    """A class to forget."""

    name: str = Field(min_length=1, max_length=1000)


class RenameRequest(ApiObject):
    """A class, and its new name."""

    old: str = Field(min_length=1, max_length=1000)
    new: str = Field(min_length=1, max_length=1000)


class MoveRequest(ApiObject):
    """Images of a class that become images of another one."""

    name: str = Field(min_length=1, max_length=1000)
    into: str = Field(min_length=1, max_length=1000)
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


class DeletedImages(ApiObject):
    """Numbers of images and versions that a purge would delete for good."""

    learned: int
    """Kept images that the served version did not learn, or all."""
    taken_away: int
    versions: int


class DayInfo(ApiObject):
    """Counts of classified images and corrections of one day."""

    date: str
    asked: int
    unsure: int
    """Images for which no class, or several, were likely enough."""
    corrected: int
    """Images whose class someone corrected."""


class CountRequest(ApiObject):
    """Numbers to add to the counts of this day."""

    asked: int = Field(default=0, ge=0, le=1000)
    unsure: int = Field(default=0, ge=0, le=1000)
    corrected: int = Field(default=0, ge=0, le=1000)


class InboxCount(ApiObject):
    """The number of images that wait."""

    waiting: int


class PurgeRequest(ApiObject):
    """The images and versions to delete for good."""

    images: Literal["forgotten", "all"] = "forgotten"
    """Forgotten: kept images that the served version did not learn; all: every kept image."""


def the_service(request: Request) -> Service:
    """Return the service that answers a request."""
    service: Service = request.app.state.service
    return service


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error}
    for status in (
        400,
        401,
        403,
        404,
        408,
        409,
        410,
        413,
        415,
        421,
        422,
        429,
        500,
        503,
        507,
    )
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
Trial = Annotated[
    bool, Query(description="true: learn on a copy, report, and throw it away")
]
Back = Annotated[bool, Query(description="true: let them wait again instead")]


class ManyFilesRequest(Request):
    """A request with as many files as the service's limits allow; Starlette allows 1,000."""

    def form(self, **options: Any) -> Any:
        """Read the form."""
        limits = the_service(self).options.limits
        return super().form(**{**options, "max_files": limits.images + 1})


class ManyFilesRoute(APIRoute):
    """A route that reads requests with many files."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        """Return the handler of requests."""
        handle = super().get_route_handler()

        async def answer(request: Request) -> Response:
            response: Response = await handle(
                ManyFilesRequest(request.scope, request.receive)
            )
            return response

        return answer


routes = APIRouter(responses=ERRORS, route_class=ManyFilesRoute)
changes = APIRouter(responses={**ERRORS, 202: {"model": JobInfo}})

# ---------------------------------------------------------------------- classify and inspect


@routes.get("/health", tags=["classify"])
async def health() -> dict[str, bool]:
    """Whether the service runs and can answer."""
    return {"ready": True}


@routes.post("/classify", tags=["classify"])
async def classify(
    service: AskedService,
    files: SentFiles,
    top: Annotated[int, Query(ge=1, le=1000, description="classes per image")] = 5,
) -> Classification:
    """Predict the classes of images. One that cannot be decoded does not stop the others."""
    limits = service.options.limits
    if len(files) > limits.images:
        raise RequestError(413, messages.too_many_images(limits.images))
    waiting = []
    for file in files:
        name = file.filename or "image"
        if file.size is not None and file.size > limits.image_bytes:
            raise RequestError(413, messages.too_large(name, limits.image_bytes))
        waiting.append((name, service.score(await file.read())))
    version = service.served.version
    answers = []
    for name, future in waiting:
        try:
            scored = await asyncio.wrap_future(future)
        except UnreadableImage as error:
            answers.append(ImageAnswer(file=printable(name), unreadable=str(error)))
            continue
        version = scored.served.version
        answers.append(service.answer(name, scored, top))
    return Classification(version=version, images=answers)


@routes.get("/classes", tags=["inspect"])
def classes(service: AskedService) -> list[ClassInfo]:
    """The classes that the model knows, in the order they were learned."""
    served = service.served
    kept_images = service.workspace.kept_images(served.version)
    classes = []
    for name, count in served.model.counts.items():
        classes.append(
            ClassInfo(name=name, images=count, kept_images=kept_images.get(name, []))
        )
    return classes


@routes.get("/classes/predictions", tags=["inspect"])
def class_predictions(service: AskedService) -> inspection.ClassPredictions:
    """Accuracy of each class on new groups, what it is confused with, what more images bring.

    It takes seconds.
    """
    return service.class_predictions()


@routes.get("/summary", tags=["inspect"])
def summary(service: AskedService) -> inspection.ModelSummary:
    """The state of the model, its history and its accuracy."""
    served = service.served
    options = service.options
    return inspection.summarised(
        served.model, options.name, served.version, options.read_only
    )


@routes.get("/days", tags=["inspect"])
def days(service: AskedService) -> list[DayInfo]:
    """Daily counts of classified images and corrections, oldest first."""
    return [DayInfo(**counts._asdict()) for counts in service.workspace.days()]


@routes.post("/days", tags=["inspect"])
def count_answers(service: AskedService, request: CountRequest) -> list[DayInfo]:
    """Count answers of this day."""
    service.count_answers(request.asked, request.unsure, request.corrected)
    return days(service)


@routes.get("/audit", tags=["inspect"])
def audit(service: AskedService) -> inspection.AuditView:
    """Label errors among the kept images; takes seconds."""
    with one_at_a_time(service.costly):
        return service.audit()


@contextmanager
def one_at_a_time(lock: Lock) -> Iterator[None]:
    """Let one client at a time into the block; refuse others with 503.

    Work that takes seconds would otherwise take every thread.

    Raises:
        RequestError: another client is within.
    """
    if not lock.acquire(blocking=False):
        raise RequestError(503, messages.COSTLY_WORK_RUNS)
    try:
        yield
    finally:
        lock.release()


@routes.get("/images/{name}", tags=["inspect"], response_class=Response)
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


# ---------------------------------------------------------------------- learn and change


@routes.post("/inbox", tags=["learn"])
async def receive(
    request: Request, service: AskedService, files: SentFiles
) -> Received:
    """Store images, or zip files of images, until they are labelled; the disk has them then."""
    async with request.app.state.staging:
        images = [(file.filename or "image", file.file) for file in files]
        return await run_in_threadpool(service.receive, images)


@routes.get("/inbox", tags=["learn"])
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


@routes.post("/group", tags=["learn"])
def group(service: AskedService, request: ImagesRequest) -> list[UploadGroup]:
    """Group images that wait or are kept by similarity, so that each group is labelled once."""
    if len(request.images) > GROUPED_IMAGES:
        raise RequestError(413, messages.too_many_to_group(GROUPED_IMAGES))
    return service.inbox.group(request.images)


@routes.post("/inbox/remove", tags=["learn"])
def remove(
    service: AskedService, request: ImagesRequest, back: Back = False
) -> InboxCount:
    """Take images away that need no label; their files stay until the service starts again."""
    return InboxCount(waiting=service.remove(request.images, back))


@routes.post("/inbox/names", tags=["learn"])
def name_images(service: AskedService, request: NamesRequest) -> InboxCount:
    """Remember classes that someone typed; nothing is learned by it."""
    service.name_images(request.names)
    return InboxCount(waiting=len(service.workspace.waiting()))


@changes.post("/inbox/learn", tags=["learn"], response_model=UpdateResult)
async def learn_waiting(
    service: AskedService,
    request: LearnRequest,
    dry_run: Trial = False,
    anyway: Anyway = False,
    wait: Waits = True,
) -> Response:
    """Learn images that wait, in one step. Those that wait no more are left out."""
    job = await run_in_threadpool(service.learn, request.names, dry_run, anyway)
    return await ended(service, job, wait)


@changes.post("/forget", tags=["change"], response_model=ChangeResult)
async def forget(
    service: AskedService,
    request: ForgetRequest,
    anyway: Anyway = False,
    wait: Waits = True,
) -> Response:
    """Remove a class: exactly where all of its images are kept and the head can, else from what
    is predicted.
    """
    return await ended(service, service.forget(request.name, anyway), wait)


@changes.post("/rename", tags=["change"], response_model=ChangeResult)
async def rename(
    service: AskedService,
    request: RenameRequest,
    anyway: Anyway = False,
    wait: Waits = True,
) -> Response:
    """Give a class another name."""
    return await ended(service, service.rename(request.old, request.new, anyway), wait)


@changes.post("/move", tags=["change"], response_model=ChangeResult)
async def move(
    service: AskedService,
    request: MoveRequest,
    anyway: Anyway = False,
    wait: Waits = True,
) -> Response:
    """Make images of a class images of another one; without ``images`` both become one.

    All must be kept in the workspace.
    """
    job = service.move(request.name, request.into, request.images, anyway)
    return await ended(service, job, wait)


@changes.post("/undo", tags=["change"], response_model=ChangeResult)
async def undo(service: AskedService, wait: Waits = True) -> Response:
    """Go back by one change."""
    return await ended(service, service.undo(), wait)


@changes.post("/redo", tags=["change"], response_model=ChangeResult)
async def redo(service: AskedService, wait: Waits = True) -> Response:
    """Do again what was undone last."""
    return await ended(service, service.redo(), wait)


@routes.get("/purge", tags=["change"])
def purge_counts(
    service: AskedService, images: Literal["forgotten", "all"] = "forgotten"
) -> DeletedImages:
    """Numbers of images and versions that a purge would delete."""
    counts = service.workspace.purge_counts(every=images == "all")
    return DeletedImages(**counts._asdict())


@changes.post("/purge", tags=["change"], response_model=ChangeResult)
async def purge(
    service: AskedService, request: PurgeRequest, wait: Waits = True
) -> Response:
    """Delete kept images and every version but the served one, for good: this cannot be undone."""
    return await ended(service, service.purge(request.images), wait)


@changes.post("/versions/{number}/serve", tags=["change"], response_model=ChangeResult)
async def serve(
    service: AskedService, number: VersionNumber, wait: Waits = True
) -> Response:
    """Serve another version; this can be undone, too."""
    return await ended(service, service.go_to(number), wait)


@changes.get("/jobs/{job}", tags=["learn"])
def job(service: AskedService, job: str) -> JobInfo:
    """Progress of a change."""
    return job_info(service, service.changes.job(job))


async def ended(service: Service, job: ChangeJob, wait: bool) -> Response:
    """Return the result of a change, or the job itself where the client does not wait."""
    if not wait:
        return JSONResponse(job_info(service, job).model_dump(), status_code=202)
    (answer,) = (await asyncio.wrap_future(job.result)).values()
    return JSONResponse(answer.model_dump())


def job_info(service: Service, job: ChangeJob) -> JobInfo:
    """Return the state of a job."""
    info = JobInfo(
        job=job.key,
        action=job.action,
        state="at work" if job.started else "waiting",
        place=service.changes.place(job),
        done=job.done,
        total=job.total,
    )
    if not job.result.done():
        return info
    error = job.result.exception()
    if error is None:
        return info.model_copy(
            update={"state": "done", "status": 200, **job.result.result()}
        )
    assert isinstance(error, RequestError)
    refused: dict[str, Any] = {
        "state": "refused",
        "status": error.status,
        "error": str(error),
    }
    if isinstance(error, Question):
        refused["may_be_asked_for"] = error.allowed
        refused["instead"] = error.instead
    return info.model_copy(update=refused)


# ---------------------------------------------------------------------- versions


@routes.get("/versions", tags=["change"])
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


@routes.get("/versions/{number}/bundle", tags=["change"], response_class=FileResponse)
def bundle(service: AskedService, number: VersionNumber) -> Response:
    """The version as a bundle, zipped: unpack it, and every command takes it as --model."""
    source = service.workspace.bundle(number)
    with download_file(service, ".zip") as file:
        shutil.make_archive(str(file.with_suffix("")), "zip", source)
    return download(service, number, file)


@routes.get("/versions/{number}/onnx", tags=["change"], response_class=FileResponse)
def onnx(service: AskedService, number: VersionNumber) -> Response:
    """The version as one ONNX graph from images to probabilities."""
    from cifnet_pl.model.export import onnx_bytes

    model = service.workspace.load(number)
    with one_at_a_time(service.costly), download_file(service, ".onnx") as file:
        content, _ = onnx_bytes(model)
        file.write_bytes(content)
    return download(service, number, file)


@contextmanager
def download_file(service: Service, suffix: str) -> Iterator[Path]:
    """Yield where to write a file that is sent; it goes where that fails."""
    folder = service.workspace.incoming()
    try:
        yield folder / f"file{suffix}"
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def download(service: Service, number: int, file: Path) -> FileResponse:
    """Return a file that is sent, and removed then with its folder."""
    remove = BackgroundTask(shutil.rmtree, file.parent, ignore_errors=True)
    name = f"{service.options.name}-{number}{file.suffix}"
    return FileResponse(file, filename=name, background=remove)
