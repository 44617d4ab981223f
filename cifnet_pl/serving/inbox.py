"""The images of a workspace that wait to be labelled, predicted anew by each version.

A thread embeds them in the background. The least probable come first.
"""

import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import IO, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from cifnet_pl.images.image import UnreadableImage, content_hash
from cifnet_pl.serving.answering import (
    LARGEST_BATCH,
    Answering,
    ImageAnswer,
    ScoredImage,
)
from cifnet_pl.serving.gate import (
    ApiObject,
    Upload,
    checked_names,
    folder_of,
    uploads,
)
from cifnet_pl.serving.messages import DAMAGED, SHOWN_NAMES, RequestError
from cifnet_pl.serving.workspace import (
    FilesOfClasses,
    WaitingImage,
    Workspace,
)
from cifnet_pl.utilities.text import bare, number_of, printable

LOGGER = logging.getLogger("cifnet_pl.serving")

GROUP_WIDTH = 1.25
"""Width of a group of similar images, as a multiple of the distance of half of them from their
nearest one. Measured on Grocery Store, 20 images of 5 products to 280 of 28: three fifths are in
groups, which are 95 to 100 % of one product; where it is half as wide again, four fifths and 90 to
99 %. With two or three images of each product groups are 73 to 86 % of one."""


class InboxImage(ImageAnswer):
    """An image that waits, with the prediction of the served version."""

    image: str
    """Name of its file at /images, by which it is labelled."""
    folder: str | None
    """Name of the folder that it was sent in; null for none or several."""
    folders: list[str]
    """Names of all folders that it was sent in."""
    name: str | None
    """Class that someone typed for it; it is learned when someone asks for that."""
    seen: bool = True
    """False: it is not predicted yet."""


class InboxView(ApiObject):
    """Images that wait: the least probable first, those that are not predicted yet last."""

    version: int
    waiting: int
    seen: int
    """Number of them that are predicted."""
    in_folders: int
    """Images that were sent in one folder, whose name may be their class."""
    newest: int
    """Number of the image that came last."""
    names: dict[str, str]
    """Name of a file → class that someone typed for it, of all images that wait."""
    images: list[InboxImage]


class LeftOut(ApiObject):
    """An image that was left out."""

    file: str
    reason: str


class KnownImage(ApiObject):
    """An image that is learned or waits already, and is left out."""

    image: str
    """Name of its kept file."""
    file: str
    name: str | None = None
    """Class that it was learned as; null: it waits."""
    folder: str | None = None
    """Another class, in whose folder it was sent."""


class Received(ApiObject):
    """The images of a request that wait now; they are on the disk."""

    images: list[str] = Field(default=[])
    """Names of their files, by which they are labelled."""
    known: list[KnownImage] = Field(default=[])
    unreadable: list[LeftOut] = Field(default=[])


class UploadGroup(ApiObject):
    """Images that are similar."""

    images: list[str]
    suggestion: str | None = None
    """Class that is predicted for most of them; null: none."""


class ImagesToLearn(NamedTuple):
    """Images that wait and are to be learned.

    Attributes:
        classes: by their names.
        hash_of: name of an image's file → its content hash.
        selected: content hashes of those that someone chose while others wait. These are the least
            probable ones, so an accuracy of them says little of new images. None where only folders
            named them; none at all where nothing else waits.
        left_out: images that cannot be learned.
    """

    classes: FilesOfClasses
    hash_of: dict[str, int]
    selected: list[int] | None
    left_out: list[LeftOut]


