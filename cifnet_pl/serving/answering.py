"""Answer with the model that is served: photos that wait are embedded together, each gets its own
answer.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import BaseModel

from cifnet_pl.images.reader import decoding_cores
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.unknowns import Judge, Verdict
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.utilities.text import printable

ON_A_CORE = 8
ON_A_DEVICE = 64
"""Photos that are embedded together at most: the first of them waits for all."""


class Message(BaseModel, use_attribute_docstrings=True):
    """A part of an answer, or of a request; the texts below its fields describe them in the API."""


class Candidate(Message):
    """One class and its probability."""

    name: str
    probability: float
    """Calibrated, 0–1."""


class ImageAnswer(Message):
    """The answer about one photo."""

    file: str
    """Name that the photo was sent with."""
    classes: list[Candidate] = []
    """Most probable first."""
    known: bool | None = None
    """False for 'none of these', as for --unknown (5 %) of known photos; null: cannot tell."""
    novelty: float | None = None
    """How foreign the photo is; larger is more foreign."""
    p_value: float | None = None
    """Share of photos of known classes that are at least as foreign, 0–1."""
    prediction_set: list[str] | None = None
    """Set of classes that holds the right one with a chance of --coverage (95 %)."""
    nearest: str | None = None
    """Name of the most similar kept photo of the first class."""
    unreadable: str | None = None
    """Why the photo cannot be decoded."""

    @classmethod
    def of(
        cls, file: str, names: list[str], probabilities: torch.Tensor, verdict: Verdict, top: int
    ) -> ImageAnswer:
        """Return the answer for one photo.

        Args:
            file: name that it was sent with.
            names: of all classes.
            probabilities: (C,).
            verdict: the model's.
            top: number of classes to name.
        """
        best = probabilities.topk(min(top, len(names)))
        prediction_set = None
        if verdict.prediction_set is not None:
            prediction_set = list(verdict.prediction_set)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return cls(
            file=printable(file),
            classes=[Candidate(name=names[column], probability=share) for column, share in pairs],
            known=verdict.known,
            novelty=verdict.novelty,
            p_value=verdict.p_value,
            prediction_set=prediction_set,
        )


@dataclass(frozen=True)
class Served:
    """A model that answers, and the number of its version; replaced as a whole, never changed.

    Attributes:
        model: the model.
        version: its number.
        unknown, coverage: as for :meth:`Classifier.judge`; ignored if the model cannot keep the
            promise.
    """

    model: Classifier
    version: int
    unknown: float | None = None
    coverage: float | None = None

    def judged(self, z: torch.Tensor) -> tuple[torch.Tensor, list[Verdict]]:
        """Return the probabilities (n, C) and verdicts of embeddings (n, d); the model may know no
        class yet.
        """
        head = self.model.head
        if head.classes:
            probabilities = head.probabilities(z)
        else:
            probabilities = z.new_zeros(len(z), 0)
        return probabilities.cpu(), self.judge().verdicts(z, probabilities)

    def judge(self) -> Judge:
        """Return what gives verdicts on embeddings; it is prepared at the first call."""
        return self.model.judge(*self.model.available_shares(self.unknown, self.coverage))


@dataclass(frozen=True)
class Scored:
    """The model's result for one photo.

    Attributes:
        served: the model and version that answered.
        z: (d,) float32 embedding.
        probabilities: (C,) float64, columns as the model's class names.
        verdict: whether it is of a known class, and the set of classes that it may be, if the model
            can tell.
    """

    served: Served
    z: torch.Tensor
    probabilities: torch.Tensor
    verdict: Verdict


Decode = Callable[[], np.ndarray]
"""Returns a photo as (s, s, 3) uint8."""


class Answering:
    """Threads that decode photos, and threads that embed those that are decoded, as many together
    as wait.

    On a CPU one thread per core embeds. Networks that run side by side with one thread each are
    faster than one after the other with all threads, because those wait for each other at every
    layer. Batches save about a tenth of the CPU time where 16 clients ask at once.

    Args:
        served: returns the model that answers now.
        waiting: largest number of photos under way; more are refused.

    Attributes:
        under_way: photos that were taken in and not yet answered.
    """

    def __init__(self, served: Callable[[], Served], waiting: int):
        self.served = served
        self.waiting = waiting
        self.under_way = 0
        on_cpu = served().model.device.type == "cpu"
        self._largest = ON_A_CORE if on_cpu else ON_A_DEVICE
        self._lock = threading.Lock()
        self._ready: queue.SimpleQueue[tuple[np.ndarray, Future[Scored]]] = queue.SimpleQueue()
        self._decoders = ThreadPoolExecutor(decoding_cores(), "decode")
        self._embedders = ThreadPoolExecutor(decoding_cores() if on_cpu else 1, "answer")

    def submit(self, decode: Decode) -> Future[Scored]:
        """Answer one photo.

        Args:
            decode: called in another thread; its errors are those of the future.

        Raises:
            RequestError: too many photos are waiting.
        """
        with self._lock:
            if self.under_way >= self.waiting:
                raise RequestError(503, "too many photos are waiting: try again in a few seconds")
            self.under_way += 1
        answer: Future[Scored] = Future()
        answer.add_done_callback(self._answered)
        self._decoders.submit(self._decode, decode, answer)
        return answer

    def close(self) -> None:
        """Answer everything that is under way, and stop."""
        self._decoders.shutdown()
        self._embedders.shutdown()

    def _answered(self, answer: Future[Scored]) -> None:
        with self._lock:
            self.under_way -= 1

    def _decode(self, decode: Decode, answer: Future[Scored]) -> None:
        if answer.set_running_or_notify_cancel():  # not where the client is gone already
            try:
                self._ready.put((decode(), answer))
                self._embedders.submit(self._score)
            except BaseException as error:  # whatever happened, someone waits for it
                answer.set_exception(error)

    def _score(self) -> None:
        """Answer the photos that are decoded; none are left where others of these calls took them
        together.
        """
        batch = list[tuple[np.ndarray, Future[Scored]]]()
        with suppress(queue.Empty):
            while len(batch) < self._largest:
                batch.append(self._ready.get_nowait())
        if not batch:
            return
        try:
            served = self.served()
            with torch.inference_mode():
                z = served.model.embed(
                    torch.from_numpy(np.stack([pixels for pixels, _ in batch])).permute(0, 3, 1, 2)
                )
                probabilities, verdicts = served.judged(z)
            for row, (_, answer) in enumerate(batch):
                answer.set_result(Scored(served, z[row], probabilities[row], verdicts[row]))
        except BaseException as error:  # as above
            for _, answer in batch:
                if not answer.done():
                    answer.set_exception(error)
