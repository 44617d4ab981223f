"""Everything that the service can do, without HTTP: classify, teach, inspect and change one
workspace.
"""

from __future__ import annotations

import io
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import IO, Any, Literal

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from cifnet_pl.data.sets import FileSet
from cifnet_pl.images.reader import look_at_images
from cifnet_pl.model.bundle import Event, class_names
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.forget import forget
from cifnet_pl.model.labelled_images import LabelledImages, classes_of_hashes
from cifnet_pl.model.learn import learn
from cifnet_pl.serving.answering import Answering, ImageAnswer, Message, Scored, Served
from cifnet_pl.serving.inbox import Decided, Inbox, LeftOut, Received, check_alike, tidy
from cifnet_pl.serving.inspection import (
    Answers,
    Audit,
    Gallery,
    Promise,
    audited,
    class_answers,
    stored_accuracy,
)
from cifnet_pl.serving.learner import Job, Learner, Result, Work
from cifnet_pl.serving.refusals import Question, RequestError
from cifnet_pl.serving.uploads import Limits, decoded
from cifnet_pl.serving.workspace import Change, Version, Workspace
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.text import number_of, printable

IMAGES_WAITING = 2048
"""Photos that are being answered or wait; more are refused."""

PREVIEW_SIDE = 320
"""Pixels of a side of what is shown where a browser cannot show a photo's format."""


class Lesson(Message):
    """The result of a lesson, or with ``dry_run`` what it would be."""

    version: int | None
    """The new version; null for a dry run."""
    learned: dict[str, int]
    """Photos learned of each class."""
    unreadable: list[LeftOut] = Field(default=[])
    held_out_accuracy: float | None = None
    """Percent of a held-back fifth, scored before learned."""
    held_out_images: int = 0
    old_accuracy_before: float | None = None
    """Percent of stored samples of the earlier classes."""
    old_accuracy_after: float | None = None
    right: Promise
    seconds: float
    note: str | None = None


class Changed(Message):
    """The version that is served after a change."""

    version: int
    says: str
    exact: bool | None = None
    """Of forget: whether the photos were taken out of the statistics."""


