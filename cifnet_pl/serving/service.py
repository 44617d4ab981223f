"""Everything that the service can do, without HTTP: classify, learn, inspect and change."""

from __future__ import annotations

import io
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import IO, Any, Literal, NamedTuple

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
from cifnet_pl.serving import messages
from cifnet_pl.serving.answering import (
    Answering,
    ApiObject,
    CurrentModel,
    ImageAnswer,
    ScoredImage,
    ServedModel,
)
from cifnet_pl.serving.change_queue import ChangeJob, ChangeQueue, JobResult, Work
from cifnet_pl.serving.gallery import Gallery
from cifnet_pl.serving.gate import Limits, decoded
from cifnet_pl.serving.inbox import Inbox, LabelledUploads, LeftOut, Received
from cifnet_pl.serving.inspection import (
    AccuracyEstimate,
    AuditView,
    ClassPredictions,
    accuracy_interval,
    accuracy_of_classes,
    audited,
    class_predictions,
)
from cifnet_pl.serving.naming import check_similar, tidy
from cifnet_pl.serving.refusals import Question, RequestError
from cifnet_pl.serving.workspace import Change, Version, Workspace, is_undamaged
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.text import printable

IMAGES_UNDER_WAY = 2048
"""Images that are being answered or wait; more are refused."""

PREVIEW_SIDE = 320
"""Pixels of a side of what is shown where a browser cannot show an image's format."""


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
        """Yield rows and embeddings, as :meth:`LabelledImages.embedded` does.

        All are made anew where one is not known.
        """
        names = self.files.names
        if not all(name in self.known for name in names):
            yield from super().embedded(*args, **options)
            return
        self.looks[:] = look_at_images([self.files.root / name for name in names])
        rows = np.arange(len(self.files))
        hashes = [look.hash for look in self.looks if look]
        self.files.note_hashes(rows, np.array(hashes, dtype=np.int64))
        yield rows, torch.stack([self.known[name] for name in names])


class VersionPredictions(NamedTuple):
    """The leave-one-out predictions of each class by one version of the model."""

    version: int
    predictions: ClassPredictions


