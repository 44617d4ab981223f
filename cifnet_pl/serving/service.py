"""Everything that the service can do, without HTTP: classify, learn, inspect and change.

A change is asked for by :meth:`Service.submit` with one of the methods that make changes. A thread
makes one after the other: the method stores a version in the workspace, serves it from then on, and
returns the answer.
"""

from __future__ import annotations

import io
import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import IO, Any

import numpy as np
import torch
from PIL import Image
from pydantic import Field
from torch import Tensor

from cifnet_pl.data.samples import SampleTable, table_of
from cifnet_pl.model.bundle import Event, class_names
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.forget import forget
from cifnet_pl.model.labelled_images import LabelledImages, classes_of_hashes
from cifnet_pl.model.learn import learn
from cifnet_pl.serving import messages
from cifnet_pl.serving.answering import Answering, ApiObject, ServedModel
from cifnet_pl.serving.gallery import Gallery
from cifnet_pl.serving.gate import Limits, check_similar, decoded, tidy
from cifnet_pl.serving.inbox import Inbox, LabelledUpload, LeftOut, Received
from cifnet_pl.serving.inspection import (
    AccuracyEstimate,
    ClassPredictions,
    accuracy_of_classes,
    class_predictions,
)
from cifnet_pl.serving.messages import (
    Question,
    RequestError,
    as_request_error,
    filled,
)
from cifnet_pl.serving.workspace import Change, Version, Workspace, is_undamaged
from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.text import printable

LOGGER = logging.getLogger("cifnet_pl.serving")

SCORES = {
    "held_out_accuracy",
    "held_out_images",
    "old_accuracy_before",
    "old_accuracy_after",
}
"""What a version keeps of its update."""

PREVIEW_SIDE = 320
"""Pixels of a side of what is shown where a browser cannot show an image's format."""

UNFINISHED_CHANGES = 32
"""Changes that are queued, the one at work included; more are refused."""

REMEMBERED_CHANGES = 200
"""Finished changes whose result can still be asked for."""


class UpdateResult(ApiObject):
    """The result of an update, or with ``dry_run`` what it would be."""

    version: int | None
    """The new version; null for a dry run."""
    learned: dict[str, int]
    """Images learned of each class."""
    unreadable: list[LeftOut] = Field(default=[])
    held_out_accuracy: float | None = None
    """Percent of a held-out fifth that is predicted right before it is learned, too."""
    held_out_images: int = 0
    old_accuracy_before: float | None = None
    """Leave-one-group-out accuracy of the earlier classes in percent, before the update."""
    old_accuracy_after: float | None = None
    old_accuracy_interval: tuple[float, float] | None = None
    """Percentages between which the latter lies with a probability of 95 %."""
    next_step: str = ""
    """Most useful next step, in one sentence."""
    accuracy: AccuracyEstimate
    seconds: float
    warnings: list[str] = Field(default=[])


class ChangeResult(ApiObject):
    """The version that is served after a change."""

    version: int
    message: str
    exact: bool | None = None
    """Of forget: whether the images were taken out of the statistics."""


Result = UpdateResult | ChangeResult


@dataclass
class ChangeJob:
    """A change that was asked for.

    Attributes:
        action: "learn", "forget", …
        key: by which a client asks for it.
        done: number of images learned so far.
        total: number of images to learn; None if there are none.
        result: the answer, or the RequestError that refuses it.
    """

    action: str
    key: str = field(default_factory=lambda: secrets.token_hex(16))
    done: int = 0
    total: int | None = None
    result: Future[Result] = field(default_factory=Future)


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


