"""Answer with the served model: embed what is asked about together, and images that are kept.

The embeddings of images of the workspace find similar ones, and serve to learn at once.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn.functional import normalize

from cifnet_pl.images.image import UnreadableImage
from cifnet_pl.images.reader import decoding_cores
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.unknowns import OpenSetDecision, OpenSetPredictor
from cifnet_pl.serving.gate import ApiObject, Limits, decoded
from cifnet_pl.serving.messages import RequestError
from cifnet_pl.serving.workspace import Workspace
from cifnet_pl.utilities.text import printable

LOGGER = logging.getLogger("cifnet_pl.serving")

LARGEST_BATCH = 8
"""Images that are embedded together at most: the first of them waits for all."""

COMPARED_PER_CLASS = 100
"""Images of a class that are compared with a new one, the newest."""

RETRY_SECONDS = 2.0
"""Pause before images are embedded that could not be read."""

LARGEST_GROUPS = 12
"""Number of groups of similar images at most."""


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
        limits: of one request.
    """

    name: str = "model"
    read_only: bool = False
    keep_images: bool = True
    unknown: float | None = 0.05
    coverage: float | None = 0.95
    limits: Limits = field(default_factory=Limits)


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
        classes = []
        for column in self.probabilities.argsort(descending=True)[:top].tolist():
            share = float(self.probabilities[column])
            classes.append(Candidate(name=names[column], probability=share))
        decided = vars(self.decision)
        return ImageAnswer(file=printable(file), classes=classes, **decided)


