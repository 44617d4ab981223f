"""Photos that wait to be decided: kept on the disk, answered anew by each version, the most
doubtful first.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import IO, NamedTuple

import torch
from pydantic import Field

from cifnet_pl.data.sets import FileSet
from cifnet_pl.images.image import UnreadableImage, content_hash
from cifnet_pl.model.bundle import class_names
from cifnet_pl.serving.answering import ImageAnswer, Message, Served
from cifnet_pl.serving.inspection import Gallery, groups_of
from cifnet_pl.serving.refusals import Question, RequestError
from cifnet_pl.serving.uploads import Limits, file_name, uploads
from cifnet_pl.serving.workspace import Waiting, Workspace
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.text import number_of, printable

MOST = 20_000
"""Photos that wait; more are refused."""

TOGETHER = 32
"""Photos that are stored in one transaction."""

AT_ONCE = 256
"""Embeddings that are answered at once."""

CERTAIN = 0.95
"""Probability from which an answer is certain, if it is the only one that the photo may be, and the
photo is known.
"""

TOP = 3
"""Classes of an answer."""


class InboxImage(ImageAnswer):
    """A photo that waits, with the answer of the served version."""

    image: str
    """Name of its file at /photos, by which it is decided."""
    folder: str | None = None
    """Name of the folder that it was sent in."""
    certain: bool = False
    """Whether it may be taken for its first class without a look."""
    seen: bool = True
    """False: it is not answered yet."""


class InboxView(Message):
    """Photos that wait: the most doubtful first, certain ones after the others, those not answered
    yet last.
    """

    version: int
    waiting: int
    seen: int
    """How many of them are answered."""
    certain: int
    in_folders: int
    """Photos that were sent in a folder, whose name may be their class."""
    images: list[InboxImage]


class LeftOut(Message):
    """A photo that was left out."""

    file: str
    reason: str


class Received(Message):
    """The photos of a request that wait now; they are on the disk."""

    images: list[str]
    """Names of their files, by which they are decided."""
    known: int
    """Photos that are learned or wait already, and are left out."""
    unreadable: list[LeftOut] = Field(default=[])


class Group(Message):
    """Photos that look alike."""

    images: list[str]
    suggestion: str | None = None
    """Class that most of them are given; null: none."""


class DecidedImage(NamedTuple):
    """A photo that is to be learned.

    Attributes:
        sent: path that it was sent with.
        file: name of its file in the workspace.
        name: of its class.
        hash: of its content, as models keep it.
    """

    sent: str
    file: str
    name: str
    hash: int


@dataclass
class Decided:
    """Photos that wait, and the classes that they were decided to be.

    Attributes:
        folder: holds their files.
        photos: each once.

    Raises:
        RequestError: the name of a class cannot be stored.
    """

    folder: Path
    images: list[DecidedImage]

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
        return FileSet(
            self.folder,
            [one.file for one in self.images],
            [position[one.name] for one in self.images],
        )

    @property
    def chosen(self) -> list[int]:
        """Hashes of the photos that someone named, and not the folder that they were sent in."""
        return [
            one.hash for one in self.images if _bare(folder_of(one.sent) or "") != _bare(one.name)
        ]

    def of_class(self, name: str) -> list[str]:
        """Return the file names of the photos of one class."""
        return [image.file for image in self.images if image.name == name]

    def ask(self, learned: Mapping[int, Collection[str]], known: Sequence[str]) -> None:
        """Raise Question for what may be a mistake.

        That is a class whose name is nearly that of a known one, or of another one in the request;
        and a photo that is of another class, too.

        Args:
            learned: hash of a photo → classes in which it was learned.
            known: names of the known classes.
        """
        for position, name in enumerate(self.names):
            check_alike(name, [*known, *self.names[:position]])
        for image in self.images:
            if others := sorted(set(learned.get(image.hash, ())) - {image.name}):
                before = (
                    f"{printable(image.sent[:200])} was learned as '{printable(others[0])}' before"
                )
                raise Question(f"{before}. A photo in two classes makes both of them worse")

    def leave_out(self, learned: Mapping[int, Collection[str]]) -> None:
        """Leave out photos ``learned`` before as the same class (see :meth:`ask`); RequestError if
        none is left.
        """
        new = [image for image in self.images if image.name not in learned.get(image.hash, ())]
        if not new:
            if len(self.images) == 1:
                all_of_them = "it was"
            else:
                all_of_them = "all were"
            raise RequestError(
                422,
                f"{number_of(len(self.images), 'photo')} sent, but {all_of_them} learned before",
            )
        self.images = new


class Inbox:
    """The photos of a workspace that wait to be decided.

    Args:
        workspace: keeps them.
        gallery: embeds them in the background.
        served: returns the model that answers now.
        limits: of one request.
    """

    def __init__(
        self, workspace: Workspace, gallery: Gallery, served: Callable[[], Served], limits: Limits
    ):
        self.workspace = workspace
        self.gallery = gallery
        self.served = served
        self.limits = limits
        self._lock = Lock()
        self._version = 0
        self._answers: dict[str, InboxImage] = {}  # of that version, by the name of the photo

    def receive(
        self,
        files: Iterable[tuple[str, IO[bytes]]],
        extension: Callable[[bytes], str],
        learned: Iterable[int],
        again: bool,
    ) -> Received:
        """Keep photos until they are decided; return when the disk has them.

        Args:
            files: names that they were sent with, and open photos and zip files of photos.
            extension: decodes a photo and returns the extension of its format, or raises
                UnreadableImage.
            learned: content hashes of photos that need not wait.
            again: whether photos that were taken away or forgotten wait again.

        Raises:
            RequestError: more than the limits allow; photos before that one wait.
        """
        result = Received(images=[], known=0)
        before = set(learned)
        images = uploads(files, self.limits)
        waiting = {one.file for one in self.workspace.waiting()}
        while part := list(islice(images, TOGETHER)):
            rows: dict[str, tuple[str, bytes]] = {}
            for sent, content in part:
                try:
                    if content_hash(content) not in before:
                        file = file_name(content, extension(content))
                        rows |= {} if file in waiting else {file: (sent, content)}
                except UnreadableImage as error:
                    result.unreadable.append(LeftOut(file=printable(sent), reason=str(error)))
                    result.known -= 1
            if len(waiting) + len(rows) > MOST:
                raise RequestError(503, f"{MOST} photos wait already: decide some of them first")
            new = self.workspace.receive(rows, again)
            waiting.update(new)
            result.images += new
            result.known += len(part) - len(new)
        self.gallery.update()
        return result

    def view(self, first: int, count: int) -> InboxView:
        """Return some of the photos that wait, in the order of doubt."""
        version, waiting, answers = self._answered()
        rest = [
            InboxImage(
                image=one.file, file=printable(one.sent), folder=folder_of(one.sent), seen=False
            )
            for one in waiting
            if one.file not in answers
        ]
        if rest:
            self.gallery.update()
        seen = sorted(answers.values(), key=_doubt)
        return InboxView(
            version=version,
            waiting=len(waiting),
            seen=len(seen),
            certain=sum(one.certain for one in seen),
            in_folders=sum(folder_of(one.sent) is not None for one in waiting),
            images=[self._with_nearest(one) for one in (seen + rest)[first : first + count]],
        )

    def _with_nearest(self, image: InboxImage) -> InboxImage:
        z = self.gallery.known.get(image.image)
        near = (
            self.gallery.nearest(image.classes[0].name, z)
            if z is not None and image.classes
            else None
        )
        return image.model_copy(update={"nearest": near})

    def _answered(self) -> tuple[int, list[Waiting], dict[str, InboxImage]]:
        """Answer what was embedded and not yet answered by the served version; return the version
        and all answers.
        """
        with self._lock:
            served = self.served()
            waiting = self.workspace.waiting()
            known = dict(self.gallery.known)
            here = {one.file for one in waiting}
            if self._version == served.version:
                old = self._answers
            else:
                old = {}
            self._version = served.version
            self._answers = {name: old[name] for name in old if name in here}
            new = [one for one in waiting if one.file not in self._answers and one.file in known]
            for start in range(0, len(new), AT_ONCE):
                part = new[start : start + AT_ONCE]
                z = torch.stack([known[one.file] for one in part]).to(served.model.device)
                for one, probabilities, verdict in zip(part, *served.judged(z), strict=True):
                    answer = ImageAnswer.of(
                        one.sent, served.model.class_names, probabilities, verdict, TOP
                    )
                    sure = verdict.known is True and len(verdict.prediction_set or ()) == 1
                    sure = sure and answer.classes[0].probability >= CERTAIN
                    about = {"image": one.file, "folder": folder_of(one.sent), "certain": sure}
                    self._answers[one.file] = InboxImage.model_validate({**dict(answer), **about})
            return served.version, waiting, dict(self._answers)

    def group(self, images: Sequence[str]) -> list[Group]:
        """Group photos by likeness; suggest the class that most of the photos of a group are
        given.
        """
        files, z = self.gallery.embeddings(list(dict.fromkeys(images)))
        served = self.served()
        groups = []
        probabilities, verdicts = served.judged(z.to(served.model.device)) if files else (z, [])
        for rows in groups_of(z):
            known = [row for row in rows if verdicts[row].known is not False]
            answers = Counter(
                probabilities[known].argmax(dim=1).tolist() if probabilities.numel() else []
            )
            best, count = answers.most_common(1)[0] if answers else (0, 0)
            name = served.model.class_names[best] if 2 * count > len(rows) else None
            groups.append(Group(images=[files[row] for row in rows], suggestion=name))
        return groups

    def decided(self, names: Mapping[str, str]) -> Decided:
        """Return photos that wait with the classes that they are to be.

        Args:
            names: name of a photo's file → its class. Photos that were decided meanwhile are left
                out.

        Raises:
            RequestError: none of them waits, or a class name that cannot be stored.
        """
        here = {one.file: one.sent for one in self.workspace.waiting()}
        files = [file for file in names if file in here]
        if not files:
            raise RequestError(
                409,
                "none of these photos waits any more: someone else decided them, or took them away",
            )
        folder = self.workspace.folder / "images"
        return Decided(
            folder,
            [
                DecidedImage(here[f], f, tidy(names[f]), content_hash((folder / f).read_bytes()))
                for f in files
            ],
        )


def _doubt(image: InboxImage) -> tuple[bool, bool, float]:
    return (
        image.certain,
        image.known is not False,
        image.classes[0].probability if image.classes else 0.0,
    )


def tidy(name: str) -> str:
    """Return a class name in one Unicode form (NFC), without spaces around it and without two in a
    row.

    Raises:
        RequestError: it holds half a character (a lone surrogate), which no file can store.
    """
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise RequestError(422, "a class name holds half a character: type it again")
    return re.sub(r"[^\S\t-\r]+", " ", unicodedata.normalize("NFC", name)).strip(" ")


def check_alike(name: str, others: Iterable[str]) -> None:
    """Raise Question where a name differs from another one by capitals, spaces or Unicode form
    only.
    """
    for other in others:
        if name != other and _bare(name) == _bare(other):
            apart = f"'{printable(name)}' differs from the class '{printable(other)}'"
            raise Question(f"{apart} by capitals, spaces or Unicode form only", instead=other)


def _bare(name: str) -> str:
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def folder_of(sent: str) -> str | None:
    """Return the name of the folder that a photo was sent in, if it was."""
    parts = [part for part in sent.replace("\\", "/").split("/") if part not in ("", ".")]
    if len(parts) > 1:
        return parts[-2]
    return None
