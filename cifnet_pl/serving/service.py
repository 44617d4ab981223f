"""Everything that the service can do, without HTTP: classify, learn, inspect and change.

A change is asked for by :meth:`Service.submit` with one of the methods that make changes. A thread
makes one after the other: the method stores a version in the workspace, serves it from then on, and
returns the answer.
"""

import logging
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, PrivateAttr

from cifnet_pl.data.samples import SampleTable, table_of
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.forget import forget
from cifnet_pl.model.labelled_images import LabelledImages
from cifnet_pl.model.learn import learn
from cifnet_pl.serving.answering import LARGEST_BATCH, Answering, ServiceOptions
from cifnet_pl.serving.gate import ApiObject, checked_names
from cifnet_pl.serving.inbox import Inbox, LeftOut
from cifnet_pl.serving.inspection import (
    AccuracyEstimate,
    Bounds,
    accuracy_of_classes,
)
from cifnet_pl.serving.messages import SHOWN_NAMES, RequestError, refusal_of
from cifnet_pl.serving.workspace import Change, FilesOfClasses, Workspace
from cifnet_pl.utilities.errors import CifnetError, UsageError
from cifnet_pl.utilities.text import listed, number_of, printable

LOGGER = logging.getLogger("cifnet_pl.serving")

SCORES = {
    "new_accuracy",
    "new_images",
    "old_accuracy_before",
    "old_accuracy_after",
}
"""What a version keeps of its update."""

ENOUGH_IMAGES = 10
"""Images of a class below which more of it are asked for."""

REMEMBERED_CHANGES = 32
"""Changes that ended and can still be asked for."""