@dataclass(frozen=True)
class EmbeddedUploads(LabelledImages):
    """Labelled images whose embeddings are known.

    Attributes:
        known: embeddings (d,) by the names of files.
    """

    known: Mapping[str, Tensor] = field(default_factory=dict)

    def embedded(
        self, *args: Any, **options: Any
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Yield rows and embeddings, as :meth:`LabelledImages.embedded` does."""
        names = self.files.names
        rows = np.arange(len(names))
        self.looks[:] = self.files.look(rows)
        yield rows, torch.stack([self.known[name] for name in names])


class Service:
    """A workspace that is served: answers from the current version, changes one after another.

    Args:
        workspace: open; only this object may change it.
        model: of the workspace's current version.
        options: see :class:`ServiceOptions`.

    Attributes:
        costly: held while something is made that takes seconds and all cores.
        closed: whether it has ended.
    """

    def __init__(
        self,
        workspace: Workspace,
        model: Classifier,
        options: ServiceOptions | None = None,
    ):
        self.workspace = workspace
        self.options = options or ServiceOptions()
        self.costly = threading.Lock()
        self.closed = threading.Event()
        self._predictions: tuple[int, ClassPredictions] | None = None
        self._jobs: dict[str, ChangeJob] = {}
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "learn")
        blank = torch.zeros(1, 3, model.image_size, model.image_size, dtype=torch.uint8)
        # The first call builds or exports the backbone's engine, before several threads embed.
        with torch.inference_mode():
            model.embed(blank)
        served = self._served_model(model, workspace.current)
        self.answering = Answering(served, self.options.limits)
        self.gallery = Gallery(workspace, self.answering)
        self.gallery.request_update()
        self.inbox = Inbox(workspace, self.gallery)

    @property
    def served(self) -> ServedModel:
        """The model that answers now, and its version."""
        return self.answering.served

    @property
    def model(self) -> Classifier:
        """The model that answers now."""
        return self.answering.served.model

    def close(self) -> None:
        """Finish what was asked for, and close the workspace."""
        self.closed.set()
        self._thread.shutdown()
        self.gallery.close()
        self.answering.close()
        self.workspace.close()

    def check_writable(self) -> None:
        """Raise RequestError if changes are refused."""
        if self.options.read_only:
            raise RequestError(403, messages.READ_ONLY)

    # ------------------------------------------------------------------ classify and inspect

    def preview(self, content: bytes) -> bytes:
        """Return the middle of an image as a small JPEG; UnreadableImage if it is damaged."""
        square, _ = decoded(content, PREVIEW_SIDE, 1.0, self.options.limits)
        out = io.BytesIO()
        Image.fromarray(square).save(out, "JPEG")
        return out.getvalue()

    def class_predictions(self) -> ClassPredictions:
        """Return the leave-one-out predictions of each class, computed once for each version."""
        with self.costly:
            served = self.served
            if self._predictions is None or self._predictions[0] != served.version:
                self._predictions = (served.version, class_predictions(served.model))
            return self._predictions[1]

    # ------------------------------------------------------------------ images that wait

    def receive(
        self, files: Iterable[tuple[str, IO[bytes]]], again: bool = True
    ) -> Received:
        """Store images until they are labelled; those that are learned are left out.

        Args:
            files: names that they were sent with, and open images and zip files of images.
            again: whether images that were taken away or forgotten wait again.
        """
        self.check_writable()
        return self.inbox.receive(files, self._classes_of_images(), again)

    def remove(self, images: Sequence[str], back: bool) -> int:
        """Take images away that wait, or take them ``back``; return how many wait now."""
        self.check_writable()
        self.workspace.remove(images, None if back else time.time())
        self.gallery.request_update()
        return len(self.workspace.waiting())

    def _classes_of_images(self) -> dict[int, set[str]]:
        """Return the classes in which each image was learned, by the hash of its content."""
        names = self.model.class_names
        classes = {}
        for image, positions in classes_of_hashes(self.model, names).items():
            classes[image] = {names[position] for position in positions}
        return classes

    # ------------------------------------------------------------------ the queue of changes

    def submit(self, work: Callable[..., Result], *args: Any) -> ChangeJob:
        """Queue a change.

        Args:
            work: method that makes it.
            args: of the method.

        Raises:
            RequestError: changes are refused, or as many are unfinished as may be.
        """
        self.check_writable()
        with self._lock:
            finished = [key for key, job in self._jobs.items() if job.result.done()]
            count = len(self._jobs) - len(finished)
            if count >= UNFINISHED_CHANGES:
                raise RequestError(503, messages.CHANGES_WAITING, changes=count)
            for key in finished[:-REMEMBERED_CHANGES]:
                del self._jobs[key]
            job = ChangeJob(work.__name__)
            self._jobs[job.key] = job
            job.result = self._thread.submit(self._make, work, args)
        return job

    def job(self, key: str) -> ChangeJob:
        """Return the change with a key.

        Raises:
            RequestError: there is no such change, or it ended long ago.
        """
        if key not in self._jobs:
            raise RequestError(404, messages.NO_JOB)
        return self._jobs[key]

    def place(self, job: ChangeJob) -> int:
        """Return how many changes come before this one; 0 while it is at work and afterwards."""
        if job.result.running() or job.result.done():
            return 0
        jobs = list(self._jobs.values())
        return sum(not other.result.done() for other in jobs[: jobs.index(job)])

    def _make(self, work: Callable[..., Result], args: Sequence[Any]) -> Result:
        """Make a change, and free what it needed; RequestError if it is refused or failed."""
        try:
            return work(*args)
        except CifnetError as error:
            LOGGER.warning("%s refused: %s", work.__name__, error)
            refusal = as_request_error(error)
        except BaseException:
            # A fault of ours: the service goes on, and the log has the traceback.
            LOGGER.exception("%s failed", work.__name__)
            refusal = RequestError(500, messages.FAILED)
        finally:
            self.gallery.request_update()
        raise refusal  # outside, as a job must not keep the models of the error's frames

    def _report(self, done: int, total: int) -> None:
        """Record how many images the change at work has learned."""
        for job in list(self._jobs.values()):
            if job.result.running():
                job.done = done
                job.total = total

    # ------------------------------------------------------------------ changes: learn

    def learn(
        self, names: Mapping[str, str], dry_run: bool = False, anyway: bool = False
    ) -> UpdateResult:
        """Learn images that wait.

        Args:
            names: name of an image's file → its class.
            dry_run: whether to learn on a copy that is thrown away.
            anyway: whether to learn what may be a mistake: see
                :class:`~cifnet_pl.serving.messages.Question`.
        """
        start = time.perf_counter()
        uploads, unreadable = self.inbox.labelled(names)
        uploads = self._to_learn(uploads, anyway)
        classes: dict[str, list[str]] = {}
        for image in uploads:
            classes.setdefault(image.name, []).append(image.file)
        class_names(list(classes), "the request", UsageError)
        old = self.model.clone()
        self._choose_calibration_samples(old, uploads)
        update = learn(old, self._images(classes))
        model = update.model
        for file, reason in update.unreadable:
            unreadable.append(LeftOut(file=printable(file.name), reason=reason))
        before, _ = accuracy_of_classes(old, old.class_names)
        after, interval = accuracy_of_classes(model, old.class_names)
        score = update.score
        count = sum(update.learned.values())
        model.history.append(
            Event("extend", len(model.counts), count, score.accuracy, before, after)
        )
        result = UpdateResult(
            version=None,
            learned=update.learned,
            unreadable=unreadable,
            held_out_accuracy=score.accuracy,
            held_out_images=score.images,
            old_accuracy_before=before,
            old_accuracy_after=after,
            old_accuracy_interval=interval,
            next_step=messages.next_step(model.counts),
            accuracy=AccuracyEstimate.from_model(model),
            seconds=0.0,
            warnings=old.class_name_warnings(list(classes)),
        )
        if not dry_run:
            result.version = self._store(model, classes, result).version
        result.seconds = time.perf_counter() - start
        return result

    def _to_learn(
        self, uploads: Sequence[LabelledUpload], anyway: bool
    ) -> list[LabelledUpload]:
        """Return the images that were not learned as the same class before.

        Raises:
            Question: a class whose name is nearly that of another one, or an image that was learned
                as another class, unless that is learned ``anyway``.
            RequestError: no image is left.
        """
        learned = self._classes_of_images()
        if not anyway:
            names = list(dict.fromkeys(image.name for image in uploads))
            check_similar(names, self.model.class_names)
        new = []
        for image in uploads:
            classes = learned.get(image.hash, set())
            others = sorted(classes - {image.name})
            if others and not anyway:
                file = image.sent[: messages.LONGEST_SHOWN]
                raise Question(messages.LEARNED_AS, file=file, name=others[0])
            if image.name not in classes:
                new.append(image)
        if not new:
            raise RequestError(422, messages.LEARNED_BEFORE, images=len(uploads))
        return new

    def _choose_calibration_samples(
        self, model: Classifier, uploads: Sequence[LabelledUpload]
    ) -> None:
        """Tell a model which images were chosen by a person while others waited.

        Those are the least probable ones, so an accuracy of them says little of new images.
        """
        labelled = {image.file for image in uploads}
        chosen = [image.hash for image in uploads if not image.is_named_by_folder]
        if {image.file for image in self.workspace.waiting()} <= labelled:
            chosen = []
        elif not chosen:
            return
        model.calibration.exclude_selected(torch.tensor(chosen, dtype=torch.int64))

    def _images(self, classes: Mapping[str, Sequence[str]]) -> EmbeddedUploads:
        """Return images of the workspace with their embeddings: class name → names of files."""
        label_of = {}
        for label, files in enumerate(classes.values()):
            label_of.update(dict.fromkeys(files, label))
        present, z = self.gallery.embeddings(list(label_of), self._report)
        labels = [label_of[file] for file in present]
        table = table_of(name=present).assign(label=labels)
        images = SampleTable(table, root=self.workspace.images_folder)
        known = dict(zip(present, z, strict=True))
        return EmbeddedUploads(list(classes), images, known=known)

    def _store(
        self, model: Classifier, classes: dict[str, list[str]], result: UpdateResult
    ) -> ChangeResult:
        """Store a model that learned; the images that it learned go unless they are kept."""
        count = sum(result.learned.values())
        message = filled(messages.LEARNED, images=count, names=list(result.learned))
        scores = result.model_dump(include=SCORES, exclude_none=True)
        if self.options.keep_images:
            return self._changed(model, Change("extend", message, classes, scores))
        stored = self._changed(model, Change("extend", message, scores=scores))
        for files in classes.values():
            self.workspace.remove(files, 0.0)
        self.workspace.remove_unused_images()
        return stored

    # ------------------------------------------------------------------ changes of classes

    def forget(self, name: str, anyway: bool = False) -> ChangeResult:
        """Forget a class.

        It is exact where all of its images are kept, else it is taken out of the predictions.

        Args:
            name: of the class.
            anyway: whether to take it out of the predictions where a kept image is damaged.
        """
        old = self.model
        self._require_another(name)
        kept_images = self.workspace.kept_images().get(name, [])
        images = None
        if old.head.subtracts:
            images = self.workspace.whole_class(name, old.counts[name])
        if images and not all(map(is_undamaged, images)):
            if not anyway:
                raise Question(messages.DAMAGED_IMAGES, name=name)
            images = None
        done = forget(old, name, images)
        sentence = messages.FORGOT_EXACTLY if done.exact else messages.FORGOT
        message = filled(sentence, name=name)
        change = Change("forget", message, forgotten=name)
        result = self._changed(done.model, change)
        result.exact = done.exact
        if kept_images:
            stay = filled(messages.IMAGES_STAY, images=len(kept_images))
            result.message = f"{message}. {stay}"
        return result

    def rename(self, old: str, new: str, anyway: bool = False) -> ChangeResult:
        """Give a class another name.

        Args:
            old: its name.
            new: its new name.
            anyway: whether it may be nearly the name of another class.
        """
        model = self.model.clone()
        name = tidy(new)
        require(model, old)
        if name == old:
            raise RequestError(422, messages.SAME_NAME, name=name)
        others = [other for other in model.class_names if other != old]
        if name in others:
            instead = {new: name}
            raise Question(messages.TAKEN_NAME, instead, False, name=name, old=old)
        if not anyway:
            check_similar([name], others)
        model.rename(old, name)
        message = filled(messages.RENAMED, name=old, new=name)
        return self._changed(model, Change("rename", message, renamed=(old, name)))

    def move(
        self,
        name: str,
        into: str,
        images: Collection[str] | None = None,
        anyway: bool = False,
    ) -> ChangeResult:
        """Make images of a class images of another, which may be new.

        All are taken out, and learned anew.

        Args:
            name: of the class, all of whose images must be kept; it goes where none of them stays.
            into: name of the other class.
            images: names of the images' files; None for all of them, which joins both classes.
            anyway: whether ``into`` may be nearly the name of another class.
        """
        model = self.model
        target = tidy(into)
        self._require_another(name)
        class_names([target], "the request", UsageError)
        kept_images = self.workspace.kept_images()
        own = kept_images.get(name, [])
        chosen = set(own if images is None else images)
        moved = [file for file in own if file in chosen]
        rest = [file for file in own if file not in chosen]
        if target == name or (images is not None and not moved):
            raise RequestError(422, messages.NOTHING_TO_MOVE, name=name)
        if not anyway:
            check_similar([target], model.class_names)
        removed = self.workspace.whole_class(name, model.counts[name])
        is_whole = removed is not None and all(map(is_undamaged, removed))
        if not is_whole or not model.head.subtracts:
            raise RequestError(409, messages.CANNOT_MOVE, name=name, target=target)
        known = kept_images.get(target, [])
        learned = {name: rest, target: [file for file in moved if file not in known]}
        learned = {one: files for one, files in learned.items() if files}
        model = forget(model, name, removed).model
        if learned:
            model = learn(model, self._images(learned)).model
        action = "join"
        sentence = messages.JOINED
        if rest:
            action = "move"
            sentence = messages.MOVED
        message = filled(sentence, images=len(moved), name=name, target=target)
        model.history.append(
            Event(action, len(model.counts), len(learned.get(target, [])))
        )
        return self._changed(
            model, Change(action, message, learned=learned, forgotten=name)
        )

    def _require_another(self, name: str) -> None:
        """Raise RequestError unless the model knows class ``name`` and another one."""
        require(self.model, name)
        if len(self.model.class_names) == 1:
            raise RequestError(422, messages.ONLY_CLASS, name=name)

    # ------------------------------------------------------------------ changes of versions

    def undo(self) -> ChangeResult:
        """Go back by one change."""
        undone = self.workspace.version(self.workspace.current)
        version, model = self.workspace.undo()
        message = messages.WENT_BACK
        if undone.parent == version.number:
            message = filled(messages.UNDID, message=undone.change.message)
        return self._serve(version, model, message)

    def redo(self) -> ChangeResult:
        """Do again what was undone last."""
        before = self.workspace.current
        version, model = self.workspace.redo()
        message = messages.WENT_AGAIN
        if version.parent == before:
            message = filled(messages.REDID, message=version.change.message)
        return self._serve(version, model, message)

    def go_to(self, number: int) -> ChangeResult:
        """Serve another version."""
        version, model = self.workspace.go_to(number)
        message = filled(messages.WENT_TO, number=number)
        return self._serve(version, model, message)

    def purge(self, every: bool) -> ChangeResult:
        """Delete kept images, and all versions but the served one, for good.

        Args:
            every: all kept images; otherwise those that the served version did not learn.
        """
        counts = self.workspace.purge(every)
        message = messages.purged(**dict(counts))
        return ChangeResult(version=self.workspace.current, message=message)

    def _changed(self, model: Classifier, change: Change) -> ChangeResult:
        """Store a changed model and serve it; return the answer."""
        return self._serve(self.workspace.commit(model, change), model, change.message)

    def _serve(self, version: Version, model: Classifier, message: str) -> ChangeResult:
        """Serve the model of a stored version; return the answer."""
        self.answering.served = self._served_model(model, version.number)
        return ChangeResult(version=version.number, message=message)

    def _served_model(self, model: Classifier, number: int) -> ServedModel:
        """Return a model to be served."""
        options = self.options
        return ServedModel(model, number, options.unknown, options.coverage)


def require(model: Classifier, name: str) -> None:
    """Raise RequestError unless the model knows class ``name``."""
    try:
        model.labels([name])
    except UsageError as error:
        raise RequestError(404, str(error)) from error