@dataclass(frozen=True)
class Options:
    """The options by which a workspace is served.

    Attributes:
        name: of the model, for the page and for downloads.
        read_only: whether changes are refused.
        keep_photos: whether photos that are taught stay in the workspace: for exact forgetting, and
            to be shown.
        unknown: share of photos of known classes that may be called "none of these"; None never to
            say so.
        coverage: chance that the right class is in the set of answers; None to give no set.
        limits: of one request.
    """

    name: str = "model"
    read_only: bool = False
    keep_images: bool = True
    unknown: float | None = 0.05
    coverage: float | None = 0.95
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class EmbeddedImages(LabelledImages):
    """Class photos of which the embeddings are known.

    Attributes:
        known: embeddings (d,) by the names of files.
    """

    known: Mapping[str, Tensor] = field(default_factory=dict)

    def embedded(self, *args: Any, **options: Any) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield rows and embeddings, as :meth:`ClassPhotos.embedded` does; all are made anew where
        one is not known.
        """
        if not all(name in self.known for name in self.files.names):
            yield from super().embedded(*args, **options)
            return
        self.looks[:] = look_at_images([self.files.root / name for name in self.files.names])
        rows = np.arange(len(self.files))
        self.files.note_hashes(
            rows, np.array([look.hash for look in self.looks if look], dtype=np.int64)
        )
        yield rows, torch.stack([self.known[name] for name in self.files.names])


class Service:
    """A workspace that is served: answers from the current version, changes one after another.

    Args:
        workspace: open; only this object may change it.
        model: of the workspace's current version.
        options: see :class:`Options`.

    Attributes:
        costly: held while something is made that takes seconds and all cores.
    """

    def __init__(self, workspace: Workspace, model: Classifier, options: Options | None = None):
        self.workspace = workspace
        self.options = options or Options()
        self.costly = Lock()
        self._counting = Lock()
        self._answers = (0, Answers(classes=[]))
        with (
            torch.inference_mode()
        ):  # what makes the network ready is done once, before threads embed
            model.embed(torch.zeros(1, 3, model.image_size, model.image_size, dtype=torch.uint8))
        self.learner = Learner(self._served(model, workspace.current))
        self.answering = Answering(lambda: self.learner.served, IMAGES_WAITING)
        self.gallery = Gallery(
            lambda: self.workspace.kept(self.learner.served.version),
            lambda: [one.file for one in self.workspace.waiting()],
            self._score_kept,
        )
        self.gallery.update()
        self.inbox = Inbox(
            workspace, self.gallery, lambda: self.learner.served, self.options.limits
        )

    @property
    def model(self) -> Classifier:
        """The model that answers now."""
        return self.learner.served.model

    def close(self) -> None:
        """Finish what was asked for, and close the workspace."""
        self.learner.close()
        self.gallery.close()
        self.answering.close()
        self.workspace.close()

    # ------------------------------------------------------------------ ask

    def score(self, content: bytes) -> Future[Scored]:
        """Answer one photo; RequestError if too many wait."""
        return self.answering.submit(lambda: self._decoded(content)[0])

    def _score_kept(self, name: str) -> Future[Scored]:
        return self.score(self.workspace.image(name).read_bytes())

    def _decoded(self, content: bytes) -> tuple[np.ndarray, str]:
        model = self.model
        return decoded(content, model.image_size, model.crop_ratio, self.options.limits)

    def preview(self, content: bytes) -> bytes:
        """Return the middle of a photo as a small JPEG; UnreadableImage if it cannot be decoded."""
        square, _ = decoded(content, PREVIEW_SIDE, 1.0, self.options.limits)
        out = io.BytesIO()
        Image.fromarray(square).save(out, "JPEG")
        return out.getvalue()

    def answer(self, file: str, scored: Scored, top: int) -> ImageAnswer:
        """Return the answer for one photo.

        Args:
            file: name that the photo was sent with.
            scored: the model's result.
            top: number of classes.
        """
        names = scored.served.model.class_names
        answer = ImageAnswer.of(file, names, scored.probabilities, scored.verdict, top)
        if answer.classes:
            answer.nearest = self.gallery.nearest(answer.classes[0].name, scored.z)
        return answer

    def audit(self) -> Audit:
        """Return the doubtful labels among the kept photos."""
        return audited(self.gallery, self.workspace.kept(self.learner.served.version))

    def class_answers(self) -> Answers:
        """Return what is answered for the stored photos, computed once for each version."""
        with self._counting:
            served = self.learner.served
            if self._answers[0] != served.version:
                self._answers = served.version, class_answers(served.model)
            return self._answers[1]

    # ------------------------------------------------------------------ teach

    def receive(self, files: Iterable[tuple[str, IO[bytes]]], again: bool = True) -> Received:
        """Keep photos until they are decided; those that are learned are left out, and those that
        may not come again.

        Args:
            files: names that they were sent with, and open photos and zip files of photos.
            again: whether photos that were taken away or forgotten wait again.
        """
        self.check_writable()
        return self.inbox.receive(
            files, lambda content: self._decoded(content)[1], self._classes_of_images(), again
        )

    def decide(self, names: Mapping[str, str], dry_run: bool, anyway: bool = False) -> Job:
        """Queue a lesson of photos that wait.

        Args:
            names: name of a photo's file → its class.
            dry_run: whether to learn on a copy that is thrown away.
            anyway: whether to learn what may be a mistake: see
                :class:`~cifnet_pl.serving.refusals.Question`.
        """
        self.check_writable()
        decided = self.inbox.decided(names)

        def work(job: Job) -> tuple[Served | None, Result]:
            learned = self._classes_of_images()
            if not anyway:
                decided.ask(learned, self.model.class_names)
            decided.leave_out(learned)
            return self._extend(decided, dry_run, job)

        return self._submit("extend", work)

    def remove(self, images: Sequence[str], back: bool) -> int:
        """Take photos that wait away, or ``back`` among those that wait; return how many wait
        now.
        """
        self.check_writable()
        self.workspace.remove(images, back)
        self.gallery.update()
        return len(self.workspace.waiting())

    def _classes_of_images(self) -> dict[int, set[str]]:
        """Return the classes in which each photo was learned, by the hash of its content."""
        names = self.model.class_names
        known = classes_of_hashes(self.model, names)
        return {
            image: {names[position] for position in positions} for image, positions in known.items()
        }

    def _with_embeddings(self, names: list[str], files: FileSet, job: Job) -> EmbeddedImages:
        """Return photos that are kept or wait, by their classes, with embeddings; the job says how
        many there are.
        """
        present, z = self.gallery.embeddings(files.names, job.progress)
        return EmbeddedImages(names, files, known=dict(zip(present, z, strict=True)))

    def _extend(self, decided: Decided, dry_run: bool, job: Job) -> tuple[Served | None, Result]:
        start = time.perf_counter()
        old = self.model.clone()
        others = {one.file for one in self.workspace.waiting()} - {
            one.file for one in decided.images
        }
        if decided.chosen or not others:
            old.calibration.exclude_selected(
                torch.tensor(decided.chosen if others else [], dtype=torch.int64)
            )
        lesson = learn(old, self._with_embeddings(decided.names, decided.files, job))
        model = lesson.model
        score = lesson.score
        learned = lesson.learned
        before = stored_accuracy(old, old.class_names)
        after = stored_accuracy(model, old.class_names)
        model.history.append(
            Event("extend", len(model.counts), sum(learned.values()), score.percent, before, after)
        )
        result = Lesson(
            version=None,
            learned=learned,
            unreadable=[
                LeftOut(file=printable(file.name), reason=reason)
                for file, reason in lesson.unreadable
            ],
            held_out_accuracy=score.percent,
            held_out_images=score.total,
            old_accuracy_before=before,
            old_accuracy_after=after,
            right=Promise.of(model),
            seconds=time.perf_counter() - start,
            note="; ".join(old.class_name_warnings(decided.names)) or None,
        )
        if dry_run:
            return None, {"lesson": result}
        version = self._store(model, decided, result)
        result = result.model_copy(
            update={"version": version.number, "seconds": time.perf_counter() - start}
        )
        return self._served(model, version.number), {"lesson": result}

    def _store(self, model: Classifier, decided: Decided, lesson: Lesson) -> Version:
        """Store a model that learned; the photos that it learned go unless they are kept."""
        names = ", ".join(f"'{printable(name)}'" for name in list(lesson.learned)[:3])
        names += ", …" if len(lesson.learned) > 3 else ""
        scores = {
            "held_out_accuracy": lesson.held_out_accuracy,
            "held_out_images": lesson.held_out_images,
            "old_before": lesson.old_accuracy_before,
            "old_after": lesson.old_accuracy_after,
        }
        change = Change(
            "extend",
            f"learned {number_of(sum(lesson.learned.values()), 'photo')} of {names}",
            learned=(
                {name: decided.of_class(name) for name in decided.names}
                if self.options.keep_images
                else {}
            ),
            scores={name: value for name, value in scores.items() if value is not None},
        )
        version = self.workspace.commit(model, change)
        if not self.options.keep_images:
            self.workspace.remove([image.file for image in decided.images], back=False)
            self.workspace.remove_unused_images()
        return version

    # ------------------------------------------------------------------ change

    def forget(self, name: str) -> Job:
        """Queue forgetting a class: exactly where all of its photos are kept, else from what can be
        predicted.
        """

        def work(job: Job) -> tuple[Served, Result]:
            old = self.model
            require(old, name)
            require_another(old, name)
            kept = len(self.workspace.kept(self.workspace.current).get(name, []))
            images = self.workspace.images_of(name, old.counts[name])
            done = forget(old, name, images if old.head.subtracts else None)
            how = "exactly: the model keeps nothing of its photos"
            if not done.exact:
                how = "from the answers; its photos still count against other classes"
            change = Change("forget", f"forgot '{printable(name)}' {how}", forgotten=name)
            version = self.workspace.commit(done.model, change)
            stays = (
                f". {number_of(kept, 'photo')} of it and the versions before stay here until you"
                " delete them for good"
            )
            return self._changed(
                done.model, version, change.says + (stays if kept else ""), done.exact
            )

        return self._submit("forget", work)

    def rename(self, old: str, new: str, anyway: bool = False) -> Job:
        """Queue giving a class another name; ``anyway`` even if that is nearly the name of another
        class.
        """

        def work(job: Job) -> tuple[Served, Result]:
            model = self.model.clone()
            name = tidy(new)
            require(model, old)
            others = [other for other in model.class_names if other != old]
            if name in others:
                both = f"'{printable(name)}' and '{printable(old)}' would become one"
                raise Question(
                    f"there is a class '{printable(name)}' already: {both}", instead=name
                )
            if not anyway:
                check_alike(name, others)
            model.rename(old, name)
            change = Change(
                "rename", f"renamed '{printable(old)}' to '{printable(name)}'", renamed=(old, name)
            )
            return self._changed(model, self.workspace.commit(model, change), change.says)

        return self._submit("rename", work)

    def move(
        self, name: str, into: str, images: Collection[str] | None = None, anyway: bool = False
    ) -> Job:
        """Queue making photos of a class photos of another, which may be new: all are taken out,
        and learned anew.

        Args:
            name: of the class, all of whose photos must be kept here; it goes where none of them
                stays.
            into: name of the other class.
            photos: names of the photos' files; None for all of them, which joins both classes.
            anyway: whether ``into`` may be nearly the name of another class.
        """

        def work(job: Job) -> tuple[Served, Result]:
            model = self.model
            other = tidy(into)
            known = self.workspace.kept(self.workspace.current)
            require(model, name)
            class_names([other], "the request", UsageError)
            moved = [file for file in known.get(name, []) if images is None or file in images]
            rest = [file for file in known.get(name, []) if file not in moved]
            if other == name or (images is not None and not moved):
                raise RequestError(
                    422,
                    f"none of these is a photo of '{printable(name)}' that is to be another class",
                )
            if not anyway and other not in model.class_names:
                check_alike(other, model.class_names)
            new = [file for file in moved if file not in known.get(other, [])]
            learned = {one: files for one, files in ((name, rest), (other, new)) if files}
            taken = self.workspace.images_of(name, model.counts[name])
            if taken is None or not model.head.subtracts:
                cannot = (
                    f"'{printable(name)}' cannot be taken out exactly, as not all of its photos are"
                    " kept here"
                )
                raise RequestError(
                    409, f"{cannot}: forget it, and teach its photos as '{printable(other)}'"
                )
            require_another(model, name)
            model = forget(model, name, taken).model
            if learned:
                labels = [label for label, files in enumerate(learned.values()) for _ in files]
                names = [file for files in learned.values() for file in files]
                files = FileSet(self.workspace.folder / "images", names, labels)
                model = learn(model, self._with_embeddings(list(learned), files, job)).model
            model.history.append(Event("move" if rest else "join", len(model.counts), len(new)))
            if rest:
                says = f"moved {number_of(len(moved), 'photo')} of"
            else:
                says = "joined"
            says += f" '{printable(name)}' to '{printable(other)}'"
            change = Change("move" if rest else "join", says, learned=learned, forgotten=name)
            return self._changed(model, self.workspace.commit(model, change), says)

        return self._submit("move", work)

    def undo(self) -> Job:
        """Queue going back by one change."""

        def work(job: Job) -> tuple[Served, Result]:
            undone = self.workspace.version(self.workspace.current)
            version, model = self.workspace.undo()
            made = undone.parent == version.number
            return self._changed(
                model, version, f"undid: {undone.change.says}" if made else "went back"
            )

        return self._submit("undo", work)

    def redo(self) -> Job:
        """Queue doing again what was undone last."""

        def work(job: Job) -> tuple[Served, Result]:
            before = self.workspace.current
            version, model = self.workspace.redo()
            made = version.parent == before
            return self._changed(
                model, version, f"did again: {version.change.says}" if made else "went there again"
            )

        return self._submit("redo", work)

    def go_to(self, number: int) -> Job:
        """Queue serving another version."""

        def work(job: Job) -> tuple[Served, Result]:
            version, model = self.workspace.go_to(number)
            return self._changed(model, version, f"went to version {number}")

        return self._submit("go to", work)

    def purge(self, images: Literal["forgotten", "all"]) -> Job:
        """Queue deleting kept photos, and all versions but the served one, for good."""

        def work(job: Job) -> tuple[None, Result]:
            count = self.workspace.purge(every=images == "all")
            says = f"deleted {number_of(count, 'photo')} and all other versions for good"
            return None, {"changed": Changed(version=self.workspace.current, says=says)}

        return self._submit("purge", work)

    def check_writable(self) -> None:
        """Raise RequestError if changes are refused."""
        if self.options.read_only:
            raise RequestError(403, "this service is read-only: it answers, but does not learn")

    def _submit(self, action: str, work: Work) -> Job:
        self.check_writable()
        job = self.learner.submit(action, work)
        job.result.add_done_callback(lambda _: self.gallery.update())
        return job

    def _changed(
        self, model: Classifier, version: Version, says: str, exact: bool | None = None
    ) -> tuple[Served, Result]:
        changed = Changed(version=version.number, says=says, exact=exact)
        return self._served(model, version.number), {"changed": changed}

    def _served(self, model: Classifier, number: int) -> Served:
        """Return a model to be served; what detects unknown photos is prepared now, so that no
        answer waits for it.
        """
        served = Served(model, number, self.options.unknown, self.options.coverage)
        served.judge()
        return served


def require(model: Classifier, name: str) -> None:
    """Raise RequestError unless the model knows class ``name``."""
    try:
        model.labels([name])
    except UsageError as error:
        raise RequestError(404, str(error)) from error


def require_another(model: Classifier, name: str) -> None:
    """Raise RequestError where the model knows no class but ``name``."""
    if len(model.class_names) == 1:
        raise RequestError(422, f"'{printable(name)}' is the only class: teach another one first")