class UpdateResult(ApiObject):
    """The result of an update, or with ``dry_run`` what it would be."""

    version: int | None = None
    """The new version; null for a dry run."""
    learned: dict[str, int]
    """Images learned of each class."""
    unreadable: list[LeftOut]
    new_accuracy: float | None
    """Leave-one-group-out accuracy of the classes that were learned, in percent."""
    new_images: int
    """Number of their images in the calibration buffer, of which that is a share."""
    old_accuracy_before: float | None
    """Leave-one-group-out accuracy of the earlier classes in percent, before the update."""
    old_accuracy_after: float | None
    old_accuracy_interval: Bounds | None
    """Percentages between which the latter lies with a probability of 95 %."""
    next_step: str
    """Most useful next step, in one sentence."""
    accuracy: AccuracyEstimate
    seconds: float = 0.0
    warnings: list[str]


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
        self._jobs: dict[str, Job] = {}
        self._at_work: Job  # the change that the thread makes
        self._thread = ThreadPoolExecutor(1, "learn")
        blank = torch.zeros(1, 3, model.image_size, model.image_size, dtype=torch.uint8)
        # The first call builds or exports the backbone's engine, before several threads embed.
        with torch.inference_mode():
            model.embed(blank)
        self.answering = Answering(model, workspace.current, self.options)
        self.inbox = Inbox(workspace, self.answering)

    def close(self) -> None:
        """Finish what was asked for, and close the workspace."""
        self.closed.set()
        self._thread.shutdown()
        self.inbox.close()
        self.answering.close()
        self.workspace.close()

    # ------------------------------------------------------------------ the queue of changes

    def submit(self, action: str, work: Callable[..., Result], *args: Any) -> Job:
        """Queue a change.

        Args:
            action: what the job calls it.
            work: method that makes it.
            args: of the method.
        """
        job = Job(action=action)
        # Listed before the thread begins: what asks for the change at once finds it.
        self._jobs[job.job] = job
        job._end = self._thread.submit(self._make, job, work, args)
        ended = [key for key, one in self._jobs.items() if one.end.done()]
        for key in ended[:-REMEMBERED_CHANGES]:
            del self._jobs[key]
        return job

    def job(self, key: str) -> Job:
        """Return the change with a key.

        Raises:
            RequestError: there is no such change, or it ended long ago.
        """
        if key not in self._jobs:
            raise RequestError(404, "there is no such job, or it ended long ago")
        job = self._jobs[key]
        jobs = list(self._jobs.values())
        before = jobs[: jobs.index(job)]
        job.place = sum(not one.end.done() for one in before)
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
            job.may_be_asked_for = refusal.anyway
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
        self.inbox.changed.set()

    # ------------------------------------------------------------------ changes: learn

    def learn(
        self,
        names: Mapping[str, str],
        dry_run: bool = False,
        anyway: bool = False,
    ) -> UpdateResult:
        """Learn images that wait.

        Args:
            names: name of an image's file → its class.
            dry_run: whether to learn on a copy that is thrown away.
            anyway: whether to learn what may be a mistake.
        """
        start = time.perf_counter()
        images = self.inbox.to_learn(names, anyway)
        served = self.answering.served.model
        old = served.clone()
        if images.selected is not None:
            chosen = torch.tensor(images.selected, dtype=torch.int64)
            old.calibration.exclude_selected(chosen)
        update = learn(old, self._images(images.classes, images.hash_of))
        model = update.model
        before, _ = accuracy_of_classes(old, old.class_names)
        after, interval = accuracy_of_classes(model, old.class_names)
        result = UpdateResult(
            learned=update.learned,
            unreadable=images.left_out,
            new_accuracy=update.score.accuracy,
            new_images=update.score.images,
            old_accuracy_before=before,
            old_accuracy_after=after,
            old_accuracy_interval=interval,
            next_step=next_step(model.counts),
            accuracy=AccuracyEstimate.from_model(model),
            warnings=old.class_name_warnings(list(images.classes)),
        )
        result.seconds = time.perf_counter() - start
        model.record_event(
            "extend",
            sum(update.learned.values()),
            accuracy=result.new_accuracy,
            old_accuracy_before=before,
            old_accuracy=after,
            seconds=result.seconds,
            class_names=list(update.learned),
            parents=[served.identity],
        )
        if not dry_run:
            self._store(model, images.classes, result)
        return result

    def _images(
        self,
        classes: FilesOfClasses,
        hash_of: Mapping[str, int],
    ) -> LabelledImages:
        """Return images of the workspace with their embeddings.

        Args:
            classes: the images.
            hash_of: name of an image's file → its content hash.
        """
        label_of = {
            file: label
            for label, files in enumerate(classes.values())
            for file in files
        }
        files = list(label_of)
        job = self._at_work
        job.total = len(files)
        for start in range(0, len(files), LARGEST_BATCH):
            job.done = start
            self.inbox.embeddings(files[start : start + LARGEST_BATCH])
        job.done = len(files)
        present, z = self.inbox.embeddings(files)
        hashes = [hash_of[file] for file in present]
        labels = [label_of[file] for file in present]
        table = table_of(name=present).assign(label=labels)
        images = SampleTable(table, embeddings=z.numpy(), hash_of=np.array(hashes))
        return LabelledImages(list(classes), images)

    def _store(
        self,
        model: Classifier,
        classes: FilesOfClasses,
        result: UpdateResult,
    ) -> None:
        """Store a model that learned; the images that it learned go unless they are kept."""
        deleted: set[str] = set()
        count = sum(result.learned.values())
        names = quoted(list(result.learned))
        message = f"learned {number_of(count, 'photo')} of {names}"
        scores = result.model_dump(include=SCORES, exclude_none=True)
        change = Change(action="extend", message=message, scores=scores)
        if self.options.keep_images:
            change.learned = classes
        else:
            deleted = deleted.union(*classes.values())
        result.version = self._changed(model, change, deleted).version

    # ------------------------------------------------------------------ changes of classes

    def forget(self, name: str) -> ChangeResult:
        """Forget a class.

        It is exact where all of its images are kept unchanged, else it is taken out of the
        predictions.
        """
        old = self._model_with_another(name)
        kept_images = self.workspace.kept_images().get(name, [])
        done = forget(old, name, self._all_images(old, name, kept_images))
        message = f"forgot '{name}' exactly: the model keeps nothing of its photos"
        if not done.exact:
            still = "its photos still count against other classes"
            message = f"forgot '{name}' from the answers; {still}"
        elif done.earlier_removals:
            still = "photos of a class that was forgotten before still count"
            message = f"forgot '{name}' and the photos kept of it; {still}"
        change = Change(action="forget", message=message, forgotten=name)
        result = self._changed(done.model, change)
        result.exact = done.exact
        if kept_images:
            photos = number_of(len(kept_images), "photo")
            stay = "stay here until you delete them for good"
            result.message += f". {photos} of it and the versions before {stay}"
        return result

    def rename(self, old: str, new: str, anyway: bool = False) -> ChangeResult:
        """Give a class another name.

        Args:
            old: its name.
            new: its new name.
            anyway: whether it may be nearly the name of another class.
        """
        model = self.answering.served.model.clone()
        require(model, old)
        others = [other for other in model.class_names if other != old]
        name = checked_names([new], others, anyway)[new]
        if name == old:
            same = f"'{name}' has this name already: give another one"
            raise RequestError(422, same)
        if name in others:
            taken = f"there is a class '{name}' already"
            joined = f"'{name}' and '{old}' would become one"
            raise RequestError(409, f"{taken}: {joined}", {new: name})
        model.rename(old, name)
        message = f"renamed '{old}' to '{name}'"
        change = Change(action="rename", message=message, renamed=(old, name))
        return self._changed(model, change)

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
        model = self._model_with_another(name)
        target = checked_names([into], model.class_names, anyway)[into]
        kept_images = self.workspace.kept_images()
        own = kept_images.get(name, [])
        chosen = set(own if images is None else images)
        moved = [file for file in own if file in chosen]
        rest = [file for file in own if file not in chosen]
        if target == name or (images is not None and not moved):
            nothing = (
                f"none of these is a photo of '{name}' that is to be another class"
            )
            raise RequestError(422, nothing)
        removed = self._all_images(model, name, own)
        if removed is None:
            raise RequestError(
                409,
                f"'{name}' cannot be taken out exactly, as not all of its photos are kept here:"
                f" forget it, and teach its photos as '{target}'",
            )
        known = kept_images.get(target, [])
        new = [file for file in moved if file not in known]
        if rest:
            action = "move"
            learned = {name: rest, target: new}
            photos = number_of(len(moved), "photo")
            message = f"moved {photos} of '{name}' to '{target}'"
        else:
            action = "join"
            # Without an image, too: the version says what became of the class.
            learned = {target: new}
            message = f"joined '{name}' to '{target}'"
        parent = model.identity
        model = forget(model, name, removed).model
        if rest or new:
            hash_of = self.workspace.unchanged(own)
            model = learn(model, self._images(learned, hash_of)).model
        model.record_event(
            action, len(new), class_names=[name, target], parents=[parent]
        )
        change = Change(action=action, message=message, learned=learned, forgotten=name)
        return self._changed(model, change)

    def _model_with_another(self, name: str) -> Classifier:
        """Return the model; RequestError unless it knows class ``name`` and another one."""
        model = self.answering.served.model
        require(model, name)
        if len(model.class_names) == 1:
            raise RequestError(
                422, f"'{name}' is the only class: teach another one first"
            )
        return model

    def _all_images(
        self,
        model: Classifier,
        name: str,
        kept_images: Sequence[str],
    ) -> list[Path] | None:
        """Return the images of a class; None unless the model can be without them exactly.

        For that the head must subtract, and all images be kept unchanged.

        Args:
            model: that knows the class.
            name: of the class.
            kept_images: names of its kept images' files.
        """
        learned = model.counts[name]
        if model.head.subtracts and len(kept_images) >= learned:
            unchanged = self.workspace.unchanged(kept_images)
            if len(unchanged) == learned:
                return [self.workspace.image(file) for file in unchanged]
        return None

    # ------------------------------------------------------------------ changes of versions

    def walk(
        self,
        action: Literal["undo", "redo"],
        version: int | None = None,
    ) -> ChangeResult:
        """Go back by one change, or do again what was undone last.

        Args:
            action: the step.
            version: that must be served now; None for whichever is.
        """
        current = self.workspace.current
        if version not in (None, current):
            raise RequestError(
                409,
                f"version {version} is served no longer: version {current} came after it, maybe"
                " from someone else; look at it first",
            )
        step = self.workspace.step(action)
        if step is None:
            raise RequestError(409, f"there is no change to {action}")
        model = self.workspace.go(step.version, action, step.place)
        return self._serve(model, step.version, step.message)

    def go_to(self, number: int) -> ChangeResult:
        """Serve another version."""
        model = self.workspace.go(number)
        return self._serve(model, number, f"went to version {number}")

    def purge(self, every: bool) -> ChangeResult:
        """Delete kept images, and all versions but the served one, for good.

        Args:
            every: all kept images; otherwise those that the served version did not learn.
        """
        counts = self.workspace.purge(every)
        photos = number_of(len(counts.files), "photo")
        versions = number_of(counts.versions, "other version")
        message = f"deleted {photos} and {versions} for good"
        return ChangeResult(version=self.workspace.current, message=message)

    def _changed(
        self,
        model: Classifier,
        change: Change,
        deleted: Collection[str] = (),
    ) -> ChangeResult:
        """Store a changed model and serve it; return the answer.

        Args:
            model, change, deleted: as for :meth:`Workspace.commit`.
        """
        number = self.workspace.commit(model, change, deleted)
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


def quoted(names: Sequence[str]) -> str:
    """Return a few class names, quoted."""
    return listed([f"'{printable(name)}'" for name in names], SHOWN_NAMES)


def next_step(counts: Mapping[str, int]) -> str:
    """Return the most useful next step, given the numbers of images by class."""
    few = [name for name, count in counts.items() if count < ENOUGH_IMAGES]
    if few:
        return f"Next: add photos of {quoted(few)}, taken on another day."
    return "Next: ask about photos of another day."
