"""Learn while answering: one change at a time, on a copy, which is stored before it is served."""

from __future__ import annotations

import logging
import queue
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from cifnet_pl.model.class_photos import ClassPhotos, Unreadable
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.description import Event
from cifnet_pl.model.learn import Score, learn
from cifnet_pl.serving.batches import Served
from cifnet_pl.serving.inspection import stored_accuracy
from cifnet_pl.serving.refusals import FAILED, RequestError, explained
from cifnet_pl.serving.uploads import Staged
from cifnet_pl.serving.workspace import Change
from cifnet_pl.utilities.errors import CifnetError
from cifnet_pl.utilities.memory import give_back_freed_memory
from cifnet_pl.utilities.text import printable

LOG = logging.getLogger("cifnet_pl.serving")

REMEMBERED = 200
"""Finished jobs whose result can still be asked for."""

Result = dict[str, Any]


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
    """The model that is served, and a thread that changes it.

    Args:
        served: the model to begin with.
        waiting: largest number of jobs that wait.

    Attributes:
        served: replaced as a whole when a change is stored.
    """

    def __init__(self, served: Served, waiting: int = 32):
        self.served, self.waiting = served, waiting
        self._jobs: dict[str, Job] = {}
        self._queue: queue.SimpleQueue[tuple[Job, Work] | None] = queue.SimpleQueue()
        self._asked = self._finished = 0
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="learn", daemon=True)
        self._thread.start()

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
        job = self._jobs.get(key)
        if job is None:
            raise RequestError(404, "there is no such job, or it ended long ago")
        return job

    def place(self, job: Job) -> int:
        """Return how many jobs come before this one; 0 while it is at work and afterwards."""
        return 0 if job.started else job.number - self._finished - 1

    def close(self) -> None:
        """Finish what is queued, and stop."""
        self._queue.put(None)
        self._thread.join()

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


Progress = Callable[[int, int], object]


@dataclass(frozen=True)
class ReportedPhotos(ClassPhotos):
    """Class photos that report how many of them were embedded."""

    report: Progress = lambda done, total: None

    def embedded(self, *args: Any, **options: Any) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield rows and embeddings, as :meth:`ClassPhotos.embedded` does."""
        done, total = 0, len(self.files)
        for rows, z in super().embedded(*args, **options):
            yield rows, z
            done += len(rows)
            self.report(done, total)


@dataclass(frozen=True)
class Taught:
    """A model that learned uploaded photos.

    Attributes:
        model: the model that learned; the one before is unchanged.
        learned: photos of each class.
        score: of the fifth that was held back.
        old_before, old_after: leave-one-out accuracy in percent on stored samples of the earlier classes; None if
            the head or the buffer cannot give it.
    """

    model: Classifier
    learned: dict[str, int]
    score: Score
    old_before: float | None
    old_after: float | None

    def change(self, kept: Mapping[str, list[str]]) -> Change:
        """Return the entry for the journal.

        Args:
            kept: class name → file names of its kept photos.
        """
        names = ", ".join(f"'{printable(name)}'" for name in list(self.learned)[:3])
        names += ", …" if len(self.learned) > 3 else ""
        scores = {"held_back": self.score.percent, "old_before": self.old_before, "old_after": self.old_after}
        measured = {name: value for name, value in scores.items() if value is not None}
        count = sum(self.learned.values())
        photos = "photo" if count == 1 else "photos"
        return Change("extend", f"learned {count} {photos} of {names}", kept, scores=measured)


def taught(old: Classifier, staged: Staged, report: Progress) -> Taught:
    """Learn staged photos on a copy of a model.

    Args:
        old: the model; it is not changed.
        staged: the photos.
        report: called with the number of photos learned, and of all.

    Raises:
        UnsupportedError: photos of a class that is known, and a head that cannot take in more of those.
    """
    photos = ReportedPhotos(staged.names, staged.photos(), report=report)
    unreadable: list[Unreadable] = []
    before = stored_accuracy(old, old.class_names)
    lesson = learn(old, photos, unreadable)
    model, score = lesson.model, lesson.score
    after = stored_accuracy(model, old.class_names)
    staged.unreadable += [(file.name, reason) for file, reason in unreadable]
    counts, earlier = model.counts, old.counts
    learned = {name: counts[name] - earlier.get(name, 0) for name in staged.names}
    event = Event("extend", len(counts), sum(learned.values()), score.percent, before, after)
    model.history.append(event)
    return Taught(model, learned, score, before, after)
