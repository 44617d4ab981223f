"""Answer with the served model; images that are asked about at one time are embedded together."""

from __future__ import annotations

import queue
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cifnet_pl.images.reader import decoding_cores
from cifnet_pl.model.calibration import OpenSetDecision, OpenSetPredictor
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.serving.gate import ApiObject, decoded
from cifnet_pl.serving.inspection import ClassPredictions, class_estimates
from cifnet_pl.utilities.text import printable

LARGEST_BATCH = 8
"""Images that are embedded together at most: the first of them waits for all."""


@dataclass(frozen=True)
class ServiceOptions:
    """The options by which a workspace is served.

    Attributes:
        name: of the model, for the page and for downloads.
        read_only: whether changes are refused.
        keep_images: whether images that are learned stay in the workspace: for exact forgetting,
            and to be shown.
        unknown: share of images of known classes that may be called unknown; None never to say so.
        coverage: probability that the true class is in the prediction set; None to give none.
    """

    name: str = "model"
    read_only: bool = False
    keep_images: bool = True
    unknown: float | None = 0.05
    coverage: float | None = 0.95


class Candidate(ApiObject):
    """One class and its probability."""

    name: str
    probability: float
    """Calibrated, 0–1."""


class ImageAnswer(ApiObject):
    """The prediction for one image."""

    file: str
    """Name that the image was sent with."""
    classes: list[Candidate] = Field(default=[])
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
        """Return the prediction for an image.

        Args:
            file: name that the image was sent with.
            top: number of classes to name, the most probable first.
        """
        names = self.served.model.class_names
        shares = self.probabilities.tolist()
        columns = self.probabilities.argsort(descending=True)[:top].tolist()
        classes = [Candidate(name=names[i], probability=shares[i]) for i in columns]
        return ImageAnswer(file=printable(file), classes=classes, **vars(self.decision))


class ServedModel:
    """A model that answers, and what was computed with it; model and version are never changed.

    Args:
        model: the model.
        version: its number.
        options: the shares of unknown images and of prediction sets; ignored where the model cannot
            keep the promise.

    Attributes:
        predicted: name of an image that waits → its result.
    """

    def __init__(self, model: Classifier, version: int, options: ServiceOptions):
        self.model = model
        self.version = version
        self.predicted: dict[str, ScoredImage] = {}
        shares = model.available_shares(options.unknown, options.coverage)
        # Prepared now, so that no answer waits for it.
        self._predictor: OpenSetPredictor = model.open_set_predictor(*shares)

    @cached_property
    def predictions(self) -> ClassPredictions:
        """Leave-one-out predictions of each class; it takes seconds."""
        return ClassPredictions(classes=class_estimates(self.model))

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


class Answering:
    """Threads, each of which decodes and embeds as many images together as wait.

    One thread per core: backbones that run side by side with one thread each are faster than one
    after the other with all threads, because those wait for each other at every layer. Batches save
    about a tenth of the CPU time where 16 clients ask at once.

    Args:
        model: the model that answers first.
        version: its number.
        options: by which it answers.

    Attributes:
        served: the model that answers now; replaced as a whole when a change is stored.
    """

    def __init__(self, model: Classifier, version: int, options: ServiceOptions):
        self._options = options
        self.serve(model, version)
        self._asked = queue.SimpleQueue[tuple[bytes, Future[ScoredImage]]]()
        self._threads = ThreadPoolExecutor(decoding_cores(), "answer")

    def serve(self, model: Classifier, version: int) -> None:
        """Answer with another model from here on."""
        self.served = ServedModel(model, version, self._options)

    def submit(self, content: bytes) -> Future[ScoredImage]:
        """Queue one image, given the content of its file; the result may be UnreadableImage."""
        answer: Future[ScoredImage] = Future()
        self._asked.put((content, answer))
        self._threads.submit(self._answer_batch)
        return answer

    def close(self) -> None:
        """Answer everything that is under way, and stop."""
        self._threads.shutdown()

    def _answer_batch(self) -> None:
        """Answer the images that wait; none are left where other calls took them together."""
        model = self.served.model
        pixels = []
        answers: list[Future[ScoredImage]] = []
        with suppress(queue.Empty):
            while len(answers) < LARGEST_BATCH:
                content, answer = self._asked.get_nowait()
                if not answer.set_running_or_notify_cancel():
                    continue  # who asked is gone
                try:
                    image = decoded(content, model.image_size, model.crop_ratio)
                except Exception as error:  # whatever happened, someone waits for it
                    answer.set_exception(error)
                    continue
                pixels.append(image)
                answers.append(answer)
        if not answers:
            return
        served = self.served  # what was stored before the last of them came counts
        try:
            images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
            with torch.inference_mode():
                results = served.scored(served.model.embed(images))
        except BaseException as error:  # as above
            for answer in answers:
                answer.set_exception(error)
            return
        for answer, result in zip(answers, results, strict=True):
            answer.set_result(result)
