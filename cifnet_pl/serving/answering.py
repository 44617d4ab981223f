"""Answer with the served model: images that wait are embedded together, each gets its answer."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import BaseModel

from cifnet_pl.images.reader import decoding_cores
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.unknowns import OpenSetDecision, OpenSetPredictor
from cifnet_pl.serving import messages
from cifnet_pl.serving.gate import Limits, decoded
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.utilities.text import printable

BATCH_ON_A_CORE = 8
BATCH_ON_A_DEVICE = 64
"""Images that are embedded together at most: the first of them waits for all."""


class ApiObject(BaseModel, use_attribute_docstrings=True):
    """A part of an answer or a request; the texts below its fields describe them in the API."""


class Candidate(ApiObject):
    """One class and its probability."""

    name: str
    probability: float
    """Calibrated, 0–1."""


class ImageAnswer(ApiObject):
    """The prediction for one image."""

    file: str
    """Name that the image was sent with."""
    classes: list[Candidate] = []
    """Most probable first."""
    known: bool | None = None
    """False if the image is of no known class, as for --unknown (5 %) of images of known classes;
    null: cannot tell."""
    novelty: float | None = None
    """Novelty score; larger for images that are less like those learned."""
    p_value: float | None = None
    """Share of images of known classes with at least this novelty score, 0–1."""
    prediction_set: list[str] | None = None
    """Classes that hold the true one with probability --coverage (95 %)."""
    nearest: str | None = None
    """File name of the most similar kept image of the first class."""
    unreadable: str | None = None
    """Why the image cannot be decoded."""

    @classmethod
    def from_scores(
        cls,
        file: str,
        names: list[str],
        probabilities: torch.Tensor,
        decision: OpenSetDecision,
        top: int,
    ) -> ImageAnswer:
        """Return the prediction for one image.

        Args:
            file: name that it was sent with.
            names: of all classes.
            probabilities: (C,).
            decision: of the model.
            top: number of classes to name.
        """
        best = probabilities.topk(min(top, len(names)))
        classes = []
        for column, share in zip(
            best.indices.tolist(), best.values.tolist(), strict=True
        ):
            classes.append(Candidate(name=names[column], probability=share))
        prediction_set = None
        if decision.prediction_set is not None:
            prediction_set = list(decision.prediction_set)
        return cls(
            file=printable(file),
            classes=classes,
            known=decision.known,
            novelty=decision.novelty,
            p_value=decision.p_value,
            prediction_set=prediction_set,
        )


@dataclass(frozen=True)
class ServedModel:
    """A model that answers, and the number of its version.

    Attributes:
        model: the model; it is never changed.
        version: its number.
        unknown: as for :meth:`Classifier.open_set_predictor`; ignored if the model cannot keep the
            promise.
        coverage: likewise.
    """

    model: Classifier
    version: int
    unknown: float | None = None
    coverage: float | None = None

    def scored(self, z: torch.Tensor) -> tuple[torch.Tensor, list[OpenSetDecision]]:
        """Return the probabilities (n, C) and decisions of embeddings (n, d)."""
        head = self.model.head
        if head.classes:
            probabilities = head.probabilities(z)
        else:
            probabilities = z.new_zeros(len(z), 0)
        return probabilities.cpu(), self.open_set_predictor().decisions(
            z, probabilities
        )

    def open_set_predictor(self) -> OpenSetPredictor:
        """Return the predictor of decisions on embeddings; prepared at the first call."""
        return self.model.open_set_predictor(
            *self.model.available_shares(self.unknown, self.coverage)
        )


@dataclass
class CurrentModel:
    """The model that answers now; replaced as a whole when a change is stored."""

    served: ServedModel


@dataclass(frozen=True)
class ScoredImage:
    """The model's result for one image.

    Attributes:
        served: the model and version that answered.
        z: (d,) float32 embedding.
        probabilities: (C,) float64, columns as the model's class names.
        decision: whether the class is known, and the prediction set, if the model can tell.
    """

    served: ServedModel
    z: torch.Tensor
    probabilities: torch.Tensor
    decision: OpenSetDecision


@dataclass(frozen=True)
class DecodedImage:
    """Pixels (s, s, 3) uint8 of an image, and the answer that is waited for."""

    pixels: np.ndarray
    answer: Future[ScoredImage]


class Answering:
    """Threads that decode images, and threads that embed as many together as wait.

    On a CPU one thread per core embeds. Backbones that run side by side with one thread each are
    faster than one after the other with all threads, because those wait for each other at every
    layer. Batches save about a tenth of the CPU time where 16 clients ask at once.

    Args:
        current: the model that answers now.
        limits: of one image.
        largest_queue: number of images under way; more are refused.

    Attributes:
        under_way: images that were taken in and not yet answered.
    """

    def __init__(self, current: CurrentModel, limits: Limits, largest_queue: int):
        self.current = current
        self.limits = limits
        self.largest_queue = largest_queue
        self.under_way = 0
        if current.served.model.device.type == "cpu":
            self._largest_batch = BATCH_ON_A_CORE
            embedders = decoding_cores()
        else:
            self._largest_batch = BATCH_ON_A_DEVICE
            embedders = 1
        self._lock = threading.Lock()
        self._ready: queue.SimpleQueue[DecodedImage] = queue.SimpleQueue()
        self._decoders = ThreadPoolExecutor(decoding_cores(), "decode")
        self._embedders = ThreadPoolExecutor(embedders, "answer")

    def submit(self, content: bytes) -> Future[ScoredImage]:
        """Queue one image.

        Args:
            content: of its file.

        Returns:
            The result, or UnreadableImage.

        Raises:
            RequestError: too many images are waiting.
        """
        with self._lock:
            if self.under_way >= self.largest_queue:
                raise RequestError(503, messages.BUSY)
            self.under_way += 1
        answer: Future[ScoredImage] = Future()
        answer.add_done_callback(self._count_answered)
        self._decoders.submit(self._decode, content, answer)
        return answer

    def decode(self, content: bytes) -> tuple[np.ndarray, str]:
        """Return the pixels (s, s, 3) that the model takes, and the extension of the format.

        Raises:
            UnreadableImage: the image cannot be decoded.
        """
        model = self.current.served.model
        return decoded(content, model.image_size, model.crop_ratio, self.limits)

    def close(self) -> None:
        """Answer everything that is under way, and stop."""
        self._decoders.shutdown()
        self._embedders.shutdown()

    def _count_answered(self, answer: Future[ScoredImage]) -> None:
        with self._lock:
            self.under_way -= 1

    def _decode(self, content: bytes, answer: Future[ScoredImage]) -> None:
        """Decode one image."""
        if not answer.set_running_or_notify_cancel():  # the client is gone already
            return
        try:
            pixels, _ = self.decode(content)
            self._ready.put(DecodedImage(pixels, answer))
            self._embedders.submit(self._score)
        except BaseException as error:  # whatever happened, someone waits for it
            answer.set_exception(error)

    def _score(self) -> None:
        """Answer the decoded images; none are left where other calls took them together."""
        batch = list[DecodedImage]()
        with suppress(queue.Empty):
            while len(batch) < self._largest_batch:
                batch.append(self._ready.get_nowait())
        if not batch:
            return
        try:
            served = self.current.served
            pixels = np.stack([one.pixels for one in batch])
            with torch.inference_mode():
                z = served.model.embed(torch.from_numpy(pixels).permute(0, 3, 1, 2))
                probabilities, decisions = served.scored(z)
            for row, one in enumerate(batch):
                one.answer.set_result(
                    ScoredImage(served, z[row], probabilities[row], decisions[row])
                )
        except BaseException as error:  # as above
            for one in batch:
                if not one.answer.done():
                    one.answer.set_exception(error)
