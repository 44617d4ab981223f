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
from pydantic import Field
from starlette.background import BackgroundTask
from starlette.concurrency import run_in_threadpool

from cifnet_pl.images.image import UnreadableImage
from cifnet_pl.serving import inspection
from cifnet_pl.serving.answering import ImageAnswer, Message
from cifnet_pl.serving.inbox import MOST, Group, InboxView, Received
from cifnet_pl.serving.learner import Job
from cifnet_pl.serving.refusals import Question, RequestError
from cifnet_pl.serving.service import Changed, Lesson, Service
from cifnet_pl.utilities.text import printable

MOST_GROUPED = 500
"""Photos that are grouped in one request: the time grows with the square of their number."""

TYPES = {
    ".jpg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
    ".gif": "image/gif",
    ".bmp": "image/bmp",
}


class Error(Message):
    """Why a request was refused."""

    error: str
    """One sentence."""


class Classification(Message):
    """Answers to one request; all from the same version unless a change was stored in between."""

    version: int
    images: list[ImageAnswer]


class ClassInfo(Message):
    """One class that the model knows."""

    name: str
    images: int
    """Number of photos it was learned from."""
    kept: list[str] = Field(default=[])
    """Names of photos that are kept in the workspace."""


class JobInfo(Message):
    """A change that is asked for but not finished, or its end."""

    job: str
    what: str
    state: Literal["waiting", "at work", "done", "refused"]
    place: int
    """Number of changes that come before this one."""
    done: int
    """Photos learned so far."""
    total: int | None = None
    status: int | None = None
    """HTTP status that the change ended with."""
    error: str | None = None
    may_be_asked_for: bool = False
    """Whether a refused change is made where it is sent with anyway=true."""
    instead: str | None = None
    """Class that is meant instead, maybe."""
    lesson: Lesson | None = None
    changed: Changed | None = None


class VersionInfo(Message):
    """One version of the model."""

    number: int
    parent: int | None
    what: str
    says: str
    when: str
    classes: int
    images: int
    stored: bool
    scores: dict[str, float] = Field(default={})
    """Percentages; held_back_photos is how many photos held_back is a share of."""


class Versions(Message):
    """All versions, newest first."""

    current: int
    can_undo: bool
    can_redo: bool
    versions: list[VersionInfo]


class Forget(Message):
    """A class to forget."""

    name: str = Field(min_length=1, max_length=1000)


class Rename(Message):
    """A class, and its new name."""

    old: str = Field(min_length=1, max_length=1000)
    new: str = Field(min_length=1, max_length=1000)


class Move(Message):
    """Photos of a class that become photos of another one."""

    name: str = Field(min_length=1, max_length=1000)
    into: str = Field(min_length=1, max_length=1000)
    """A known class, or a new one."""
    images: list[str] | None = Field(default=None, max_length=MOST)
    """Names of files; null for all."""


class Chosen(Message):
    """Some of the photos that wait or are kept, by the names of their files."""

    images: list[str] = Field(min_length=1, max_length=MOST)


class Named(Message):
    """The classes of photos that wait."""

    names: dict[str, str] = Field(min_length=1, max_length=MOST)
    """Name of a photo's file → its class."""


class Left(Message):
    """The number of photos that wait."""

    waiting: int


class Purge(Message):
    """The photos and versions to delete for good."""

    images: Literal["forgotten", "all"] = "forgotten"
    """Forgotten: kept photos that the served version did not learn; all: every kept photo."""


def the_service(request: Request) -> Service:
    """Return the service that answers a request."""
    service: Service = request.app.state.service
    return service


ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": Error}
    for status in (400, 401, 403, 404, 408, 409, 410, 413, 415, 421, 422, 429, 500, 503, 507)
}
Served = Annotated[Service, Depends(the_service)]
Images = Annotated[list[UploadFile], File(description="one photo or many")]
Number = Annotated[int, InPath(ge=1, le=10**9)]
Waits = Annotated[
    bool, Query(description="false: answer at once with a job, to be asked for at /jobs")
]
Anyway = Annotated[
    bool,
    Query(description="true: make even a change that may be a mistake, which is refused with 409"),
]
Trial = Annotated[bool, Query(description="true: learn on a copy, report, and throw it away")]
Back = Annotated[bool, Query(description="true: let them wait again instead")]

routes = APIRouter(responses=ERRORS)
changes = APIRouter(responses={**ERRORS, 202: {"model": JobInfo}})

# ---------------------------------------------------------------------- ask and look


@routes.get("/health", tags=["ask"])
async def health() -> dict[str, bool]:
    """Whether the service runs and can answer."""
    return {"ready": True}