class ServedModel:
    """A model that answers, and the number of its version; both are never changed.

    Args:
        model: the model.
        version: its number.
        options: the shares of unknown images and of prediction sets; ignored where the model cannot
            keep the promise.
    """

    def __init__(self, model: Classifier, version: int, options: ServiceOptions):
        self.model = model
        self.version = version
        shares = model.available_shares(options.unknown, options.coverage)
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
        model: the model that answers first.
        version: its number.
        options: by which it answers.

    Attributes:
        served: the model that answers now; replaced as a whole when a change is stored.
    """

    def __init__(self, model: Classifier, version: int, options: ServiceOptions):
        self._options = options
        self.serve(model, version)
        embedders = decoding_cores() if model.device.type == "cpu" else 1
        self._ready: queue.SimpleQueue[DecodedImage] = queue.SimpleQueue()
        self._decoders = ThreadPoolExecutor(decoding_cores(), "decode")
        self._embedders = ThreadPoolExecutor(embedders, "answer")

    def serve(self, model: Classifier, version: int) -> None:
        """Answer with another model from here on."""
        self.served = ServedModel(model, version, self._options)

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
        limits = self._options.limits
        return decoded(content, model.image_size, model.crop_ratio, limits)

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


class Gallery:
    """The images of the served version and of the inbox, embedded in the background.

    Args:
        workspace: keeps the images.
        answering: embeds them.

    Attributes:
        known: name of an image → its embedding (d,), right for every version.
    """

    def __init__(self, workspace: Workspace, answering: Answering):
        self.workspace = workspace
        self.answering = answering
        self.known: dict[str, Tensor] = {}
        self._predicted: dict[str, ScoredImage] = {}
        self._classes: dict[str, tuple[list[str], Tensor]] = {}
        self._changed = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="gallery", daemon=True)
        self._thread.start()

    def request_update(self) -> None:
        """Have the thread embed new images; return at once."""
        self._changed.set()

    def close(self) -> None:
        """Stop the thread that embeds."""
        self._ended = True
        self._changed.set()
        self._thread.join()

    def answer(self, scored: ScoredImage, file: str, top: int) -> ImageAnswer:
        """Return the prediction for an image, with the most similar kept image of its first class.

        Args:
            scored: the model's result.
            file: name that the image was sent with.
            top: number of classes to name.
        """
        answer = scored.answer(file, top)
        best = answer.classes[0].name if answer.classes else ""
        if best in self._classes:
            files, unit = self._classes[best]
            answer.nearest = files[int((unit @ scored.z.cpu().float()).argmax())]
        return answer

    def embeddings(
        self, names: Sequence[str], report: Callable[[int, int], object] | None = None
    ) -> tuple[list[str], Tensor]:
        """Embed kept images, and wait for the result.

        Args:
            names: of the images.
            report: gets the number of images that are embedded, and of those that are to be.

        Returns:
            Names of the images that can be read, and their embeddings (n, d).
        """
        new = [name for name in names if name not in self.known]
        for start in range(0, len(new), LARGEST_BATCH):
            part = new[start : start + LARGEST_BATCH]
            self._embed(part)
            if report is not None:
                report(start + len(part), len(new))
        present = [name for name in names if name in self.known]
        if not present:
            return [], torch.zeros(0, 0)
        return present, torch.stack([self.known[name] for name in present])

    def predictions(self, names: Sequence[str]) -> dict[str, ScoredImage]:
        """Return the results of the served version for those of some images that are embedded."""
        served = self.answering.served
        old = self._predicted
        predicted = {}
        new = []
        for name in names:
            if name in old and old[name].served is served:
                predicted[name] = old[name]
            elif name in self.known:
                new.append(name)
        if new:
            z = torch.stack([self.known[name] for name in new])
            predicted.update(zip(new, served.scored(z), strict=True))
        self._predicted = predicted
        return predicted

    def _run(self) -> None:
        """Embed after each change."""
        while self._changed.wait() and not self._ended:
            self._changed.clear()
            try:
                self._update()
            except Exception:  # whatever happened, it is tried again
                LOGGER.warning("images are embedded later", exc_info=True)
                time.sleep(RETRY_SECONDS)
                self._changed.set()

    def _update(self) -> None:
        """Embed what is not known yet, and drop what is no longer needed."""
        kept_images = self.workspace.kept_images()
        self._compare(kept_images)
        wanted = [image.file for image in self.workspace.waiting()]
        unknown = [name for name in wanted if name not in self.known]
        for start in range(0, len(unknown), LARGEST_BATCH):
            if self._changed.is_set():  # all begins anew
                return
            self._embed(unknown[start : start + LARGEST_BATCH])
        for files in kept_images.values():
            wanted += files
        for name in self.known.keys() - set(wanted):
            self.known.pop(name, None)

    def _compare(self, kept_images: Mapping[str, Sequence[str]]) -> None:
        """Embed the newest images of each class, with which new ones are compared."""
        classes = {}
        for name, files in kept_images.items():
            present, z = self.embeddings(files[-COMPARED_PER_CLASS:])
            if present:
                classes[name] = (present, normalize(z, dim=1))
        self._classes = classes

    def _embed(self, names: Sequence[str]) -> None:
        """Embed a few images; those that cannot be read stay unknown."""
        if self._ended:
            return
        futures = {}
        for name in names:
            try:
                content = self.workspace.image(name).read_bytes()
            except (OSError, RequestError):  # it is gone
                continue
            futures[name] = self.answering.submit(content)
        for name, future in futures.items():
            try:
                self.known[name] = future.result().z.cpu().float()
            except UnreadableImage:
                continue


def groups_of(z: Tensor) -> list[list[int]]:
    """Group embeddings by similarity.

    Average-linkage clustering of the cosine distances, into the number of groups (2 to
    ``LARGEST_GROUPS``) with the best mean silhouette (Rousseeuw, 1987). Fewer than three images are
    one group.

    Args:
        z: (n, d) embeddings.

    Returns:
        Rows of each group, the largest group first.
    """
    # Scikit-learn loads for seconds, and few ask for groups.
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics import silhouette_score

    if len(z) < 3:
        return [list(range(len(z)))]
    unit = normalize(z.double(), dim=1)
    distances = (1 - unit @ unit.T).clamp_min(0).fill_diagonal_(0).cpu().numpy()
    choices = []
    for groups in range(2, min(LARGEST_GROUPS, len(z) - 1) + 1):
        clustering = AgglomerativeClustering(
            groups, metric="precomputed", linkage="average"
        )
        choices.append(clustering.fit_predict(distances))
    silhouette = partial(silhouette_score, distances, metric="precomputed")
    labels = max(choices, key=silhouette)
    found = [np.flatnonzero(labels == label).tolist() for label in set(labels)]
    return sorted(found, key=len, reverse=True)
