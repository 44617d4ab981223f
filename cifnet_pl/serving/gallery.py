"""Keep the embeddings of the images of a workspace, to find similar ones and to learn at once."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future

import torch
from torch import Tensor

from cifnet_pl.serving.answering import Answering, ScoredImage
from cifnet_pl.serving.workspace import Workspace
from cifnet_pl.utilities.errors import CifnetError

LOGGER = logging.getLogger("cifnet_pl.serving")

COMPARED_PER_CLASS = 100
"""Images of a class that are compared with a new one, the newest."""

EMBEDDED_TOGETHER = 8
"""Images that are embedded at a time: answers that come meanwhile wait for no more than these."""

RETRY_SECONDS = 2.0
"""Pause before images are embedded that could not be read."""

Report = Callable[[int, int], object]
"""Called with the number of images that are embedded, and of those that are to be."""


def _report_nothing(done: int, total: int) -> None:
    """Do nothing."""


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

    def nearest(self, name: str, z: Tensor) -> str | None:
        """Return the kept image of a class with the largest cosine to an embedding.

        Args:
            name: of the class.
            z: (d,).

        Returns:
            Name of the image; None if none is kept.
        """
        if name not in self._classes:
            return None
        files, unit = self._classes[name]
        return files[int((unit @ z.cpu().float()).argmax())]

    def embeddings(
        self, names: Sequence[str], report: Report = _report_nothing
    ) -> tuple[list[str], Tensor]:
        """Embed kept images, and wait for the result.

        Args:
            names: of the images.
            report: told how far it is.

        Returns:
            Names of the images that can be read, and their embeddings (n, d).
        """
        self._embed(self._unknown(names), report)
        present = [name for name in names if name in self.known]
        if not present:
            return [], torch.zeros(0, 0)
        return present, torch.stack([self.known[name] for name in present])

    def _unknown(self, names: Sequence[str]) -> list[str]:
        """Return the names of images that are not embedded yet."""
        return [name for name in names if name not in self.known]

    def _run(self) -> None:
        """Embed after each change."""
        while True:
            self._changed.wait()
            self._changed.clear()
            if self._ended:
                return
            try:
                self._embed_all()
            except (CifnetError, OSError) as error:  # it is tried again
                LOGGER.warning("images are embedded later: %s", error)
                self._changed.set()
                time.sleep(RETRY_SECONDS)

    def _embed_all(self) -> None:
        """Embed what is not known yet, and drop what is no longer needed."""
        kept_images = self.workspace.kept_images(self.answering.current.served.version)
        self._compare(kept_images)
        waiting = [image.file for image in self.workspace.waiting()]
        unknown = self._unknown(waiting)
        for start in range(0, len(unknown), EMBEDDED_TOGETHER):
            if self._changed.is_set():  # all begins anew
                break
            self._embed(unknown[start : start + EMBEDDED_TOGETHER])
        self._drop_others(kept_images, waiting)

    def _compare(self, kept_images: Mapping[str, Sequence[str]]) -> None:
        """Embed the newest images of each class, with which new ones are compared."""
        classes = {}
        for name, files in kept_images.items():
            newest = list(files)[-COMPARED_PER_CLASS:]
            present, z = self.embeddings(newest)
            if present:
                classes[name] = (present, torch.nn.functional.normalize(z, dim=1))
        self._classes = classes

    def _drop_others(
        self, kept_images: Mapping[str, Sequence[str]], waiting: Sequence[str]
    ) -> None:
        """Drop the embeddings of images that are neither kept nor wait."""
        wanted = set(waiting)
        for files in kept_images.values():
            wanted.update(files)
        for file in list(self.known):  # an audit may add others meanwhile
            if file not in wanted:
                del self.known[file]

    def _embed(self, names: Sequence[str], report: Report = _report_nothing) -> None:
        """Embed images, a few at a time; those that cannot be read stay unknown."""
        for start in range(0, len(names), EMBEDDED_TOGETHER):
            if self._ended:
                return
            part = names[start : start + EMBEDDED_TOGETHER]
            futures = {name: self._submitted(name) for name in part}
            for name, future in futures.items():
                if future is not None and future.exception() is None:
                    self.known[name] = future.result().z.cpu().float()
            report(start + len(part), len(names))

    def _submitted(self, name: str) -> Future[ScoredImage] | None:
        """Queue one kept image; None if it is gone, or there is too much to do.

        It is tried again after the next change.
        """
        try:
            return self.answering.submit(self.workspace.image(name).read_bytes())
        except Exception:
            return None


def groups_of(z: Tensor, largest: int = 12) -> list[list[int]]:
    """Group embeddings by similarity.

    Average-linkage clustering of the cosine distances, into the number of groups (2 to ``largest``)
    with the best mean silhouette (Rousseeuw, 1987). Fewer than three images are one group.

    Args:
        z: (n, d) embeddings.
        largest: number of groups at most.

    Returns:
        Rows of each group, the largest group first.
    """
    from sklearn.cluster import (
        AgglomerativeClustering,
    )  # loads for seconds, and few ask for groups
    from sklearn.metrics import silhouette_score

    count = len(z)
    if count < 3:
        return [list(range(count))][:count]
    unit = torch.nn.functional.normalize(z.double(), dim=1)
    distances = (1 - unit @ unit.T).clamp_min(0).fill_diagonal_(0).cpu().numpy()
    best = -1.0
    chosen = [0] * count
    for groups in range(2, min(largest, count - 1) + 1):
        clustering = AgglomerativeClustering(
            groups, metric="precomputed", linkage="average"
        )
        labels = clustering.fit_predict(distances)
        quality = float(silhouette_score(distances, labels, metric="precomputed"))
        if quality > best:
            best = quality
            chosen = labels.tolist()
    rows: dict[int, list[int]] = {}
    for row, label in enumerate(chosen):
        rows.setdefault(label, []).append(row)
    return sorted(rows.values(), key=len, reverse=True)
