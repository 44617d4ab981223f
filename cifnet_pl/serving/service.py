"""Everything that the service can do, without HTTP: classify, teach, inspect and change one workspace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import IO, Literal

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.model.classifier import Classifier
from cifnet_pl.photos.photo import UnreadableImage
from cifnet_pl.serving import answers, inspection
from cifnet_pl.serving.batches import Batcher, Scored, Served
from cifnet_pl.serving.inspection import Gallery, audited
from cifnet_pl.serving.learner import Job, Learner, Result, Work, taught
from cifnet_pl.serving.refusals import Measures, RequestError
from cifnet_pl.serving.uploads import Limits, Staged, Upload, decoded, stage, uploads
from cifnet_pl.serving.workspace import Change, Version, Workspace
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.text import printable


@dataclass(frozen=True)
class Options:
    """The options by which a workspace is served.

    Attributes:
        name: of the model, in paths of the Open Inference Protocol.
        read_only: whether changes are refused.
        keep_photos: whether photos that are taught stay in the workspace: for exact forgetting, and to be shown.
        unknown: share of photos of known classes that may be called "none of these"; None never to say so.
        coverage: chance that the right class is in the set of answers; None to give no set.
        limits: of one request.
    """

    name: str = "model"
    read_only: bool = False
    keep_photos: bool = True
    unknown: float | None = 0.05
    coverage: float | None = 0.95
    limits: Limits = field(default_factory=Limits)


class Service:
    """A workspace that is served: answers from the current version, changes one after another.

    Args:
        workspace: open; only this object may change it.
        model: of the workspace's current version.
        options: see :class:`Options`.
    """

    def __init__(self, workspace: Workspace, model: Classifier, options: Options | None = None):
        self.workspace, self.options = workspace, options or Options()
        self.measures, self.costly = Measures(), Lock()
        self.learner = Learner(self._served(model, workspace.current))
        self.batcher = Batcher(lambda: self.learner.served, observe=self.measures.batches.observe)
        self.gallery = Gallery(lambda: self.workspace.kept(self.learner.served.version), self._embedded)
        self.gallery.update()
        self.measures.watch("cifnet_version", "Version that is served", lambda: self.learner.served.version)
        self.measures.watch("cifnet_classes", "Classes known", lambda: len(self.model.class_names))
        self.measures.watch(
            "cifnet_waiting_photos", "Photos taken in, not yet answered", lambda: self.batcher.under_way
        )
        self.measures.watch("cifnet_waiting_changes", "Changes asked for, not yet done", lambda: self.learner.queued)

    @property
    def model(self) -> Classifier:
        """The model that answers now."""
        return self.learner.served.model

    def close(self) -> None:
        """Finish what was asked for, and close the workspace."""
        self.learner.close()
        self.gallery.close()
        self.batcher.close()
        self.workspace.close()

    def decoder(self, content: bytes) -> Callable[[], np.ndarray]:
        """Return a function that decodes a photo to the square that the model takes."""
        model = self.model
        return partial(decoded, content, model.image_size, model.crop_ratio, self.options.limits)

    def answer(self, file: str, scored: Scored, top: int) -> answers.PhotoAnswer:
        """Return the answer for one photo.

        Args:
            file: name that the photo was sent with.
            scored: the model's result.
            top: number of classes.
        """
        names = scored.served.model.class_names
        best = scored.probabilities.topk(min(top, len(names)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        self.measures.classified.inc()
        candidates = [answers.Candidate(name=names[column], probability=share) for column, share in pairs]
        verdict = scored.verdict
        if verdict.known is False:
            self.measures.unknown.inc()
        return answers.PhotoAnswer(
            file=printable(file),
            classes=candidates,
            known=verdict.known,
            novelty=verdict.novelty,
            p_value=verdict.p_value,
            answers=None if verdict.answers is None else list(verdict.answers),
            nearest=self.gallery.nearest(candidates[0].name, scored.z),
        )

    def audit(self) -> answers.Audit:
        """Return the doubtful labels among the kept photos, and accuracy by number of photos."""
        served = self.learner.served
        return audited(served.model, self.gallery, self.workspace.kept(served.version))

    def _embedded(self, name: str) -> Future[Scored]:
        return self.batcher.submit(self.decoder(self.workspace.photo(name).read_bytes()))

    def group(self, files: Sequence[tuple[str, bytes]]) -> answers.Groups:
        """Group photos by likeness, and suggest for each group the class that most of its photos are given."""
        waiting = [(name, self.batcher.submit(self.decoder(content))) for name, content in files]
        good: list[tuple[int, str, Scored]] = []
        bad: list[answers.Unreadable] = []
        for position, (name, future) in enumerate(waiting):
            error = future.exception()
            if error is None:
                good.append((position, printable(name), future.result()))
            elif isinstance(error, UnreadableImage):
                bad.append(answers.Unreadable(file=printable(name), reason=str(error)))
            else:
                raise error
        groups = []
        for rows in inspection.groups_of(stack([scored.z for _, _, scored in good])):
            members = [good[row] for row in rows]
            mean = stack([scored.probabilities for _, _, scored in members]).mean(dim=0)
            suggestion = members[0][2].served.model.class_names[int(mean.argmax())]
            places = [position for position, _, _ in members]
            groups.append(answers.Group(files=[n for _, n, _ in members], positions=places, suggestion=suggestion))
        return answers.Groups(groups=groups, unreadable=bad)

    # ------------------------------------------------------------------ teach

    def stage(self, files: Sequence[tuple[str, IO[bytes]]], class_name: str | None) -> Staged:
        """Write photos into a folder for the learner; each is decoded once, to report unreadable ones early."""
        model, limits = self.model, self.options.limits
        readable = partial(decoded, size=model.image_size, crop_ratio=model.crop_ratio, limits=limits)
        photos: Iterator[Upload] = uploads(files, limits, zips=True)
        return stage(photos, class_name, self.workspace.folder / "incoming", limits, readable)

    def extend(self, staged: Staged, dry_run: bool) -> Job:
        """Queue a lesson; the job removes the staged photos."""
        try:
            return self._submit("extend", partial(self._extend, staged, dry_run), staged.remove)
        except BaseException:
            staged.remove()
            raise

    def _extend(self, staged: Staged, dry_run: bool, job: Job) -> tuple[Served | None, Result]:
        start, old = time.perf_counter(), self.model
        staged.leave_out(self.workspace.kept(self.workspace.current))
        lesson = taught(old, staged, job.progress)
        note = "; ".join(old.warnings_of(staged.names)) or None
        version = None
        if not dry_run:
            try:
                version = self.workspace.commit(lesson.model, lesson.change(self._keep(staged)))
            except BaseException:
                self.workspace.remove_unused_photos()
                raise
            self.measures.learned.inc(sum(lesson.learned.values()))
        result = answers.Lesson(
            version=version.number if version else None,
            learned=lesson.learned,
            unreadable=[answers.Unreadable(file=printable(n), reason=reason) for n, reason in staged.unreadable],
            held_back_accuracy=lesson.score.percent,
            held_back_photos=lesson.score.total,
            old_accuracy_before=lesson.old_before,
            old_accuracy_after=lesson.old_after,
            seconds=time.perf_counter() - start,
            note=note,
        )
        return (self._served(lesson.model, version.number) if version else None), {"lesson": result}

    def _keep(self, staged: Staged) -> dict[str, list[str]]:
        if not self.options.keep_photos:
            return {}
        self.workspace.keep(staged.folder / file for file, _ in staged.files)
        return {name: staged.of_class(name) for name in staged.names}

    # ------------------------------------------------------------------ change

    def forget(self, name: str) -> Job:
        """Queue forgetting a class: exactly where all of its photos are kept, else from what can be predicted."""
        return self._submit("forget", partial(self._forget, name))

    def _forget(self, name: str, job: Job) -> tuple[Served | None, Result]:
        old = self.model
        require(old, name)
        if len(old.class_names) == 1:
            raise RequestError(422, f"'{printable(name)}' is the only class: teach another one before it is forgotten")
        with self.workspace.photos_of(name, old.counts[name]) as folder:
            possible = old.forget(name).can_be_exact
            done = old.forget(name, folder) if folder is not None and possible else old.forget(name)
        how = "exactly: nothing of its photos remains" if done.exact else "from the answers; its photos still count"
        says = f"forgot '{printable(name)}' {how}"
        version = self.workspace.commit(done.model, Change("forget", says, forgotten=name))
        changed = answers.Changed(version=version.number, says=says, exact=done.exact)
        return self._served(done.model, version.number), {"changed": changed}

    def rename(self, old: str, new: str) -> Job:
        """Queue giving a class another name."""
        return self._submit("rename", partial(self._rename, old, new))

    def _rename(self, old: str, new: str, job: Job) -> tuple[Served | None, Result]:
        model = self.model.clone()
        require(model, old)
        model.rename(old, new)
        says = f"renamed '{printable(old)}' to '{printable(new)}'"
        version = self.workspace.commit(model, Change("rename", says, renamed=(old, new)))
        return self._served(model, version.number), {"changed": answers.Changed(version=version.number, says=says)}

    def undo(self) -> Job:
        """Queue going back by one change."""
        return self._submit("undo", lambda job: self._move("undid", self.workspace.earlier(), self.workspace.undo))

    def redo(self) -> Job:
        """Queue doing again what was undone last."""
        return self._submit("redo", lambda job: self._move("did again", self.workspace.later(), self.workspace.redo))

    def go_to(self, number: int) -> Job:
        """Queue serving another version."""
        work = partial(self.workspace.go_to, number)
        return self._submit("go to", lambda job: self._move("went to", self.workspace.version(number).number, work))

    def purge(self, photos: Literal["forgotten", "all"]) -> Job:
        """Queue deleting kept photos, and all versions but the served one, for good."""
        return self._submit("purge", partial(self._purge, photos))

    def _purge(self, photos: Literal["forgotten", "all"], job: Job) -> tuple[Served | None, Result]:
        count = self.workspace.purge(every=photos == "all")
        says = f"deleted {count} {'photo' if count == 1 else 'photos'} and all other versions for good"
        return None, {"changed": answers.Changed(version=self.workspace.current, says=says)}

    def _move(self, did: str, number: int, record: Callable[[], Version]) -> tuple[Served, Result]:
        """Serve a stored version: its bundle is read before the journal says that it is served."""
        here, model = self.learner.served.version, self.workspace.load(number)
        version = record()
        subject = self.workspace.versions[here] if did == "undid" else version
        says = f"{did}: {subject.change.says}" if did != "went to" else f"went to version {number}"
        return self._served(model, version.number), {"changed": answers.Changed(version=version.number, says=says)}

    def check_writable(self) -> None:
        """Raise RequestError if changes are refused."""
        if self.options.read_only:
            raise RequestError(403, "this service is read-only: it answers, but does not learn")

    def _served(self, model: Classifier, number: int) -> Served:
        """Return a model to be served; what detects unknown photos is prepared now, so that no answer waits for it."""
        served = Served(model, number, self.options.unknown, self.options.coverage)
        served.judging()
        return served

    def _submit(self, action: str, work: Work, always: Callable[[], None] | None = None) -> Job:
        self.check_writable()

        def whole(job: Job) -> tuple[Served | None, Result]:
            try:
                return work(job)
            finally:
                if always is not None:
                    always()

        job = self.learner.submit(action, whole)
        job.result.add_done_callback(lambda _: self.gallery.update())
        return job


def require(model: Classifier, name: str) -> None:
    """Raise RequestError unless the model knows class ``name``."""
    try:
        model.labels([name])
    except UsageError as error:
        raise RequestError(404, str(error)) from error


def stack(rows: Sequence[Tensor]) -> Tensor:
    """Stack rows to a matrix; (0, 0) if there are none."""
    return torch.stack(list(rows)) if rows else torch.zeros(0, 0)
