"""The model that is served: many threads answer from it, and one makes changes on a copy, one at a time."""

from __future__ import annotations

import logging
import queue
import secrets
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from cifnet_pl.model.classifier import Classifier, Judged
from cifnet_pl.model.open_set import Verdict, able
from cifnet_pl.photos.reading import cores
from cifnet_pl.serving.refusals import FAILED, RequestError, explained
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.memory import give_back_freed_memory

LOG = logging.getLogger("cifnet_pl.serving")

REMEMBERED = 200
"""Finished jobs whose result can still be asked for."""

Result = dict[str, Any]


@dataclass(frozen=True)
class Served:
    """A model that answers, and the number of its version; replaced as a whole, never changed.

    Attributes:
        model: the model.
        version: its number.
        unknown, coverage: as for :meth:`Classifier.judge`; ignored if the model cannot keep the promise.
    """

    model: Classifier
    version: int
    unknown: float | None = None
    coverage: float | None = None

    def judging(self) -> Judged:
        """Return a function from embeddings (n, d) and probabilities (n, C) to verdicts; prepared at the first call."""
        return self.model.judging(*able(self.model, self.unknown, self.coverage))


@dataclass(frozen=True)
class Scored:
    """The model's result for one photo.

    Attributes:
        served: the model and version that answered.
        z: (d,) float32 embedding.
        probabilities: (C,) float64, columns as the model's class names.
        verdict: whether it is of a known class, and the set of classes that it may be, if the model can tell.
    """

    served: Served
    z: torch.Tensor
    probabilities: torch.Tensor
    verdict: Verdict


@dataclass
class Job:
    """One change that was asked for.

    Attributes:
        what: "extend", "forget", …
        number: 1, 2, …, in the order of the requests.
        key: by which a client asks for it.
        done, total: photos learned so far, and in all; None if there are none.
        started: whether it is being done or finished.
        result: the answer, or the RequestError that refuses it.
    """

    what: str
    number: int
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    done: int = 0
    total: int | None = None
    started: bool = False
    result: Future[Result] = field(default_factory=Future)

    def progress(self, done: int, total: int) -> None:
        """Record how many photos are learned."""
        self.done, self.total = done, total


Work = Callable[[Job], tuple[Served | None, Result]]
"""Makes a change; returns the model and version to serve from then on (None to keep the old one), and the answer."""


class Learner:
    """The model that is served, the threads that answer from it, and the thread that changes it.

    Each photo is answered by one thread, one core each: networks that run side by side are faster than one after the
    other with all threads, because those wait for each other at every layer.

    Args:
        served: the model to begin with.
        waiting: largest number of changes that wait.
        photos: largest number of photos that are being answered or wait.

    Attributes:
        served: replaced as a whole when a change is stored.
        under_way: photos that were taken in and not yet answered.
    """

    def __init__(self, served: Served, waiting: int = 32, photos: int = 2048):
        self.served, self.waiting, self.photos, self.under_way = served, waiting, photos, 0
        self._jobs: dict[str, Job] = {}
        self._queue: queue.SimpleQueue[tuple[Job, Work] | None] = queue.SimpleQueue()
        self._asked = self._finished = 0
        self._lock = threading.Lock()
        self._answering = ThreadPoolExecutor(cores(), "answer")
        self._thread = threading.Thread(target=self._run, name="learn", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Finish what is queued, and stop."""
        self._queue.put(None)
        self._thread.join()
        self._answering.shutdown()

    # ------------------------------------------------------------------ answers

    def score(self, decode: Callable[[], np.ndarray]) -> Future[Scored]:
        """Answer one photo.

        Args:
            decode: returns the photo as (s, s, 3) uint8; called in another thread. Its errors are those of the future.

        Raises:
            RequestError: too many photos are waiting.
        """
        with self._lock:
            if self.under_way >= self.photos:
                raise RequestError(503, "too many photos are waiting: try again in a few seconds")
            self.under_way += 1
        answer = self._answering.submit(self._score, decode)
        answer.add_done_callback(self._answered)
        return answer

    def _score(self, decode: Callable[[], np.ndarray]) -> Scored:
        pixels, served = np.array(decode()), self.served  # a copy, as PyTorch wants memory that it could write to
        with torch.inference_mode():
            z = served.model.embed(torch.from_numpy(pixels).permute(2, 0, 1)[None])
            probabilities = served.model.head.probabilities(z)
            (verdict,) = served.judging()(z, probabilities)
        return Scored(served, z[0], probabilities[0].cpu(), verdict)

    def _answered(self, answer: Future[Scored]) -> None:
        with self._lock:
            self.under_way -= 1

    # ------------------------------------------------------------------ changes

    @property
    def queued(self) -> int:
        """Jobs that are not finished."""
        return self._asked - self._finished

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
                raise RequestError(503, f"{self.queued} changes are waiting already: try again later")
            self._asked += 1
            job = Job(action, self._asked)
            self._jobs[job.key] = job
            for key in [key for key, old in self._jobs.items() if old.result.done()][:-REMEMBERED]:
                del self._jobs[key]
            self._queue.put((job, work))
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
        return 0 if job.started else job.number - self._finished - 1

    def _run(self) -> None:
        # At the priority of the answers: a thread of a lower one that is put off while it holds Python's lock would
        # hold up all others.
        while (asked := self._queue.get()) is not None:
            end = self._do(*asked)
            del asked
            give_back_freed_memory()
            with self._lock:
                self._finished += 1
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
