"""Answer with the served model: images that wait are embedded together, each gets its answer."""

from __future__ import annotations

import queue
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import BaseModel
from torch import Tensor

from cifnet_pl.images.reader import decoding_cores
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.unknowns import OpenSetDecision, OpenSetPredictor
from cifnet_pl.serving.gate import Limits, decoded
from cifnet_pl.utilities.text import printable

LARGEST_BATCH = 8
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
    z: Tensor
    probabilities: Tensor
    decision: OpenSetDecision

    def answer(self, file: str, top: int) -> ImageAnswer:
        """Return the prediction.

        Args:
            file: name that the image was sent with.
            top: number of classes to name.
        """
        names = self.served.model.class_names
        best = self.probabilities.topk(min(top, len(names)))
        classes = []
        shares, columns = best
        for share, column in zip(shares.tolist(), columns.tolist(), strict=True):
            classes.append(Candidate(name=names[column], probability=share))
        prediction_set = self.decision.prediction_set
        return ImageAnswer(
            file=printable(file),
            classes=classes,
            known=self.decision.known,
            novelty=self.decision.novelty,
            p_value=self.decision.p_value,
            prediction_set=None if prediction_set is None else list(prediction_set),
        )


class ServedModel:
    """A model that answers, and the number of its version; both are never changed.

    Args:
        model: the model.
        version: its number.
        unknown: as for :meth:`Classifier.open_set_predictor`; ignored if the model cannot keep the
            promise.
        coverage: likewise.
    """

    def __init__(
        self,
        model: Classifier,
        version: int,
        unknown: float | None = None,
        coverage: float | None = None,
    ):
        self.model = model
        self.version = version
        shares = model.available_shares(unknown, coverage)
        # Prepared now, so that no answer waits for it.
        self._predictor: OpenSetPredictor = model.open_set_predictor(*shares)

    def scored(self, z: Tensor) -> list[ScoredImage]:
        """Return the results for embeddings (n, d)."""
        head = self.model.head
        z = z.to(self.model.device)
        if head.classes:
            probabilities = head.probabilities(z)
        else:
            probabilities = z.new_zeros(len(z), 0)
        decisions = self._predictor.decisions(z, probabilities)
        rows = zip(z, probabilities.cpu(), decisions, strict=True)
        return [ScoredImage(self, *row) for row in rows]


DecodedImage = tuple[np.ndarray, Future[ScoredImage]]
"""Pixels (s, s, 3) uint8 of an image, and the answer that is waited for."""


class Answering:
    """Threads that decode images, and threads that embed as many together as wait.

    On a CPU one thread per core embeds. Backbones that run side by side with one thread each are
    faster than one after the other with all threads, because those wait for each other at every
    layer. Batches save about a tenth of the CPU time where 16 clients ask at once.

    Args:
        served: the model that answers now.
        limits: of one image.

    Attributes:
        served: replaced as a whole when a change is stored.
    """

    def __init__(self, served: ServedModel, limits: Limits):
        self.served = served
        self.limits = limits
        embedders = decoding_cores() if served.model.device.type == "cpu" else 1
        self._ready: queue.SimpleQueue[DecodedImage] = queue.SimpleQueue()
        self._decoders = ThreadPoolExecutor(decoding_cores(), "decode")
        self._embedders = ThreadPoolExecutor(embedders, "answer")

    def submit(self, content: bytes) -> Future[ScoredImage]:
        """Queue one image, given the content of its file; the result may be UnreadableImage."""
        answer: Future[ScoredImage] = Future()
        self._decoders.submit(self._decode, content, answer)
        return answer

    def decode(self, content: bytes) -> tuple[np.ndarray, str]:
        """Return the pixels (s, s, 3) that the model takes, and the extension of the format.

        Raises:
            UnreadableImage: the image cannot be decoded.
        """
        model = self.served.model
        return decoded(content, model.image_size, model.crop_ratio, self.limits)

    def close(self) -> None:
        """Answer everything that is under way, and stop."""
        self._decoders.shutdown()
        self._embedders.shutdown()

    def _decode(self, content: bytes, answer: Future[ScoredImage]) -> None:
        """Decode one image."""
        try:
            pixels, _ = self.decode(content)
            self._ready.put((pixels, answer))
            self._embedders.submit(self._score)
        except BaseException as error:  # whatever happened, someone waits for it
            answer.set_exception(error)

    def _score(self) -> None:
        """Answer the decoded images; none are left where other calls took them together."""
        batch = list[DecodedImage]()
        with suppress(queue.Empty):
            while len(batch) < LARGEST_BATCH:
                batch.append(self._ready.get_nowait())
        if not batch:
            return
        try:
            served = self.served
            pixels = torch.from_numpy(np.stack([pixels for pixels, _ in batch]))
            with torch.inference_mode():
                z = served.model.embed(pixels.permute(0, 3, 1, 2))
                results = served.scored(z)
        except BaseException as error:  # as above
            for _, answer in batch:
                answer.set_exception(error)
            return
        for (_, answer), result in zip(batch, results, strict=True):
            answer.set_result(result)
