"""Images that wait to be labelled: kept on the disk, predicted anew by each version.

Those whose class is least probable come first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple

import torch
from pydantic import Field

from cifnet_pl.data.sets import FileSet
from cifnet_pl.images.image import UnreadableImage, content_hash
from cifnet_pl.model.bundle import class_names
from cifnet_pl.model.unknowns import OpenSetDecision
from cifnet_pl.serving import messages
from cifnet_pl.serving.answering import ApiObject, ImageAnswer, ServedModel
from cifnet_pl.serving.gallery import Gallery, groups_of
from cifnet_pl.serving.gate import Limits, file_name, uploads
from cifnet_pl.serving.naming import bare, folder_of, similar_names, tidy
from cifnet_pl.serving.refusals import Question, RequestError
from cifnet_pl.serving.workspace import (
    ReceivedImage,
    WaitingImage,
    Workspace,
    is_undamaged,
)
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.text import printable

LARGEST_INBOX = 20_000
"""Images that wait; more are refused."""

STORED_TOGETHER = 32
"""Images that are stored in one transaction."""

PREDICTED_TOGETHER = 256
"""Embeddings that are predicted at once."""

NAMED_CLASSES = 3
"""Classes of a prediction that are named."""


class InboxImage(ImageAnswer):
    """An image that waits, with the prediction of the served version."""

    image: str
    """Name of its file at /images, by which it is labelled."""
    folder: str | None = None
    """Name of the folder that it was sent in; null for none or several."""
    folders: list[str] = Field(default=[])
    """Names of all folders that it was sent in."""
    name: str | None = None
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


class LearnedElsewhere(ApiObject):
    """An image that was learned, and lies in a folder with the name of another class."""

    image: str
    """Name of its kept file."""
    file: str
    name: str
    """Class that it was learned as."""
    folder: str


class Received(ApiObject):
    """The images of a request that wait now; they are on the disk."""

    images: list[str]
    """Names of their files, by which they are labelled."""
    known: int
    """Images that are learned or wait already, and are left out."""
    unreadable: list[LeftOut] = Field(default=[])
    learned_elsewhere: list[LearnedElsewhere] = Field(default=[])


class UploadGroup(ApiObject):
    """Images that are similar."""

    images: list[str]
    suggestion: str | None = None
    """Class that is predicted for most of them; null: none."""


class LabelledUpload(NamedTuple):
    """An image that is to be learned.

    Attributes:
        sent: path that it was sent with.
        file: name of its file in the workspace.
        name: of its class.
        hash: of its content, as models store it.
    """

    sent: str
    file: str
    name: str
    hash: int


@dataclass
class LabelledUploads:
    """Images that wait, and the classes that they are labelled with.

    Attributes:
        folder: holds their files.
        images: each once.
        left_out: images that were deleted or changed on the disk.

    Raises:
        RequestError: the name of a class cannot be stored.
    """

    folder: Path
    images: list[LabelledUpload]
    left_out: list[LeftOut] = field(default_factory=list)

    def __post_init__(self) -> None:
        class_names(self.names, "the request", UsageError)

    @property
    def names(self) -> list[str]:
        """Classes, in the order they were sent."""
        return list(dict.fromkeys(image.name for image in self.images))

    @property
    def files(self) -> FileSet:
        """The files with the positions of their classes."""
        position = {name: label for label, name in enumerate(self.names)}
        files = [image.file for image in self.images]
        return FileSet(
            self.folder, files, [position[image.name] for image in self.images]
        )

    @property
    def chosen(self) -> list[int]:
        """Hashes of the images that someone labelled, and not the folder they were sent in."""
        hashes = []
        for image in self.images:
            if bare(folder_of(image.sent) or "") != bare(image.name):
                hashes.append(image.hash)
        return hashes

    def of_class(self, name: str) -> list[str]:
        """Return the file names of the images of one class."""
        return [image.file for image in self.images if image.name == name]

    def check_plausible(
        self, learned: Mapping[int, Collection[str]], known: Sequence[str]
    ) -> None:
        """Raise Question for what may be a mistake.

        That is a class whose name is nearly that of a known one, or of another one in the request;
        and an image that was learned as another class.

        Args:
            learned: hash of an image → classes in which it was learned.
            known: names of the known classes.
        """
        instead = similar_names(self.names, known)
        if instead:
            raise Question(messages.similar_names(instead), instead)
        for image in self.images:
            others = sorted(set(learned.get(image.hash, ())) - {image.name})
            if others:
                raise Question(messages.learned_as(image.sent, others[0]))

    def leave_out(self, learned: Mapping[int, Collection[str]]) -> None:
        """Leave out the images that were learned as the same class before.

        Args:
            learned: as for :meth:`check_plausible`.

        Raises:
            RequestError: no image is left.
        """
        new = []
        for image in self.images:
            if image.name not in learned.get(image.hash, ()):
                new.append(image)
        if not new:
            raise RequestError(422, messages.learned_before(len(self.images)))
        self.images = new


class Inbox:
    """The images of a workspace that wait to be labelled.

    Args:
        workspace: stores them.
        gallery: embeds them in the background.
        limits: of one request.
    """

    def __init__(self, workspace: Workspace, gallery: Gallery, limits: Limits):
        self.workspace = workspace
        self.gallery = gallery
        self.limits = limits
        self._lock = Lock()
        self._version = 0
        # Of that version, by the name of the file.
        self._predictions: dict[str, InboxImage] = {}

    @property
    def served(self) -> ServedModel:
        """The model that answers now."""
        return self.gallery.answering.current.served

    def receive(
        self,
        files: Iterable[tuple[str, IO[bytes]]],
        learned: Mapping[int, Collection[str]],
        again: bool,
    ) -> Received:
        """Store images until they are labelled; return when the disk has them.

        Args:
            files: names that they were sent with, and open images and zip files of images.
            learned: content hashes of images that need not wait → their classes.
            again: whether images that were taken away or forgotten wait again.

        Raises:
            RequestError: more than the limits allow; images before that one wait.
        """
        result = Received(images=[], known=0)
        images = uploads(files, self.limits)
        waiting = {image.file for image in self.workspace.waiting()}
        while part := list(islice(images, STORED_TOGETHER)):
            unreadable = len(result.unreadable)
            received = list[ReceivedImage]()
            for path, content in part:
                try:
                    image = self._received_image(path, content)
                except UnreadableImage as error:
                    left_out = LeftOut(file=printable(path), reason=str(error))
                    result.unreadable.append(left_out)
                    continue
                names = learned.get(content_hash(content))
                if names is None:
                    received.append(image)
                else:
                    result.learned_elsewhere += self._learned_elsewhere(image, names)
            files_after = waiting.union(image.file for image in received)
            if len(files_after) > LARGEST_INBOX:
                raise RequestError(503, messages.too_many_waiting(LARGEST_INBOX))
            new = self.workspace.receive(received, waiting, again)
            result.images += new
            unreadable = len(result.unreadable) - unreadable
            result.known += len(part) - len(new) - unreadable
        self.gallery.request_update()
        return result

    def _received_image(self, path: str, content: bytes) -> ReceivedImage:
        """Return an image that was sent; UnreadableImage if it cannot be decoded."""
        _, extension = self.gallery.answering.decode(content)
        return ReceivedImage(file_name(content, extension), path, content)

    def _learned_elsewhere(
        self, image: ReceivedImage, names: Collection[str]
    ) -> list[LearnedElsewhere]:
        """Return an image that was learned, if its folder names another class that is known."""
        folder = tidy(folder_of(image.path) or "")
        if folder not in self.served.model.class_names or folder in names:
            return []
        return [
            LearnedElsewhere(
                image=image.file,
                file=printable(image.path),
                name=sorted(names)[0],
                folder=folder,
            )
        ]

    def view(
        self, first: int, count: int, after: int | None = None, surest: bool = False
    ) -> InboxView:
        """Return some of the images that wait, the least probable first.

        Args:
            first: number of images that are left out at the beginning.
            count: number of images to return.
            after: number of an image; those that came later come before all others.
            surest: whether the most probable come first.
        """
        version, waiting, predictions = self._predicted()
        seen = []
        rest = []
        for image in waiting:
            if image.file in predictions:
                labelled = {"name": image.name, **_folders(image)}
                seen.append(predictions[image.file].model_copy(update=labelled))
            else:
                rest.append(unseen_image(image))
        if rest:
            self.gallery.request_update()
        seen.sort(key=_probability, reverse=surest)
        images = seen + rest
        if after is not None:
            new = {image.file for image in waiting if image.number > after}
            images.sort(key=lambda image: image.image not in new)
        shown = images[first : first + count]
        return InboxView(
            version=version,
            waiting=len(waiting),
            seen=len(seen),
            in_folders=sum(
                len(image.folders) == 1 and image.name is None for image in waiting
            ),
            newest=max((image.number for image in waiting), default=0),
            names={
                image.file: image.name for image in waiting if image.name is not None
            },
            images=[self._with_nearest(image) for image in shown],
        )

    def _with_nearest(self, image: InboxImage) -> InboxImage:
        """Add the most similar kept image of the first class."""
        z = self.gallery.known.get(image.image)
        if z is None or not image.classes:
            return image
        nearest = self.gallery.nearest(image.classes[0].name, z)
        return image.model_copy(update={"nearest": nearest})

    def _predicted(self) -> tuple[int, list[WaitingImage], dict[str, InboxImage]]:
        """Predict what was embedded and not yet predicted by the served version.

        Returns:
            The version, the images that wait, and all predictions by the name of the file.
        """
        with self._lock:
            served = self.served
            waiting = self.workspace.waiting()
            embedded = dict(self.gallery.known)
            old = self._predictions if self._version == served.version else {}
            self._version = served.version
            files = {image.file for image in waiting}
            self._predictions = {file: old[file] for file in old if file in files}
            new = []
            for image in waiting:
                if image.file not in self._predictions and image.file in embedded:
                    new.append(image)
            for start in range(0, len(new), PREDICTED_TOGETHER):
                part = new[start : start + PREDICTED_TOGETHER]
                z = torch.stack([embedded[image.file] for image in part])
                shares, decisions = served.scored(z.to(served.model.device))
                for image, probabilities, decision in zip(
                    part, shares, decisions, strict=True
                ):
                    prediction = inbox_image(image, served, probabilities, decision)
                    self._predictions[image.file] = prediction
            return served.version, waiting, dict(self._predictions)

    def group(self, images: Sequence[str]) -> list[UploadGroup]:
        """Group images by similarity; suggest the class that is predicted for most of a group."""
        files, z = self.gallery.embeddings(list(dict.fromkeys(images)))
        if not files:
            return []
        served = self.served
        probabilities, decisions = served.scored(z.to(served.model.device))
        groups = []
        for rows in groups_of(z):
            known = [row for row in rows if decisions[row].known is not False]
            suggestion = None
            if known and probabilities.shape[1]:
                predicted = Counter(probabilities[known].argmax(dim=1).tolist())
                column, count = predicted.most_common(1)[0]
                if 2 * count > len(rows):
                    suggestion = served.model.class_names[column]
            members = [files[row] for row in rows]
            groups.append(UploadGroup(images=members, suggestion=suggestion))
        return groups

    def labelled(self, names: Mapping[str, str]) -> LabelledUploads:
        """Return images that wait with the classes that they are to be.

        Args:
            names: name of an image's file → its class. Images that do not wait any more are left
                out.

        Raises:
            RequestError: none of them waits, or a class name that cannot be stored.
        """
        sent = {image.file: image.path for image in self.workspace.waiting()}
        folder = self.workspace.images_folder
        images = []
        left_out = []
        for file, name in names.items():
            if file not in sent:
                continue
            if is_undamaged(folder / file):
                value = content_hash((folder / file).read_bytes())
                images.append(LabelledUpload(sent[file], file, tidy(name), value))
            else:
                left_out.append(
                    LeftOut(file=printable(sent[file]), reason=messages.DAMAGED)
                )
        if left_out and not images:
            raise RequestError(409, f"{left_out[0].file}: {messages.DAMAGED}")
        if not images:
            raise RequestError(409, messages.NOTHING_WAITS)
        return LabelledUploads(folder, images, left_out)


def inbox_image(
    image: WaitingImage,
    served: ServedModel,
    probabilities: torch.Tensor,
    decision: OpenSetDecision,
) -> InboxImage:
    """Return an image that waits with its prediction.

    Args:
        image: that waits.
        served: the model that predicted.
        probabilities: (C,).
        decision: of the model.
    """
    answer = ImageAnswer.from_scores(
        image.path, served.model.class_names, probabilities, decision, NAMED_CLASSES
    )
    return InboxImage(**dict(answer), image=image.file, **_folders(image))


def unseen_image(image: WaitingImage) -> InboxImage:
    """Return an image that is not predicted yet."""
    return InboxImage(
        image=image.file,
        file=printable(image.path),
        name=image.name,
        seen=False,
        **_folders(image),
    )


def _folders(image: WaitingImage) -> dict[str, Any]:
    """Return the fields of an image that name its folders."""
    folders = image.folders
    return {"folder": folders[0] if len(folders) == 1 else None, "folders": folders}


def _probability(image: InboxImage) -> tuple[bool, float]:
    """Return by what images are sorted: whether they are known, and the probability."""
    probability = image.classes[0].probability if image.classes else 0.0
    return (image.known is not False, probability)
