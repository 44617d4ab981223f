"""Photos that wait to be decided: kept on the disk, answered anew by each version, the most doubtful first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from threading import Lock
from typing import IO

import torch
from pydantic import BaseModel, Field

from cifnet_pl.photos.photo import UnreadableImage, content_hash
from cifnet_pl.serving.answering import PhotoAnswer, Served
from cifnet_pl.serving.inspection import Gallery, groups_of
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.serving.uploads import Limits, Staged, StagedPhoto, check_staged, file_name, folder_of, tidy, uploads
from cifnet_pl.serving.workspace import Waiting, Workspace
from cifnet_pl.utilities.text import printable

MOST = 20_000
"""Photos that wait; more are refused."""

TOGETHER = 32
"""Photos that are stored in one transaction."""

AT_ONCE = 256
"""Embeddings that are answered at once."""

CERTAIN = 0.95
"""Probability from which an answer is certain, if it is the only one that the photo may be, and the photo is known."""

TOP = 3
"""Classes of an answer."""


class InboxPhoto(PhotoAnswer):
    """A photo that waits, with the answer of the served version."""

    photo: str = Field(description="name of its file at /photos, by which it is decided")
    folder: str | None = Field(default=None, description="name of the folder that it was sent in")
    certain: bool = Field(default=False, description="whether it may be taken for its first class without a look")
    seen: bool = Field(default=True, description="false: it is not answered yet")


class InboxView(BaseModel):
    """Photos that wait: the most doubtful first, certain ones after the others, those not answered yet last."""

    version: int
    waiting: int
    seen: int = Field(description="how many of them are answered")
    certain: int
    in_folders: int = Field(description="photos that were sent in a folder, whose name may be their class")
    photos: list[InboxPhoto]


class LeftOut(BaseModel):
    """A photo that was left out."""

    file: str
    reason: str


class Received(BaseModel):
    """The photos of a request that wait now; they are on the disk."""

    photos: list[str] = Field(description="names of their files, by which they are decided")
    known: int = Field(description="photos that were learned before, wait already or were removed, and are left out")
    unreadable: list[LeftOut] = []


class Group(BaseModel):
    """Photos that look alike."""

    photos: list[str]
    suggestion: str | None = Field(default=None, description="class that most of them are given; null: none")


class Inbox:
    """The photos of a workspace that wait to be decided.

    Args:
        workspace: keeps them.
        gallery: embeds them in the background.
        served: returns the model that answers now.
        limits: of one request.
    """

    def __init__(self, workspace: Workspace, gallery: Gallery, served: Callable[[], Served], limits: Limits):
        self.workspace, self.gallery, self.served, self.limits = workspace, gallery, served, limits
        self._lock, self._version = Lock(), 0
        self._answers: dict[str, InboxPhoto] = {}  # of that version, by the name of the photo

    def receive(
        self, files: Iterable[tuple[str, IO[bytes]]], extension: Callable[[bytes], str], learned: Iterable[int]
    ) -> Received:
        """Keep photos until they are decided; return when the disk has them.

        Args:
            files: names that they were sent with, and open photos and zip files of photos.
            extension: decodes a photo and returns the extension of its format, or raises UnreadableImage.
            learned: content hashes of photos that need not wait.

        Raises:
            RequestError: more than the limits allow; photos before that one wait.
        """
        result, before, photos = Received(photos=[], known=0), set(learned), uploads(files, self.limits)
        waiting = len(self.workspace.waiting())
        while part := list(islice(photos, TOGETHER)):
            rows: dict[str, tuple[str, bytes]] = {}
            for sent, content in part:
                try:
                    if content_hash(content) not in before:
                        rows[file_name(content, extension(content))] = sent, content
                except UnreadableImage as error:
                    result.unreadable.append(LeftOut(file=printable(sent), reason=str(error)))
                    result.known -= 1
            if waiting + len(result.photos) + len(rows) > MOST:
                raise RequestError(503, f"{MOST} photos wait already: decide some of them first")
            new = self.workspace.receive(rows)
            result.photos += new
            result.known += len(part) - len(new)
        self.gallery.update()
        return result

    def view(self, first: int, count: int) -> InboxView:
        """Return some of the photos that wait, in the order of doubt."""
        version, waiting, answers = self._answered()
        rest = [
            InboxPhoto(photo=one.file, file=printable(one.sent), folder=folder_of(one.sent), seen=False)
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
            photos=[self._with_nearest(one) for one in (seen + rest)[first : first + count]],
        )

    def _with_nearest(self, photo: InboxPhoto) -> InboxPhoto:
        z = self.gallery.known.get(photo.photo)
        near = self.gallery.nearest(photo.classes[0].name, z) if z is not None and photo.classes else None
        return photo.model_copy(update={"nearest": near})

    def _answered(self) -> tuple[int, list[Waiting], dict[str, InboxPhoto]]:
        """Answer what was embedded and not yet answered by the served version; return the version and all answers."""
        with self._lock:
            served, waiting, known = self.served(), self.workspace.waiting(), dict(self.gallery.known)
            here = {one.file for one in waiting}
            old = self._answers if self._version == served.version else {}
            self._version, self._answers = served.version, {name: old[name] for name in old if name in here}
            new = [one for one in waiting if one.file not in self._answers and one.file in known]
            for start in range(0, len(new), AT_ONCE):
                part = new[start : start + AT_ONCE]
                z = torch.stack([known[one.file] for one in part]).to(served.model.device)
                for one, probabilities, verdict in zip(part, *served.judged(z), strict=True):
                    answer = PhotoAnswer.of(one.sent, served.model.class_names, probabilities, verdict, TOP)
                    sure = verdict.known is True and len(verdict.answers or ()) == 1
                    sure = sure and answer.classes[0].probability >= CERTAIN
                    about = {"photo": one.file, "folder": folder_of(one.sent), "certain": sure}
                    self._answers[one.file] = InboxPhoto.model_validate({**dict(answer), **about})
            return served.version, waiting, dict(self._answers)

    def group(self, photos: Sequence[str]) -> list[Group]:
        """Group photos by likeness; suggest the class that most of the photos of a group are given."""
        files, z = self.gallery.embeddings(list(dict.fromkeys(photos)))
        served, groups = self.served(), []
        probabilities, verdicts = served.judged(z.to(served.model.device)) if files else (z, [])
        for rows in groups_of(z):
            known = [row for row in rows if verdicts[row].known is not False]
            answers = Counter(probabilities[known].argmax(dim=1).tolist() if probabilities.numel() else [])
            best, count = answers.most_common(1)[0] if answers else (0, 0)
            name = served.model.class_names[best] if 2 * count > len(rows) else None
            groups.append(Group(photos=[files[row] for row in rows], suggestion=name))
        return groups

    def staged(self, names: Mapping[str, str]) -> Staged:
        """Return photos that wait for the learner.

        Args:
            names: name of a photo's file → its class. Photos that were decided meanwhile are left out.

        Raises:
            RequestError: none of them waits, or a class name that cannot be stored.
        """
        sent = {one.file: one.sent for one in self.workspace.waiting()}
        files = self._still(names)
        staged = Staged(self.workspace.linked(files), together=False)
        try:
            for file in files:
                key = content_hash((staged.folder / file).read_bytes())
                staged.photos.append(StagedPhoto(sent.get(file, file), file, tidy(names[file]), key))
            check_staged(staged)
        except BaseException:
            staged.remove()
            raise
        return staged

    def _still(self, photos: Iterable[str]) -> list[str]:
        """Return those of some photos that still wait; RequestError if none does."""
        here = {one.file for one in self.workspace.waiting()}
        still = [photo for photo in dict.fromkeys(photos) if photo in here]
        if not still:
            raise RequestError(409, "none of these photos waits any more: someone else decided them, or took them away")
        return still


def _doubt(photo: InboxPhoto) -> tuple[bool, bool, float]:
    return photo.certain, photo.known is not False, photo.classes[0].probability if photo.classes else 0.0
