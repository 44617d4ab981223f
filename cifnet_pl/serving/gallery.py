"""Keep the embeddings of the images of a workspace, to find similar ones and to learn at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from cifnet_pl.images.image import UnreadableImage
from cifnet_pl.serving.answering import Answering, ImageAnswer, ScoredImage
from cifnet_pl.serving.messages import RequestError
from cifnet_pl.serving.workspace import Workspace

LOGGER = logging.getLogger("cifnet_pl.serving")

COMPARED_PER_CLASS = 100
"""Images of a class that are compared with a new one, the newest."""

EMBEDDED_TOGETHER = 8
"""Images that are embedded at a time: answers that come meanwhile wait for no more than these."""

RETRY_SECONDS = 2.0
"""Pause before images are embedded that could not be read."""

LARGEST_GROUPS = 12
"""Number of groups of similar images at most."""


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
        for start in range(0, len(new), EMBEDDED_TOGETHER):
            part = new[start : start + EMBEDDED_TOGETHER]
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
        for start in range(0, len(unknown), EMBEDDED_TOGETHER):
            if self._changed.is_set():  # all begins anew
                return
            self._embed(unknown[start : start + EMBEDDED_TOGETHER])
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
    labels = max(
        choices, key=partial(silhouette_score, distances, metric="precomputed")
    )
    found = [np.flatnonzero(labels == label).tolist() for label in set(labels)]
    return sorted(found, key=len, reverse=True)
