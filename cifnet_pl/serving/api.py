"""Serve over HTTP: one route for each thing that the service can do."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, Query, Response, UploadFile
from fastapi import Path as InPath
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.concurrency import run_in_threadpool

from cifnet_pl.photos.photo import UnreadableImage
from cifnet_pl.serving import answers, inspection
from cifnet_pl.serving.learner import Job
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.serving.service import Service
from cifnet_pl.utilities.text import printable

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": answers.Error}
    for status in (400, 401, 403, 404, 408, 409, 410, 413, 415, 421, 422, 429, 500, 503, 507)
}
Photos = Annotated[list[UploadFile], File(description="one photo or many")]
Number = Annotated[int, InPath(ge=1, le=10**9)]
Top = Annotated[int, Query(ge=1, le=1000, description="classes per photo")]
Waits = Annotated[bool, Query(description="false: answer at once with a job, to be asked for at /jobs")]
MOST_GROUPED = 500
"""Photos that are grouped in one request: the time grows with the square of their number."""

STAGED_AT_ONCE = 2
"""Requests whose photos are unpacked at the same time; others wait, so that answers keep their threads."""

TYPES = {".jpg": "image/jpeg", ".png": "image/png", ".webp": "image/webp", ".gif": "image/gif", ".bmp": "image/bmp"}


def named(files: list[UploadFile]) -> list[tuple[str, UploadFile]]:
    """Return each file with the name it was sent with."""
    return [(file.filename or "photo", file) for file in files]


async def contents(files: list[UploadFile], service: Service) -> list[tuple[str, bytes]]:
    """Read the files of a request.

    Raises:
        RequestError: one is too large.
    """
    largest, photos = service.options.limits.photo_bytes, []
    for name, file in named(files):
        if file.size is not None and file.size > largest:
            raise RequestError(413, f"{printable(name[:200])} is larger than {largest // 2**20} MiB")
        photos.append((name, await file.read()))
    return photos


def asking(service: Service) -> APIRouter:
    """Make the routes that take photos and change nothing."""
    router = APIRouter(responses=ERRORS)

    @router.get("/health", tags=["ask"])
    async def health() -> dict[str, bool]:
        """Whether the service runs and can answer."""
        return {"ready": True}

    @router.post("/classify", tags=["ask"])
    async def classify(files: Photos, top: Top = 5) -> answers.Classification:
        """Name what is on photos. A photo that cannot be decoded is named, and does not stop the others."""
        if len(files) > service.options.limits.photos:
            raise RequestError(413, f"more than {service.options.limits.photos} photos in one request")
        photos = await contents(files, service)
        waiting = [service.batcher.submit(service.decoder(content)) for _, content in photos]
        version, replies = service.learner.served.version, []
        for (name, _), future in zip(photos, waiting, strict=True):
            try:
                scored = await asyncio.wrap_future(future)
            except UnreadableImage as error:
                service.measures.unreadable.inc()
                replies.append(answers.PhotoAnswer(file=printable(name), unreadable=str(error)))
                continue
            version = scored.served.version
            replies.append(service.answer(name, scored, top))
        return answers.Classification(version=version, photos=replies)

    @router.post("/group", tags=["ask"])
    async def group(files: Photos) -> answers.Groups:
        """Group photos by likeness, so that each group can be named once."""
        if len(files) > MOST_GROUPED:
            raise RequestError(413, f"more than {MOST_GROUPED} photos to group in one request: send them in parts")
        return await run_in_threadpool(service.group, await contents(files, service))

    return router


def looking(service: Service) -> APIRouter:
    """Make the routes that show the state of the model and the service."""
    router = APIRouter(responses=ERRORS)

    @router.get("/classes", tags=["look"])
    def classes() -> list[answers.ClassInfo]:
        """The classes that the model knows, in the order they were learned."""
        served = service.learner.served
        kept = service.workspace.kept(served.version)
        counts = served.model.counts
        return [answers.ClassInfo(name=n, photos=count, kept=kept.get(n, [])) for n, count in counts.items()]

    @router.get("/look", tags=["look"])
    def look() -> answers.Look:
        """The state of the model, its history, and its confusions on stored samples."""
        served, options = service.learner.served, service.options
        return inspection.look(served.model, options.name, served.version, options.read_only)

    @router.get("/audit", tags=["look"])
    def audit() -> answers.Audit:
        """Doubtful labels among the kept photos, and accuracy by number of photos; takes seconds."""
        with alone(service.costly):
            return service.audit()

    @router.get("/photos/{name}", tags=["look"], response_class=Response)
    def photo(name: str) -> Response:
        """A photo that is kept in the workspace."""
        path = service.workspace.photo(name)
        return Response(path.read_bytes(), media_type=TYPES.get(path.suffix, "application/octet-stream"))

    @router.get("/metrics", tags=["look"], response_class=Response)
    def metrics() -> Response:
        """Counters and times in Prometheus' text format."""
        return Response(service.measures.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return router


def teaching(service: Service) -> APIRouter:
    """Make the routes that change the model: each makes a version."""
    router = APIRouter(responses={**ERRORS, 202: {"model": answers.JobInfo}})
    staging = asyncio.Semaphore(STAGED_AT_ONCE)

    @router.post("/extend", tags=["teach"], response_model=answers.Lesson)
    async def extend(
        files: Annotated[list[UploadFile], File(description="photos, or zip files of photos")],
        class_name: Annotated[
            str | None, Form(max_length=1000, description="class of all photos; without it, each photo's folder")
        ] = None,
        dry_run: Annotated[bool, Query(description="true: learn on a copy, report, and throw it away")] = False,
        wait: Waits = True,
    ) -> Response:
        """Teach new classes, or more photos of known ones, in one step."""
        service.check_writable()
        async with staging:
            photos = [(name, file.file) for name, file in named(files)]
            staged = await run_in_threadpool(service.stage, photos, class_name)
        return await ended(service, service.extend(staged, dry_run), wait)

    @router.post("/forget", tags=["change"], response_model=answers.Changed)
    async def forget(request: answers.Forget, wait: Waits = True) -> Response:
        """Remove a class: exactly where all of its photos are kept and the head can, else from the answers."""
        return await ended(service, service.forget(request.name), wait)

    @router.post("/rename", tags=["change"], response_model=answers.Changed)
    async def rename(request: answers.Rename, wait: Waits = True) -> Response:
        """Give a class another name."""
        return await ended(service, service.rename(request.old, request.new), wait)

    @router.post("/undo", tags=["change"], response_model=answers.Changed)
    async def undo(wait: Waits = True) -> Response:
        """Go back by one change."""
        return await ended(service, service.undo(), wait)

    @router.post("/redo", tags=["change"], response_model=answers.Changed)
    async def redo(wait: Waits = True) -> Response:
        """Do again what was undone last."""
        return await ended(service, service.redo(), wait)

    @router.post("/purge", tags=["change"], response_model=answers.Changed)
    async def purge(request: answers.Purge, wait: Waits = True) -> Response:
        """Delete kept photos and every version but the served one, for good: this cannot be undone."""
        return await ended(service, service.purge(request.photos), wait)

    @router.post("/versions/{number}/serve", tags=["change"], response_model=answers.Changed)
    async def serve(number: Number, wait: Waits = True) -> Response:
        """Serve another version; this can be undone, too."""
        return await ended(service, service.go_to(number), wait)

    @router.get("/jobs/{job}", tags=["teach"])
    def job(job: str) -> answers.JobInfo:
        """How far a change is."""
        return job_info(service, service.learner.job(job))

    return router


def history(service: Service) -> APIRouter:
    """Make the routes to list, compare and download versions."""
    router = APIRouter(responses=ERRORS)
    workspace = service.workspace

    @router.get("/versions", tags=["change"])
    def versions() -> answers.Versions:
        """All versions, newest first."""
        entries = [
            answers.VersionInfo(
                number=v.number,
                parent=v.parent,
                what=v.change.what,
                says=v.change.says,
                when=v.when,
                classes=len(v.counts),
                photos=sum(v.counts.values()),
                stored=v.here,
                scores=dict(v.change.scores),
            )
            for v in reversed(workspace.versions.values())
        ]
        can = {"can_undo": workspace.can_undo, "can_redo": workspace.can_redo}
        return answers.Versions(current=service.learner.served.version, versions=entries, **can)

    @router.get("/versions/{before}/compare/{after}", tags=["change"])
    def compare(before: Number, after: Number) -> list[answers.Difference]:
        """Classes whose number of photos differs between two versions."""
        entries = workspace.compare(before, after)
        return [answers.Difference(name=name, before=old, after=new) for name, (old, new) in entries.items()]

    @router.get("/versions/{number}/bundle", tags=["change"], response_class=StreamingResponse)
    def bundle(number: Number) -> Response:
        """The version as a bundle, zipped: unpack it, and every command takes it as --model."""
        folder = workspace.bundle(number)
        name = f"{service.options.name}-{number}"

        def write(path: Path) -> None:
            shutil.make_archive(str(path.with_suffix("")), "zip", folder)

        return download(service, write, f"{name}.zip", "application/zip")

    @router.get("/versions/{number}/onnx", tags=["change"], response_class=StreamingResponse)
    def onnx(number: Number) -> Response:
        """The version as one ONNX graph from photos to probabilities."""
        from cifnet_pl.model.export import onnx_bytes

        model = workspace.load(number)
        name = f"{service.options.name}-{number}.onnx"

        def write(path: Path) -> None:
            with alone(service.costly):
                path.write_bytes(onnx_bytes(model)[0])

        return download(service, write, name, "application/octet-stream")

    return router


@contextmanager
def alone(lock: Lock) -> Iterator[None]:
    """Within the block, work for one client only: work that takes seconds for many would take every thread."""
    if not lock.acquire(blocking=False):
        raise RequestError(503, "an audit or an ONNX graph is being made already: try again in a few seconds")
    try:
        yield
    finally:
        lock.release()


def download(service: Service, write: Callable[[Path], object], name: str, kind: str) -> StreamingResponse:
    """Return a file that is written into the workspace, sent, and removed."""
    folder = service.workspace.folder / "incoming"
    folder.mkdir(exist_ok=True)
    folder_of_download = Path(tempfile.mkdtemp(dir=folder))
    path = folder_of_download / f"file{Path(name).suffix}"
    try:
        write(path)
    except BaseException:
        shutil.rmtree(folder_of_download, ignore_errors=True)
        raise

    async def parts() -> AsyncIterator[bytes]:
        try:
            with path.open("rb") as file:
                while block := await run_in_threadpool(file.read, 2**20):
                    yield block
        finally:
            shutil.rmtree(folder_of_download, ignore_errors=True)

    headers = {"content-disposition": f'attachment; filename="{name}"', "content-length": str(path.stat().st_size)}
    return StreamingResponse(parts(), media_type=kind, headers=headers)


async def ended(service: Service, job: Job, wait: bool) -> Response:
    """Return the result of a change, or the job itself where the client does not wait."""
    if not wait:
        return JSONResponse(job_info(service, job).model_dump(), status_code=202)
    (answer,) = (await asyncio.wrap_future(job.result)).values()
    return JSONResponse(answer.model_dump())


def job_info(service: Service, job: Job) -> answers.JobInfo:
    """Return the state of a job."""
    state: answers.State = "waiting" if not job.started else "at work" if not job.result.done() else "done"
    info = answers.JobInfo(
        job=job.key, what=job.what, state=state, place=service.learner.place(job), done=job.done, total=job.total
    )
    if not job.result.done():
        return info
    error = job.result.exception()
    if error is None:
        return info.model_copy(update={"status": 200, **job.result.result()})
    assert isinstance(error, RequestError)
    return info.model_copy(update={"state": "refused", "status": error.status, "error": str(error)})