@routes.post("/classify", tags=["ask"])
async def classify(
    service: Served,
    files: Images,
    top: Annotated[int, Query(ge=1, le=1000, description="classes per photo")] = 5,
) -> Classification:
    """Name what is on photos. A photo that cannot be decoded is named, and does not stop the
    others.
    """
    limits = service.options.limits
    waiting = []
    if len(files) > limits.images:
        raise RequestError(413, f"more than {limits.images} photos in one request")
    for file in files:
        name = file.filename or "photo"
        if file.size is not None and file.size > limits.image_bytes:
            raise RequestError(
                413, f"{printable(name[:200])} is larger than {limits.image_bytes // 2**20} MiB"
            )
        waiting.append((name, service.score(await file.read())))
    version = service.learner.served.version
    replies = []
    for name, future in waiting:
        try:
            scored = await asyncio.wrap_future(future)
        except UnreadableImage as error:
            replies.append(ImageAnswer(file=printable(name), unreadable=str(error)))
            continue
        version = scored.served.version
        replies.append(service.answer(name, scored, top))
    return Classification(version=version, images=replies)


@routes.get("/classes", tags=["look"])
def classes(service: Served) -> list[ClassInfo]:
    """The classes that the model knows, in the order they were learned."""
    served = service.learner.served
    kept = service.workspace.kept(served.version)
    return [
        ClassInfo(name=n, images=count, kept=kept.get(n, []))
        for n, count in served.model.counts.items()
    ]


@routes.get("/classes/predictions", tags=["look"])
def class_answers(service: Served) -> inspection.Answers:
    """How often each class is right on another day, what it is taken for, what more photos bring;
    takes seconds.
    """
    return service.class_answers()


@routes.get("/look", tags=["look"])
def look(service: Served) -> inspection.Look:
    """The state of the model, its history, and its confusions on stored samples."""
    served = service.learner.served
    options = service.options
    return inspection.look(served.model, options.name, served.version, options.read_only)


@routes.get("/audit", tags=["look"])
def audit(service: Served) -> inspection.Audit:
    """Doubtful labels among the kept photos; takes seconds."""
    with alone(service.costly):
        return service.audit()


@contextmanager
def alone(lock: Lock) -> Iterator[None]:
    """Within the block, work for one client only: work that takes seconds for many would take every
    thread.
    """
    if not lock.acquire(blocking=False):
        raise RequestError(
            503, "an audit or an ONNX graph is being made already: try again in a few seconds"
        )
    try:
        yield
    finally:
        lock.release()


@routes.get("/images/{name}", tags=["look"], response_class=Response)
def image(
    service: Served,
    name: str,
    small: Annotated[bool, Query(description="true: its middle as a small JPEG")] = False,
) -> Response:
    """A photo that is kept in the workspace; as a small JPEG where browsers cannot show its
    format.
    """
    path = service.workspace.image(name)
    if path.suffix in TYPES and not small:
        return Response(path.read_bytes(), media_type=TYPES[path.suffix])
    return Response(service.preview(path.read_bytes()), media_type="image/jpeg")


# ---------------------------------------------------------------------- teach and change: each
# makes a version


@routes.post("/inbox", tags=["teach"])
async def receive(request: Request, service: Served, files: Images) -> Received:
    """Keep photos, or zip files of photos, until they are decided. The disk has them when this is
    answered.
    """
    async with request.app.state.staging:
        images = [(file.filename or "photo", file.file) for file in files]
        return await run_in_threadpool(service.receive, images)


@routes.get("/inbox", tags=["teach"])
def waiting(
    service: Served,
    first: Annotated[int, Query(ge=0, description="photos to leave out at the beginning")] = 0,
    count: Annotated[int, Query(ge=0, description="photos to return")] = 60,
) -> InboxView:
    """Photos that wait, answered by the served version, the most doubtful first and certain ones
    last.
    """
    return service.inbox.view(first, count)


@routes.post("/group", tags=["teach"])
def group(service: Served, request: Chosen) -> list[Group]:
    """Group photos that wait or are kept by likeness, so that each group can be named once."""
    if len(request.images) > MOST_GROUPED:
        raise RequestError(
            413, f"more than {MOST_GROUPED} photos to group in one request: send them in parts"
        )
    return service.inbox.group(request.images)


@routes.post("/inbox/remove", tags=["teach"])
def remove(service: Served, request: Chosen, back: Back = False) -> Left:
    """Take photos away that need not be decided; their files stay until the service is started
    again.
    """
    return Left(waiting=service.remove(request.images, back))


@changes.post("/inbox/learn", tags=["teach"], response_model=Lesson)
async def learn_waiting(
    service: Served,
    request: Named,
    dry_run: Trial = False,
    anyway: Anyway = False,
    wait: Waits = True,
) -> Response:
    """Learn photos that wait, in one step. Those that someone else decided meanwhile are left
    out.
    """
    job = await run_in_threadpool(service.decide, request.names, dry_run, anyway)
    return await ended(service, job, wait)


@changes.post("/forget", tags=["change"], response_model=Changed)
async def forget(service: Served, request: Forget, wait: Waits = True) -> Response:
    """Remove a class: exactly where all of its photos are kept and the head can, else from the
    answers.
    """
    return await ended(service, service.forget(request.name), wait)