class Inbox:
    """The images of a workspace, embedded in the background, and what is done with those that wait.

    Args:
        workspace: stores them.
        answering: embeds and predicts them.

    Attributes:
        known: name of an image → its embedding (d,), right for every version.
        changed: set to have the thread embed new images.
    """

    def __init__(self, workspace: Workspace, answering: Answering):
        self.workspace = workspace
        self.answering = answering
        self.known: dict[str, Tensor] = {}
        self.changed = threading.Event()
        self._embedding = threading.Lock()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="inbox", daemon=True)
        self.changed.set()
        self._thread.start()

    def close(self) -> None:
        """Stop the thread that embeds."""
        self._ended = True
        self.changed.set()
        self._thread.join()

    # ------------------------------------------------------------------ embed in the background

    def _run(self) -> None:
        """After each change embed what is not known yet, and drop what is no longer needed."""
        while self.changed.wait() and not self._ended:
            self.changed.clear()
            try:
                self._embed(self.workspace.waiting())
                waiting = self.workspace.waiting()  # by now
                needed = set(waiting).union(*self.workspace.kept_images().values())
                for name in self.known.keys() - needed:
                    self.known.pop(name, None)
            except Exception:
                # Whatever happened, the next look at the inbox asks again.
                LOGGER.warning("images are embedded later", exc_info=True)

    def embeddings(self, names: Sequence[str]) -> tuple[list[str], Tensor]:
        """Embed images of the workspace, and wait for the result.

        Args:
            names: of the images.

        Returns:
            Names of the images that can be read, and their embeddings (n, d).
        """
        self._embed(names)
        # Another thread may drop some meanwhile.
        found = {name: self.known.get(name) for name in names}
        present = {name: z for name, z in found.items() if z is not None}
        if not present:
            return [], torch.zeros(0, 0)
        return list(present), torch.stack(list(present.values()))

    def _embed(self, names: Iterable[str]) -> None:
        """Embed images that are not known yet, a few together; unreadable ones stay unknown."""
        new = [name for name in names if name not in self.known]
        for start in range(0, len(new), LARGEST_BATCH):
            if self._ended:
                return
            # Another thread may want the same images.
            with self._embedding:
                self._embed_batch(new[start : start + LARGEST_BATCH])

    def _embed_batch(self, names: Iterable[str]) -> None:
        """Embed those of a few images that are not known by now."""
        futures = {}
        for name in names:
            if name in self.known:
                continue
            with suppress(OSError, RequestError):  # it is gone
                content = self.workspace.image(name).read_bytes()
                futures[name] = self.answering.submit(content)
        for name, future in futures.items():
            with suppress(UnreadableImage):
                self.known[name] = future.result().z.cpu().float()

    # ------------------------------------------------------------------ images that arrive

    def receive(
        self,
        files: Iterable[tuple[str, IO[bytes]]],
        again: bool = True,
    ) -> Received:
        """Store images until they are labelled; return when the disk has them.

        Those that are learned are left out.

        Args:
            files: names that they were sent with, and open images and zip files of images.
            again: whether images that were taken away or forgotten wait again.

        Raises:
            RequestError: more than the limits allow; images before that one wait.
        """
        result = Received()
        model = self.answering.served.model
        images = uploads(files, model.image_size, model.crop_ratio)
        learned = model.classes_of_hashes()
        waiting = set(self.workspace.waiting())
        part = []
        try:
            for image in images:
                sent = printable(image.path)
                names = learned.get(content_hash(image.content))
                if image.unreadable is not None:
                    left_out = LeftOut(file=sent, reason=image.unreadable)
                    result.unreadable.append(left_out)
                elif names is not None:
                    known = KnownImage(image=image.file, file=sent, name=min(names))
                    folder = folder_of(image.path)
                    if folder in model.class_names and folder not in names:
                        known.folder = folder
                    result.known.append(known)
                else:
                    part.append(image)
                if len(part) == LARGEST_BATCH:
                    self._store(part, waiting, again, result)
                    part = []
        finally:
            self._store(part, waiting, again, result)
        return result

    def _store(
        self,
        images: Sequence[Upload],
        waiting: set[str],
        again: bool,
        result: Received,
    ) -> None:
        """Store images that are not learned, and say which of them wait already.

        Args:
            images, waiting, again: as for :meth:`Workspace.receive`.
            result: it is added to.
        """
        new = self.workspace.receive(images, waiting, again)
        result.images += new
        result.known += [
            KnownImage(image=image.file, file=printable(image.path))
            for image in images
            if image.file not in new
        ]
        self.changed.set()

    def view(
        self,
        first: int,
        count: int,
        after: int | None = None,
        surest: bool = False,
    ) -> InboxView:
        """Return some of the images that wait, the least probable first.

        Args:
            first: number of images that are left out at the beginning.
            count: number of images to return.
            after: number of an image; those that came later come before all others.
            surest: whether the most probable come first.
        """
        served = self.answering.served
        waiting = self.workspace.waiting()
        predicted = self._predictions(waiting)
        seen = [image for file, image in waiting.items() if file in predicted]
        rest = [image for file, image in waiting.items() if file not in predicted]
        if rest:
            self.changed.set()
        seen.sort(key=lambda image: _sureness(predicted[image.file]), reverse=surest)
        images = seen + rest
        if after is not None:
            images.sort(key=lambda image: image.number <= after)
        shown = images[first : first + count]
        names = {
            file: one.name for file, one in waiting.items() if one.name is not None
        }
        unnamed = [one for one in waiting.values() if one.name is None]
        return InboxView(
            version=served.version,
            waiting=len(waiting),
            seen=len(seen),
            in_folders=sum(one.folder is not None for one in unnamed),
            newest=max((image.number for image in waiting.values()), default=0),
            names=names,
            images=[_shown(image, predicted.get(image.file)) for image in shown],
        )

    def _predictions(self, names: Iterable[str]) -> dict[str, ScoredImage]:
        """Return the results of the served version; those of the named images are there, once they
        are embedded.
        """
        served = self.answering.served
        predicted = served.predicted
        new = [name for name in names if name in self.known and name not in predicted]
        if new:
            z = torch.stack([self.known[name] for name in new])
            predicted.update(zip(new, served.scored(z), strict=True))
        return predicted

    def group(self, images: Sequence[str]) -> list[UploadGroup]:
        """Group images by similarity; suggest the class that is predicted for most of a group."""
        files, z = self.embeddings(images)
        if not files:
            return []
        answers = [one.answer("", 1) for one in self.answering.served.scored(z)]
        groups = []
        for rows in groups_of(z):
            votes = Counter[str]()
            for row in rows:
                if answers[row].known is not False:
                    votes.update(one.name for one in answers[row].classes)
            suggestion = None
            for name, count in votes.most_common(1):
                if 2 * count > len(rows):
                    suggestion = name
            members = [files[row] for row in rows]
            groups.append(UploadGroup(images=members, suggestion=suggestion))
        return groups

    def to_learn(self, names: Mapping[str, str], anyway: bool) -> ImagesToLearn:
        """Return images that wait, but those that were learned as the same class before.

        Args:
            names: name of an image's file → its class. Images that do not wait any more are left
                out.
            anyway: whether to learn what may be a mistake.

        Raises:
            RequestError: none is left; or, unless it is learned ``anyway``, a class whose name is
                nearly that of another one, or an image that was learned as another class.
        """
        waiting = self.workspace.waiting()
        chosen = [file for file in waiting if file in names]
        if not chosen:
            raise RequestError(
                409,
                "none of these photos waits any more: someone else decided them, or took them"
                " away",
            )
        model = self.answering.served.model
        given = [names[file] for file in chosen]
        stored = checked_names(given, model.class_names, anyway)
        hash_of = self.workspace.unchanged(chosen)
        left_out = [
            LeftOut(file=printable(waiting[file].path), reason=DAMAGED)
            for file in chosen
            if file not in hash_of
        ]
        if not hash_of:
            raise RequestError(409, f"{left_out[0].file}: {DAMAGED}")
        learned = model.classes_of_hashes()
        classes: FilesOfClasses = {}
        selected = []
        for file, content in hash_of.items():
            image = waiting[file]
            name = stored[names[file]]
            names_before = learned.get(content, frozenset())
            others = names_before - {name}
            if others and not anyway:
                raise RequestError(
                    409,
                    f"{image.path} was learned as '{min(others)}' before, and a photo in two"
                    " classes makes both of them worse",
                    anyway=True,
                )
            if name not in names_before:
                classes.setdefault(name, []).append(file)
                if bare(name) not in map(bare, image.folders):
                    selected.append(content)
        if not classes:
            photos = number_of(len(hash_of), "photo")
            raise RequestError(422, f"{photos} sent, but all were learned before")
        if waiting.keys() <= hash_of.keys():
            return ImagesToLearn(classes, hash_of, [], left_out)
        return ImagesToLearn(classes, hash_of, selected or None, left_out)