class Service:
    """A workspace that is served: answers from the current version, changes one after another.

    Args:
        workspace: open; only this object may change it.
        model: of the workspace's current version.
        options: see :class:`ServiceOptions`.

    Attributes:
        costly: held while something is made that takes seconds and all cores.
    """

    def __init__(
        self,
        workspace: Workspace,
        model: Classifier,
        options: ServiceOptions | None = None,
    ):
        self.workspace = workspace
        self.options = options or ServiceOptions()
        self.costly = Lock()
        self._predicting = Lock()
        self._class_predictions: VersionPredictions | None = None
        blank = torch.zeros(1, 3, model.image_size, model.image_size, dtype=torch.uint8)
        # The first call builds or exports the backbone's engine, before several threads embed.
        with torch.inference_mode():
            model.embed(blank)
        self.current = CurrentModel(self._served_model(model, workspace.current))
        self.changes = ChangeQueue(self.current)
        self.answering = Answering(self.current, self.options.limits, IMAGES_UNDER_WAY)
        self.gallery = Gallery(workspace, self.answering)
        self.gallery.request_update()
        self.inbox = Inbox(workspace, self.gallery, self.options.limits)

    @property
    def served(self) -> ServedModel:
        """The model that answers now, and its version."""
        return self.current.served

    @property
    def model(self) -> Classifier:
        """The model that answers now."""
        return self.current.served.model

    def close(self) -> None:
        """Finish what was asked for, and close the workspace."""
        self.changes.close()
        self.gallery.close()
        self.answering.close()
        self.workspace.close()

    # ------------------------------------------------------------------ classify and inspect

    def score(self, content: bytes) -> Future[ScoredImage]:
        """Predict one image; RequestError if too many wait."""
        return self.answering.submit(content)

    def preview(self, content: bytes) -> bytes:
        """Return the middle of an image as a small JPEG; UnreadableImage if it is damaged."""
        square, _ = decoded(content, PREVIEW_SIDE, 1.0, self.options.limits)
        out = io.BytesIO()
        Image.fromarray(square).save(out, "JPEG")
        return out.getvalue()

    def answer(self, file: str, scored: ScoredImage, top: int) -> ImageAnswer:
        """Return the prediction for one image.

        Args:
            file: name that the image was sent with.
            scored: the model's result.
            top: number of classes.
        """
        names = scored.served.model.class_names
        answer = ImageAnswer.from_scores(
            file, names, scored.probabilities, scored.decision, top
        )
        if answer.classes:
            answer.nearest = self.gallery.nearest(answer.classes[0].name, scored.z)
        return answer

    def audit(self) -> AuditView:
        """Return the label errors among the kept images."""
        return audited(self.gallery, self.workspace.kept_images(self.served.version))

    def class_predictions(self) -> ClassPredictions:
        """Return the leave-one-out predictions of each class, computed once for each version."""
        with self._predicting:
            served = self.served
            known = self._class_predictions
            if known is None or known.version != served.version:
                predictions = class_predictions(served.model)
                known = VersionPredictions(served.version, predictions)
                self._class_predictions = known
            return known.predictions

    # ------------------------------------------------------------------ learn

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

    def learn(
        self, names: Mapping[str, str], dry_run: bool, anyway: bool = False
    ) -> ChangeJob:
        """Queue an update with images that wait.

        Args:
            names: name of an image's file → its class.
            dry_run: whether to learn on a copy that is thrown away.
            anyway: whether to learn what may be a mistake: see
                :class:`~cifnet_pl.serving.refusals.Question`.
        """
        self.check_writable()
        uploads = self.inbox.labelled(names)
        return self._submit("extend", partial(self._learn, uploads, dry_run, anyway))

    def remove(self, images: Sequence[str], back: bool) -> int:
        """Take images away that wait, or take them ``back``; return how many wait now."""
        self.check_writable()
        self.workspace.remove(images, back)
        self.gallery.request_update()
        return len(self.workspace.waiting())

    def name_images(self, names: Mapping[str, str | None]) -> None:
        """Remember the classes that someone typed for images that wait.

        Args:
            names: name of a file → name of its class; None to forget it.
        """
        self.check_writable()
        self.workspace.name_images(names)

    def count_answers(self, asked: int, unsure: int, corrected: int) -> None:
        """Add to the counts of this day; see :meth:`Workspace.count_answers`."""
        self.check_writable()
        self.workspace.count_answers(asked, unsure, corrected)

    def _classes_of_images(self) -> dict[int, set[str]]:
        """Return the classes in which each image was learned, by the hash of its content."""
        names = self.model.class_names
        classes = {}
        for image, positions in classes_of_hashes(self.model, names).items():
            classes[image] = {names[position] for position in positions}
        return classes

    def _with_embeddings(
        self, names: list[str], files: FileSet, job: ChangeJob
    ) -> EmbeddedUploads:
        """Return labelled images with their embeddings; the job says how many there are."""
        present, z = self.gallery.embeddings(files.names, job.progress)
        return EmbeddedUploads(names, files, known=dict(zip(present, z, strict=True)))

    def _learn(
        self, uploads: LabelledUploads, dry_run: bool, anyway: bool, job: ChangeJob
    ) -> tuple[ServedModel | None, JobResult]:
        """Learn images that were labelled."""
        start = time.perf_counter()
        learned = self._classes_of_images()
        if not anyway:
            uploads.check_plausible(learned, self.model.class_names)
        uploads.leave_out(learned)
        old = self.model.clone()
        self._choose_calibration_samples(old, uploads)
        images = self._with_embeddings(uploads.names, uploads.files, job)
        update = learn(old, images)
        model = update.model
        score = update.score
        before = accuracy_of_classes(old, old.class_names)
        after = accuracy_of_classes(model, old.class_names)
        count = sum(update.learned.values())
        model.history.append(
            Event("extend", len(model.counts), count, score.percent, before, after)
        )
        unreadable = list(uploads.left_out)
        for file, reason in update.unreadable:
            unreadable.append(LeftOut(file=printable(file.name), reason=reason))
        result = UpdateResult(
            version=None,
            learned=update.learned,
            unreadable=unreadable,
            held_out_accuracy=score.percent,
            held_out_images=score.total,
            old_accuracy_before=before,
            old_accuracy_after=after,
            old_accuracy_interval=accuracy_interval(model, old.class_names, after),
            next_step=messages.next_step(model.counts),
            accuracy=AccuracyEstimate.from_model(model),
            seconds=time.perf_counter() - start,
            warnings=old.class_name_warnings(uploads.names),
        )
        if dry_run:
            return None, {"update": result}
        result.version = self._store(model, uploads, result).number
        result.seconds = time.perf_counter() - start
        return self._served_model(model, result.version), {"update": result}

    def _choose_calibration_samples(
        self, model: Classifier, uploads: LabelledUploads
    ) -> None:
        """Tell a model which images were chosen by a person while others waited.

        Those are the least certain ones, so an accuracy of them says little of new images.
        """
        labelled = {image.file for image in uploads.images}
        others_wait = any(
            image.file not in labelled for image in self.workspace.waiting()
        )
        if not others_wait:
            model.calibration.exclude_selected(torch.tensor([], dtype=torch.int64))
        elif uploads.chosen:
            model.calibration.exclude_selected(
                torch.tensor(uploads.chosen, dtype=torch.int64)
            )

    def _store(
        self, model: Classifier, uploads: LabelledUploads, result: UpdateResult
    ) -> Version:
        """Store a model that learned; the images that it learned go unless they are kept."""
        scores = {
            "held_out_accuracy": result.held_out_accuracy,
            "held_out_images": result.held_out_images,
            "old_accuracy_before": result.old_accuracy_before,
            "old_accuracy_after": result.old_accuracy_after,
        }
        learned = {}
        if self.options.keep_images:
            learned = {name: uploads.of_class(name) for name in uploads.names}
        change = Change(
            "extend",
            messages.learned(result.learned),
            learned=learned,
            scores={name: value for name, value in scores.items() if value is not None},
        )
        version = self.workspace.commit(model, change)
        if not self.options.keep_images:
            self.workspace.discard([image.file for image in uploads.images])
        return version

    # ------------------------------------------------------------------ change

    def forget(self, name: str, anyway: bool = False) -> ChangeJob:
        """Queue forgetting a class.

        It is exact where all of its images are kept, else it is taken out of the predictions.

        Args:
            name: of the class.
            anyway: whether to take it out of the predictions where a kept image is damaged.
        """
        return self._submit("forget", partial(self._forget, name, anyway))

    def _forget(
        self, name: str, anyway: bool, job: ChangeJob
    ) -> tuple[ServedModel, JobResult]:
        """Forget a class."""
        old = self.model
        require(old, name)
        require_another(old, name)
        kept_images = self.workspace.kept_images(self.workspace.current).get(name, [])
        images = None
        if old.head.subtracts:
            images = self.workspace.images_of_class(name, old.counts[name])
        if images and not all(map(is_undamaged, images)):
            if not anyway:
                raise Question(messages.damaged_images(name))
            images = None
        done = forget(old, name, images)
        message = messages.forgot(name, done.exact)
        version = self.workspace.commit(
            done.model, Change("forget", message, forgotten=name)
        )
        if kept_images:
            message += f". {messages.images_stay(len(kept_images))}"
        return self._changed(done.model, version, message, done.exact)

    def rename(self, old: str, new: str, anyway: bool = False) -> ChangeJob:
        """Queue giving a class another name.

        Args:
            old: its name.
            new: its new name.
            anyway: whether it may be nearly the name of another class.
        """
        return self._submit("rename", partial(self._rename, old, new, anyway))

    def _rename(
        self, old: str, new: str, anyway: bool, job: ChangeJob
    ) -> tuple[ServedModel, JobResult]:
        """Give a class another name."""
        model = self.model.clone()
        name = tidy(new)
        require(model, old)
        if name == old:
            raise RequestError(422, messages.same_name(name))
        others = [other for other in model.class_names if other != old]
        if name in others:
            raise Question(messages.taken_name(name, old), {new: name}, allowed=False)
        if not anyway:
            check_similar(name, others)
        model.rename(old, name)
        message = messages.renamed(old, name)
        version = self.workspace.commit(
            model, Change("rename", message, renamed=(old, name))
        )
        return self._changed(model, version, message)

    def move(
        self,
        name: str,
        into: str,
        images: Collection[str] | None = None,
        anyway: bool = False,
    ) -> ChangeJob:
        """Queue making images of a class images of another, which may be new.

        All are taken out, and learned anew.

        Args:
            name: of the class, all of whose images must be kept; it goes where none of them stays.
            into: name of the other class.
            images: names of the images' files; None for all of them, which joins both classes.
            anyway: whether ``into`` may be nearly the name of another class.
        """
        return self._submit("move", partial(self._move, name, into, images, anyway))

    def _move(
        self,
        name: str,
        into: str,
        images: Collection[str] | None,
        anyway: bool,
        job: ChangeJob,
    ) -> tuple[ServedModel, JobResult]:
        """Make images of a class images of another."""
        model = self.model
        target = tidy(into)
        require(model, name)
        class_names([target], "the request", UsageError)
        kept_images = self.workspace.kept_images(self.workspace.current)
        moved = []
        rest = []
        for file in kept_images.get(name, []):
            if images is None or file in images:
                moved.append(file)
            else:
                rest.append(file)
        if target == name or (images is not None and not moved):
            raise RequestError(422, messages.nothing_to_move(name))
        if not anyway and target not in model.class_names:
            check_similar(target, model.class_names)
        removed = self.workspace.images_of_class(name, model.counts[name])
        if removed is not None and not all(map(is_undamaged, removed)):
            removed = None
        if removed is None or not model.head.subtracts:
            raise RequestError(409, messages.cannot_move(name, target))
        require_another(model, name)
        new = [file for file in moved if file not in kept_images.get(target, [])]
        learned = {name: rest, target: new}
        learned = {one: files for one, files in learned.items() if files}
        model = self._learned_anew(forget(model, name, removed).model, learned, job)
        if rest:
            action = "move"
            message = messages.moved(len(moved), name, target)
        else:
            action = "join"
            message = messages.joined(name, target)
        model.history.append(Event(action, len(model.counts), len(new)))
        change = Change(action, message, learned=learned, forgotten=name)
        return self._changed(model, self.workspace.commit(model, change), message)

    def _learned_anew(
        self, model: Classifier, learned: Mapping[str, list[str]], job: ChangeJob
    ) -> Classifier:
        """Return a model that learned kept images: class name → names of their files."""
        if not learned:
            return model
        names: list[str] = []
        labels: list[int] = []
        for label, files in enumerate(learned.values()):
            names += files
            labels += [label] * len(files)
        images = FileSet(self.workspace.images_folder, names, labels)
        return learn(model, self._with_embeddings(list(learned), images, job)).model

    def undo(self) -> ChangeJob:
        """Queue going back by one change."""
        return self._submit("undo", self._undo)

    def _undo(self, job: ChangeJob) -> tuple[ServedModel, JobResult]:
        """Go back by one change."""
        undone = self.workspace.version(self.workspace.current)
        version, model = self.workspace.undo()
        if undone.parent == version.number:
            message = messages.undid(undone.change.message)
        else:
            message = messages.WENT_BACK
        return self._changed(model, version, message)

    def redo(self) -> ChangeJob:
        """Queue doing again what was undone last."""
        return self._submit("redo", self._redo)

    def _redo(self, job: ChangeJob) -> tuple[ServedModel, JobResult]:
        """Do again what was undone last."""
        before = self.workspace.current
        version, model = self.workspace.redo()
        if version.parent == before:
            message = messages.redid(version.change.message)
        else:
            message = messages.WENT_AGAIN
        return self._changed(model, version, message)

    def go_to(self, number: int) -> ChangeJob:
        """Queue serving another version."""
        return self._submit("go to", partial(self._go_to, number))

    def _go_to(self, number: int, job: ChangeJob) -> tuple[ServedModel, JobResult]:
        """Serve another version."""
        version, model = self.workspace.go_to(number)
        return self._changed(model, version, messages.went_to(number))

    def purge(self, images: Literal["forgotten", "all"]) -> ChangeJob:
        """Queue deleting kept images, and all versions but the served one, for good."""
        return self._submit("purge", partial(self._purge, images == "all"))

    def _purge(self, every: bool, job: ChangeJob) -> tuple[None, JobResult]:
        """Delete kept images and versions for good."""
        message = messages.purged(*self.workspace.purge(every))
        result = ChangeResult(version=self.workspace.current, message=message)
        return None, {"change": result}

    def check_writable(self) -> None:
        """Raise RequestError if changes are refused."""
        if self.options.read_only:
            raise RequestError(403, messages.READ_ONLY)

    def _submit(self, action: str, work: Work) -> ChangeJob:
        self.check_writable()
        job = self.changes.submit(action, work)
        job.result.add_done_callback(self._update_gallery)
        return job

    def _update_gallery(self, result: Future[JobResult]) -> None:
        self.gallery.request_update()

    def _changed(
        self,
        model: Classifier,
        version: Version,
        message: str,
        exact: bool | None = None,
    ) -> tuple[ServedModel, JobResult]:
        """Return the model that is served after a change, and the answer."""
        result = ChangeResult(version=version.number, message=message, exact=exact)
        return self._served_model(model, version.number), {"change": result}

    def _served_model(self, model: Classifier, number: int) -> ServedModel:
        """Return a model to be served.

        What detects unknown images is prepared now, so that no answer waits for it.
        """
        served = ServedModel(model, number, self.options.unknown, self.options.coverage)
        served.open_set_predictor()
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
        raise RequestError(422, messages.only_class(name))
