"""The queue of changes to the served model: learn, forget, rename, undo."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from cifnet_pl.serving import messages
from cifnet_pl.serving.answering import CurrentModel, ServedModel
from cifnet_pl.serving.refusals import RequestError, as_request_error
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.memory import give_back_freed_memory

LOGGER = logging.getLogger("cifnet_pl.serving")

REMEMBERED_JOBS = 200
"""Finished jobs whose result can still be asked for."""

JobResult = dict[str, Any]
"""The answer of a change under its name: ``update`` or ``change``."""


@dataclass
class ChangeJob:
    """One change that was asked for.

    Attributes:
        action: "extend", "forget", …
        key: by which a client asks for it.
        done: number of images learned so far.
        total: number of images to learn; None if there are none.
        started: whether it is being done or finished.
        result: the answer, or the RequestError that refuses it.
    """

    action: str
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    done: int = 0
    total: int | None = None
    started: bool = False
    result: Future[JobResult] = field(default_factory=Future)

    def progress(self, done: int, total: int) -> None:
        """Record how many images are learned."""
        self.done = done
        self.total = total


Work = Callable[[ChangeJob], tuple[ServedModel | None, JobResult]]
"""Makes a change; returns the model to serve from then on (None to keep the old one), and the
answer.
"""


class ChangeQueue:
    """A thread that changes the served model.

    Args:
        current: holds the model that answers, which is replaced when a change is stored.
        largest_queue: number of changes that may be unfinished, the one at work included.
    """

    def __init__(self, current: CurrentModel, largest_queue: int = 32):
        self.current = current
        self.largest_queue = largest_queue
        self._jobs: dict[str, ChangeJob] = {}
        self._lock = Lock()
        # At the priority of the answers: a thread of a lower one that is put off while it holds
        # Python's lock would hold up all others.
        self._thread = ThreadPoolExecutor(1, "learn")

    def close(self) -> None:
        """Finish what is queued, and stop."""
        self._thread.shutdown()

    @property
    def queued(self) -> int:
        """Jobs that are not finished."""
        return sum(not job.result.done() for job in list(self._jobs.values()))

    def submit(self, action: str, work: Work) -> ChangeJob:
        """Queue a change.

        Args:
            action: "extend", "forget", …
            work: makes it.

        Raises:
            RequestError: with status 503, if as many changes are unfinished as may be.
        """
        with self._lock:
            queued = self.queued
            if queued >= self.largest_queue:
                raise RequestError(503, messages.changes_waiting(queued))
            job = ChangeJob(action)
            self._jobs[job.key] = job
            finished = [key for key, old in self._jobs.items() if old.result.done()]
            for key in finished[:-REMEMBERED_JOBS]:
                del self._jobs[key]
            self._thread.submit(self._run, job, work)
        return job

    def job(self, key: str) -> ChangeJob:
        """Return the job with a key.

        Raises:
            RequestError: there is no such job, or it ended long ago.
        """
        if key not in self._jobs:
            raise RequestError(404, messages.NO_JOB)
        return self._jobs[key]

    def place(self, job: ChangeJob) -> int:
        """Return how many jobs come before this one; 0 while it is at work and afterwards."""
        if job.started:
            return 0
        jobs = list(self._jobs.values())
        return sum(not other.result.done() for other in jobs[: jobs.index(job)])

    def _run(self, job: ChangeJob, work: Work) -> None:
        """Make a change, free what it needed, and only then hand out its result."""
        answer, error = self._result(job, work)
        give_back_freed_memory()
        if error is None:
            job.result.set_result(answer)
        else:
            job.result.set_exception(error)

    def _result(
        self, job: ChangeJob, work: Work
    ) -> tuple[JobResult, RequestError | None]:
        """Make a change; return its answer, or what refuses it."""
        job.started = True
        try:
            served, answer = work(job)
        except CifnetError as error:
            LOGGER.warning("%s refused: %s", job.action, error)
            return {}, as_request_error(error)
        except BaseException:
            # A fault of ours: the service goes on, and the log has the traceback.
            LOGGER.exception("%s failed", job.action)
            return {}, RequestError(500, messages.FAILED)
        if served is not None:
            self.current.served = served
        return answer, None