def _shown(image: WaitingImage, scored: ScoredImage | None) -> InboxImage:
    """Return an image that waits, with its prediction if there is one."""
    answer = ImageAnswer(file=printable(image.path))
    if scored is not None:
        answer = scored.answer(image.path, SHOWN_NAMES)
    return InboxImage(
        **dict(answer),
        image=image.file,
        folder=image.folder,
        folders=image.folders,
        name=image.name,
        seen=scored is not None,
    )


def _sureness(scored: ScoredImage) -> tuple[bool, float]:
    """Return by what images are sorted: whether they are known, and the probability."""
    probability = 0.0
    if scored.probabilities.numel():
        probability = float(scored.probabilities.max())
    return scored.decision.known is not False, probability


def groups_of(z: Tensor) -> list[list[int]]:
    """Group embeddings by similarity, so that a group is of one class as often as can be.

    Complete-linkage clustering of the cosine distances: no two members of a group are further apart
    than ``GROUP_WIDTH`` times the median distance of an embedding from its nearest one.

    Args:
        z: (n, d) embeddings.

    Returns:
        Rows of each group, the largest group first; rows like no other are groups of one.
    """
    # Scikit-learn loads for seconds, and few ask for groups.
    from sklearn.cluster import AgglomerativeClustering
    from sklearn.metrics.pairwise import cosine_distances

    if len(z) < 3:
        return [list(range(len(z)))]
    distances = cosine_distances(z.double().cpu().numpy())
    nearest = np.partition(distances, 1, axis=1)[:, 1]  # of itself it is 0
    width = GROUP_WIDTH * float(np.median(nearest))
    clustering = AgglomerativeClustering(
        n_clusters=None,
        distance_threshold=width,
        metric="precomputed",
        linkage="complete",
    )
    labels = clustering.fit_predict(distances)
    found = [np.flatnonzero(labels == label).tolist() for label in set(labels)]
    return sorted(found, key=len, reverse=True)
