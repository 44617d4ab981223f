"""Images that wait to be labelled: kept on the disk, predicted anew by each version.

Those whose class is least probable come first.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import islice
from typing import IO, NamedTuple

from pydantic import Field

from cifnet_pl.images.image import UnreadableImage, content_hash
from cifnet_pl.model.labelled_images import classes_of_hashes
from cifnet_pl.serving import messages
from cifnet_pl.serving.answering import (
    LARGEST_BATCH,
    Gallery,
    ImageAnswer,
    ScoredImage,
    groups_of,
)
from cifnet_pl.serving.gate import (
    ApiObject,
    Limits,
    bare,
    file_name,
    folder_of,
    tidy,
    uploads,
)
from cifnet_pl.serving.messages import SHOWN_NAMES, RequestError
from cifnet_pl.serving.workspace import (
    ReceivedImage,
    WaitingImage,
    Workspace,
    is_undamaged,
)
from cifnet_pl.utilities.text import printable

LARGEST_INBOX = 20_000
"""Images that wait; more are refused."""


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

    @property
    def is_named_by_folder(self) -> bool:
        """Whether its class is that of the folder that it was sent in, and nobody chose it."""
        return bare(folder_of(self.sent) or "") == bare(self.name)


class Inbox:
    """The images of a workspace that wait to be labelled.

    Args:
        workspace: stores them.
        gallery: embeds and predicts them in the background.
        limits: of one request.
    """

    def __init__(self, workspace: Workspace, gallery: Gallery, limits: Limits):
        self.workspace = workspace
        self.gallery = gallery
        self.answering = gallery.answering
        self.limits = limits

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
        result = Received(images=[], known=0)
        images = uploads(files, self.limits)
        learned = self.classes_of_images()
        waiting = {image.file for image in self.workspace.waiting()}
        while part := list(islice(images, LARGEST_BATCH)):
            received = list[ReceivedImage]()
            readable = 0
            for path, content in part:
                try:
                    _, extension = self.answering.decode(content)
                except UnreadableImage as error:
                    left_out = LeftOut(file=printable(path), reason=str(error))
                    result.unreadable.append(left_out)
                    continue
                readable += 1
                file = file_name(content, extension)
                names = learned.get(content_hash(content))
                if names is None:
                    received.append(ReceivedImage(file, path, content))
                else:
                    result.learned_elsewhere += self._elsewhere(file, path, names)
            if len(waiting.union(image.file for image in received)) > LARGEST_INBOX:
                raise RequestError(503, messages.TOO_MANY_WAITING, images=LARGEST_INBOX)
            new = self.workspace.receive(received, waiting, again)
            result.images += new
            result.known += readable - len(new)
        self.gallery.request_update()
        return result

    def remove(self, images: Sequence[str], back: bool) -> None:
        """Take images away that wait, or take them ``back``."""
        self.workspace.remove(images, None if back else time.time())
        self.gallery.request_update()

    def classes_of_images(self) -> dict[int, set[str]]:
        """Return the classes in which each image was learned, by the hash of its content."""
        model = self.answering.served.model
        names = model.class_names
        classes = {}
        for image, positions in classes_of_hashes(model, names).items():
            classes[image] = {names[position] for position in positions}
        return classes

    def _elsewhere(
        self, file: str, path: str, names: Collection[str]
    ) -> list[LearnedElsewhere]:
        """Return an image that was learned, if its folder names another class that is known."""
        folder = tidy(folder_of(path) or "")
        if folder not in self.answering.served.model.class_names or folder in names:
            return []
        name = sorted(names)[0]
        sent = printable(path)
        return [LearnedElsewhere(image=file, file=sent, name=name, folder=folder)]

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
        version = self.answering.served.version
        waiting = self.workspace.waiting()
        predicted = self.gallery.predictions([image.file for image in waiting])
        seen = [image for image in waiting if image.file in predicted]
        rest = [image for image in waiting if image.file not in predicted]
        if rest:
            self.gallery.request_update()
        seen.sort(key=lambda image: _sureness(predicted[image.file]), reverse=surest)
        images = seen + rest
        if after is not None:
            images.sort(key=lambda image: image.number <= after)
        shown = images[first : first + count]
        in_folders = 0
        names = {}
        for image in waiting:
            if image.name is not None:
                names[image.file] = image.name
            elif len(image.folders) == 1:
                in_folders += 1
        return InboxView(
            version=version,
            waiting=len(waiting),
            seen=len(seen),
            in_folders=in_folders,
            newest=max((image.number for image in waiting), default=0),
            names=names,
            images=[self._shown(image, predicted.get(image.file)) for image in shown],
        )

    def _shown(self, image: WaitingImage, scored: ScoredImage | None) -> InboxImage:
        """Return an image that waits, with its prediction if there is one."""
        folders = image.folders
        answer = ImageAnswer(file=printable(image.path))
        if scored is not None:
            answer = self.gallery.answer(scored, image.path, SHOWN_NAMES)
        return InboxImage(
            **dict(answer),
            image=image.file,
            folder=folders[0] if len(folders) == 1 else None,
            folders=folders,
            name=image.name,
            seen=scored is not None,
        )

    def group(self, images: Sequence[str]) -> list[UploadGroup]:
        """Group images by similarity; suggest the class that is predicted for most of a group."""
        files, z = self.gallery.embeddings(list(dict.fromkeys(images)))
        if not files:
            return []
        scored = self.answering.served.scored(z)
        groups = []
        for rows in groups_of(z):
            votes = Counter[str]()
            for row in rows:
                answer = scored[row].answer("", 1)
                if answer.known is not False:
                    votes.update(one.name for one in answer.classes)
            suggestion = None
            for name, count in votes.most_common(1):
                if 2 * count > len(rows):
                    suggestion = name
            members = [files[row] for row in rows]
            groups.append(UploadGroup(images=members, suggestion=suggestion))
        return groups

    def labelled(
        self, names: Mapping[str, str]
    ) -> tuple[list[LabelledUpload], list[LeftOut]]:
        """Return images that wait with the classes that they are to be, and those left out.

        Args:
            names: name of an image's file → its class. Images that do not wait any more are left
                out.

        Raises:
            RequestError: none of them waits, or a class name that cannot be stored.
        """
        sent = {image.file: image.path for image in self.workspace.waiting()}
        images = []
        left_out = []
        for file, name in names.items():
            if file not in sent:
                continue
            path = self.workspace.images_folder / file
            if is_undamaged(path):
                value = content_hash(path.read_bytes())
                images.append(LabelledUpload(sent[file], file, tidy(name), value))
            else:
                shown = printable(sent[file])
                left_out.append(LeftOut(file=shown, reason=messages.DAMAGED))
        if left_out and not images:
            raise RequestError(409, messages.DAMAGED_IMAGE, file=left_out[0].file)
        if not images:
            raise RequestError(409, messages.NOTHING_WAITS)
        return images, left_out


def _sureness(scored: ScoredImage) -> tuple[bool, float]:
    """Return by what images are sorted: whether they are known, and the probability."""
    probability = 0.0
    if scored.probabilities.numel():
        probability = float(scored.probabilities.max())
    return scored.decision.known is not False, probability