@changes.post("/rename", tags=["change"], response_model=Changed)
async def rename(
    service: Served, request: Rename, anyway: Anyway = False, wait: Waits = True
) -> Response:
    """Give a class another name."""
    return await ended(service, service.rename(request.old, request.new, anyway), wait)


@changes.post("/move", tags=["change"], response_model=Changed)
async def move(
    service: Served, request: Move, anyway: Anyway = False, wait: Waits = True
) -> Response:
    """Make photos of a class photos of another one; without ``photos`` both become one. All must be
    kept here.
    """
    return await ended(
        service, service.move(request.name, request.into, request.images, anyway), wait
    )


@changes.post("/undo", tags=["change"], response_model=Changed)
async def undo(service: Served, wait: Waits = True) -> Response:
    """Go back by one change."""
    return await ended(service, service.undo(), wait)


@changes.post("/redo", tags=["change"], response_model=Changed)
async def redo(service: Served, wait: Waits = True) -> Response:
    """Do again what was undone last."""
    return await ended(service, service.redo(), wait)


@changes.post("/purge", tags=["change"], response_model=Changed)
async def purge(service: Served, request: Purge, wait: Waits = True) -> Response:
    """Delete kept photos and every version but the served one, for good: this cannot be undone."""
    return await ended(service, service.purge(request.images), wait)


@changes.post("/versions/{number}/serve", tags=["change"], response_model=Changed)
async def serve(service: Served, number: Number, wait: Waits = True) -> Response:
    """Serve another version; this can be undone, too."""
    return await ended(service, service.go_to(number), wait)


@changes.get("/jobs/{job}", tags=["teach"])
def job(service: Served, job: str) -> JobInfo:
    """How far a change is."""
    return job_info(service, service.learner.job(job))


async def ended(service: Service, job: Job, wait: bool) -> Response:
    """Return the result of a change, or the job itself where the client does not wait."""
    if not wait:
        return JSONResponse(job_info(service, job).model_dump(), status_code=202)
    (answer,) = (await asyncio.wrap_future(job.result)).values()
    return JSONResponse(answer.model_dump())


def job_info(service: Service, job: Job) -> JobInfo:
    """Return the state of a job."""
    info = JobInfo(
        job=job.key,
        what=job.what,
        state="at work" if job.started else "waiting",
        place=service.learner.place(job),
        done=job.done,
        total=job.total,
    )
    if not job.result.done():
        return info
    error = job.result.exception()
    if error is None:
        return info.model_copy(update={"state": "done", "status": 200, **job.result.result()})
    assert isinstance(error, RequestError)
    why = {"state": "refused", "status": error.status, "error": str(error)}
    if isinstance(error, Question):
        why |= {"may_be_asked_for": True, "instead": error.instead}
    return info.model_copy(update=why)


# ---------------------------------------------------------------------- versions


@routes.get("/versions", tags=["change"])
def versions(service: Served) -> Versions:
    """All versions, newest first."""
    entries = [
        VersionInfo(
            number=v.number,
            parent=v.parent,
            what=v.change.what,
            says=v.change.says,
            when=v.when,
            classes=len(v.counts),
            images=sum(v.counts.values()),
            stored=v.stored,
            scores=dict(v.change.scores),
        )
        for v in reversed(service.workspace.versions.values())
    ]
    can = {"can_undo": service.workspace.can_undo, "can_redo": service.workspace.can_redo}
    return Versions(current=service.learner.served.version, versions=entries, **can)


@routes.get("/versions/{number}/bundle", tags=["change"], response_class=FileResponse)
def bundle(service: Served, number: Number) -> Response:
    """The version as a bundle, zipped: unpack it, and every command takes it as --model."""
    folder = service.workspace.bundle(number)
    return download(
        service,
        number,
        ".zip",
        lambda path: shutil.make_archive(str(path.with_suffix("")), "zip", folder),
    )


@routes.get("/versions/{number}/onnx", tags=["change"], response_class=FileResponse)
def onnx(service: Served, number: Number) -> Response:
    """The version as one ONNX graph from photos to probabilities."""
    from cifnet_pl.model.export import onnx_bytes

    model = service.workspace.load(number)
    with alone(service.costly):
        return download(
            service, number, ".onnx", lambda path: path.write_bytes(onnx_bytes(model)[0])
        )


def download(
    service: Service, number: int, suffix: str, write: Callable[[Path], object]
) -> FileResponse:
    """Return a file that is written into the workspace, sent, and removed."""
    folder = service.workspace.incoming()
    try:
        write(folder / f"file{suffix}")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    remove = BackgroundTask(shutil.rmtree, folder, ignore_errors=True)
    return FileResponse(
        folder / f"file{suffix}",
        filename=f"{service.options.name}-{number}{suffix}",
        background=remove,
    )
