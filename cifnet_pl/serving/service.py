"""Everything that the service can do, without HTTP: classify, learn, inspect and change.

A change is asked for by :meth:`Service.submit` with one of the methods that make changes. A thread
makes one after the other: the method stores a version in the workspace, serves it from then on, and
returns the answer.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from cifnet_pl.data.samples import SampleTable, table_of
from cifnet_pl.model.bundle import Event, class_names
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.forget import forget
from cifnet_pl.model.labelled_images import LabelledImages
from cifnet_pl.model.learn import learn
from cifnet_pl.serving import messages
from cifnet_pl.serving.answering import (
    Answering,
    Gallery,
    ServedModel,
    ServiceOptions,
)
from cifnet_pl.serving.gate import ApiObject, check_similar, tidy
from cifnet_pl.serving.inbox import Inbox, LabelledUpload, LeftOut
from cifnet_pl.serving.inspection import (
    AccuracyEstimate,
    ClassPredictions,
    accuracy_of_classes,
    class_predictions,
)
from cifnet_pl.serving.messages import (
    Question,
    RequestError,
    filled,
    refusal_of,
)
from cifnet_pl.serving.workspace import Change, Workspace, is_undamaged
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

QUEUED_CHANGES = 32
"""Unfinished changes, beyond which others are refused, and finished ones that are remembered."""


class UpdateResult(ApiObject):
    """The result of an update, or with ``dry_run`` what it would be."""

    version: int | None = None
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
    seconds: float = 0.0
    warnings: list[str] = Field(default=[])


class ChangeResult(ApiObject):
    """The version that is served after a change."""

    version: int
    message: str
    exact: bool | None = None
    """Of forget: whether the images were taken out of the statistics."""


Result = UpdateResult | ChangeResult


class Job(ApiObject):
    """A change that was asked for, or its end."""

    job: str = Field(default_factory=partial(secrets.token_hex, 16))
    action: str
    """learn, forget, …"""
    state: Literal["waiting", "at work", "done", "refused"] = "waiting"
    place: int = 0
    """Number of changes that come before this one."""
    done: int = 0
    """Images learned so far."""
    total: int | None = None
    status: int | None = None
    """HTTP status that the change ended with."""
    error: str | None = None
    may_be_asked_for: bool = False
    """Whether a refused change is made where it is sent with anyway=true."""
    instead: dict[str, str] = Field(default={})
    """Name that was given → class that is meant instead, maybe."""
    update: UpdateResult | None = None
    change: ChangeResult | None = None
    _end: Future[None] = PrivateAttr(default_factory=Future)

    @property
    def end(self) -> Future[None]:
        """What waits for the end of the change, whatever that is."""
        return self._end


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
        self._jobs: dict[str, Job] = {}
        self._at_work: Job | None = None
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, "learn")
        blank = torch.zeros(1, 3, model.image_size, model.image_size, dtype=torch.uint8)
        # The first call builds or exports the backbone's engine, before several threads embed.
        with torch.inference_mode():
            model.embed(blank)
        self.answering = Answering(model, workspace.current, self.options)
        self.gallery = Gallery(workspace, self.answering)
        self.gallery.request_update()
        self.inbox = Inbox(workspace, self.gallery, self.options.limits)

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

    def class_predictions(self) -> ClassPredictions:
        """Return the leave-one-out predictions of each class, computed once for each version."""
        with self.costly:
            served = self.served
            if self._predictions is None or self._predictions[0] != served.version:
                self._predictions = (served.version, class_predictions(served.model))
            return self._predictions[1]

    # ------------------------------------------------------------------ the queue of changes

    def submit(self, work: Callable[..., Result], *args: Any) -> Job:
        """Queue a change.

        Args:
            work: method that makes it.
            args: of the method.

        Raises:
            RequestError: as many changes are unfinished as may be.
        """
        with self._lock:
            finished = [key for key, job in self._jobs.items() if job.end.done()]
            unfinished = len(self._jobs) - len(finished)
            if unfinished >= QUEUED_CHANGES:
                raise RequestError(503, messages.CHANGES_WAITING, changes=unfinished)
            for key in finished[:-QUEUED_CHANGES]:
                del self._jobs[key]
            job = Job(action=work.__name__)
            self._jobs[job.job] = job
        self._thread.submit(self._make, job, work, args)
        return job

    def job(self, key: str) -> Job:
        """Return the change with a key.

        Raises:
            RequestError: there is no such change, or it ended long ago.
        """
        if key not in self._jobs:
            raise RequestError(404, messages.NO_JOB)
        keys = list(self._jobs)
        before = keys[: keys.index(key)]
        job = self._jobs[key]
        job.place = sum(not self._jobs[other].end.done() for other in before)
        return job

    def _make(self, job: Job, work: Callable[..., Result], args: Sequence[Any]) -> None:
        """Make a change, and free what it needed."""
        self._at_work = job
        job.state = "at work"
        try:
            result = work(*args)
        except BaseException as error:
            # What is no error of ours is a fault: the service goes on, the log has the traceback.
            is_fault = not isinstance(error, CifnetError)
            LOGGER.warning("%s: %s", job.action, error, exc_info=is_fault)
            refusal = refusal_of(error)
            if isinstance(refusal, Question):
                job.may_be_asked_for = refusal.allowed
                job.instead = refusal.instead
            job.error = str(refusal)
            job.status = refusal.status
            job.state = "refused"
        else:
            if isinstance(result, UpdateResult):
                job.update = result
            else:
                job.change = result
            job.status = 200
            job.state = "done"
        self.gallery.request_update()
        job.end.set_result(None)

    def _report(self, done: int, total: int) -> None:
        """Record how many images the change at work has learned."""
        if self._at_work is not None:
            self._at_work.done = done
            self._at_work.total = total

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
        right = update.score.accuracy
        count = sum(update.learned.values())
        event = Event("extend", len(model.counts), count, right, before, after)
        model.history.append(event)
        result = UpdateResult(
            learned=update.learned,
            unreadable=unreadable,
            held_out_accuracy=right,
            held_out_images=update.score.images,
            old_accuracy_before=before,
            old_accuracy_after=after,
            old_accuracy_interval=interval,
            next_step=messages.next_step(model.counts),
            accuracy=AccuracyEstimate.from_model(model),
            warnings=old.class_name_warnings(list(classes)),
        )
        if not dry_run:
            self._store(model, classes, result)
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
        learned = self.inbox.classes_of_images()
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
    ) -> None:
        """Store a model that learned; the images that it learned go unless they are kept."""
        count = sum(result.learned.values())
        message = filled(messages.LEARNED, images=count, names=list(result.learned))
        scores = result.model_dump(include=SCORES, exclude_none=True)
        change = Change(action="extend", message=message, scores=scores)
        if self.options.keep_images:
            change.learned = classes
        result.version = self._changed(model, change).version
        if not self.options.keep_images:
            for files in classes.values():
                self.workspace.remove(files, 0.0)
            self.workspace.remove_unused_images()

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
        change = Change(action="forget", message=message, forgotten=name)
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
        return self._changed(
            model, Change(action="rename", message=message, renamed=(old, name))
        )

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
        action = "move" if rest else "join"
        sentence = messages.MOVED if rest else messages.JOINED
        message = filled(sentence, images=len(moved), name=name, target=target)
        new = len(learned.get(target, []))
        model.history.append(Event(action, len(model.counts), new))
        change = Change(action=action, message=message, learned=learned, forgotten=name)
        return self._changed(model, change)

    def _require_another(self, name: str) -> None:
        """Raise RequestError unless the model knows class ``name`` and another one."""
        require(self.model, name)
        if len(self.model.class_names) == 1:
            raise RequestError(422, messages.ONLY_CLASS, name=name)

    # ------------------------------------------------------------------ changes of versions

    def undo(self) -> ChangeResult:
        """Go back by one change."""
        step = self.workspace.step("undo")
        if step is None:
            raise RequestError(409, messages.NO_UNDO)
        undone = self.workspace.version(self.workspace.current)
        message = messages.WENT_BACK
        if undone.parent == step.version:
            message = filled(messages.UNDID, message=undone.message)
        model = self.workspace.go(step.version, "undo", step.place)
        return self._serve(model, step.version, message)

    def redo(self) -> ChangeResult:
        """Do again what was undone last."""
        step = self.workspace.step("redo")
        if step is None:
            raise RequestError(409, messages.NO_REDO)
        redone = self.workspace.version(step.version)
        message = messages.WENT_AGAIN
        if redone.parent == self.workspace.current:
            message = filled(messages.REDID, message=redone.message)
        model = self.workspace.go(step.version, "redo", step.place)
        return self._serve(model, step.version, message)

    def go_to(self, number: int) -> ChangeResult:
        """Serve another version."""
        model = self.workspace.go(number)
        return self._serve(model, number, filled(messages.WENT_TO, number=number))

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
        number = self.workspace.commit(model, change)
        return self._serve(model, number, change.message)

    def _serve(self, model: Classifier, number: int, message: str) -> ChangeResult:
        """Serve the model of a stored version; return the answer."""
        self.answering.serve(model, number)
        return ChangeResult(version=number, message=message)


def require(model: Classifier, name: str) -> None:
    """Raise RequestError unless the model knows class ``name``."""
    try:
        model.labels([name])
    except UsageError as error:
        raise RequestError(404, str(error)) from error
