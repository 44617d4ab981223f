"""Learn while answering: one change at a time, on a copy, which is stored before it is served."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import Any

from cifnet_pl.serving.answering import Served
from cifnet_pl.serving.refusals import FAILED, RequestError, explained
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.memory import give_back_freed_memory

LOG = logging.getLogger("cifnet_pl.serving")

REMEMBERED = 200
"""Finished jobs whose result can still be asked for."""

Result = dict[str, Any]


@dataclass
class Job:
    """One change that was asked for.

    Attributes:
        what: "extend", "forget", …
        key: by which a client asks for it.
        done, total: photos learned so far, and in all; None if there are none.
        started: whether it is being done or finished.
        result: the answer, or the RequestError that refuses it.
    """

    what: str
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    done: int = 0
    total: int | None = None
    started: bool = False
    result: Future[Result] = field(default_factory=Future)

    def progress(self, done: int, total: int) -> None:
        """Record how many photos are learned."""
        self.done = done
        self.total = total


Work = Callable[[Job], tuple[Served | None, Result]]
"""Makes a change; returns the model and version to serve from then on (None to keep the old one),
and the answer.
"""


class Learner:
    """The model that is served, and a thread that changes it.

    Args:
        served: the model to begin with.
        waiting: largest number of changes that wait.

    Attributes:
        served: replaced as a whole when a change is stored.
    """

    def __init__(self, served: Served, waiting: int = 32):
        self.served = served
        self.waiting = waiting
        self._jobs: dict[str, Job] = {}
        # At the priority of the answers: a thread of a lower one that is put off while it holds
        # Python's lock would hold up all others.
        self._lock = Lock()
        self._thread = ThreadPoolExecutor(1, "learn")

    def close(self) -> None:
        """Finish what is queued, and stop."""
        self._thread.shutdown()

    @property
    def queued(self) -> int:
        """Jobs that are not finished."""
        return sum(not job.result.done() for job in list(self._jobs.values()))

    def submit(self, action: str, work: Work) -> Job:
        """Queue a change.

        Args:
            action: "extend", "forget", …
            work: makes it.

        Raises:
            RequestError: too many changes are waiting.
        """
        with self._lock:
            if self.queued >= self.waiting:
                raise RequestError(
                    503, f"{self.queued} changes are waiting already: try again later"
                )
            job = Job(action)
            self._jobs[job.key] = job
            for key in [key for key, old in self._jobs.items() if old.result.done()][:-REMEMBERED]:
                del self._jobs[key]
            self._thread.submit(self._run, job, work)
        return job

    def job(self, key: str) -> Job:
        """Return the job with a key.

        Raises:
            RequestError: there is no such job, or it ended long ago.
        """
        if key not in self._jobs:
            raise RequestError(404, "there is no such job, or it ended long ago")
        return self._jobs[key]

    def place(self, job: Job) -> int:
        """Return how many jobs come before this one; 0 while it is at work and afterwards."""
        jobs = list(self._jobs.values())
        if job.started:
            return 0
        return sum(not other.result.done() for other in jobs[: jobs.index(job)])

    def _run(self, job: Job, work: Work) -> None:
        end = self._do(job, work)
        give_back_freed_memory()
        end()

    def _do(self, job: Job, work: Work) -> Callable[[], None]:
        """Make a change; return what hands its result to those who wait for it."""
        job.started = True
        try:
            served, answer = work(job)
        except CifnetError as error:
            LOG.warning("%s refused: %s", job.what, error)
            return partial(job.result.set_exception, explained(error))
        except BaseException:  # a fault of ours: the service goes on, and the log has the traceback
            LOG.exception("%s failed", job.what)
            return partial(job.result.set_exception, RequestError(500, FAILED))
        if served is not None:
            self.served = served
        return partial(job.result.set_result, answer)
