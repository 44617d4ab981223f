"""Keep a folder in which every change of a served model is a version, on disk before it is acknowledged.

A workspace holds ``versions/N`` (one bundle per version), ``photos`` (what was taught here, if photos are kept),
``incoming`` (uploads that are being learned) and ``journal.jsonl``. A change first writes its bundle and then one
record of the journal. Only the record makes the change valid: a bundle without one was never acknowledged, and is
removed when the workspace is opened again.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.loading import read_bundle
from cifnet_pl.serving.history import Change, History, Version, plain
from cifnet_pl.serving.journal import Journal, Record
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError
from cifnet_pl.utilities.files import exclusive, new_folder, write_atomic

LOG = logging.getLogger("cifnet_pl.serving")
JOURNAL = "journal.jsonl"
PHOTO = re.compile(r"[0-9a-f]{64}\.[a-z0-9]{1,5}")
"""File name of a kept photo: the SHA-256 of its content, and the extension of its format."""


class Workspace(History):
    """A history in a folder: the versions of one model, and the journal that says which of them is served.

    Only one process may have a workspace open, and only one thread may change it; any thread may read.

    Args:
        folder: made if it is missing.
        model: version 1 of a new workspace; an existing one must have begun with the same model.
        keep_versions: number of bundles to keep; the oldest are removed beyond it.
        trust: whether versions may import heads and networks from outside the package.

    Raises:
        UsageError: another process has the workspace open, or it began with another model.
        CheckpointError: its journal is damaged.
        CifnetError: the folder cannot be written.
    """

    def __init__(self, folder: Path, model: Classifier, keep_versions: int = 100, trust: bool = False):
        super().__init__(keep_versions)
        self.folder, self.trust = folder, trust
        self._backbone, self._device = model.backbone, model.device
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive(folder / "workspace"))
            except UsageError as error:
                raise UsageError(
                    f"another process serves the workspace {folder}: stop it, or choose another"
                ) from error
            self._journal = Journal(folder / JOURNAL)
            stack.callback(self._journal.close)
            for record in self._journal.records:
                self._replay(record)
            self._check_complete()
            self._remove_leftovers()
            shutil.rmtree(folder / "incoming", ignore_errors=True)
            self.remove_unused_photos()
            if not self.versions:
                self.commit(model, Change("open", f"{len(model.class_names)} classes from the model that was given"))
            elif self._journal.records[0]["origin"] != _origin(model):
                raise UsageError(f"the workspace {folder} began with another model: choose another with --workspace")
            self._stack = stack.pop_all()

    # ------------------------------------------------------------------ reading

    def bundle(self, number: int) -> Path:
        """Return the bundle of a stored version."""
        return self.folder / "versions" / f"{self.version(number).number:06d}"

    def load(self, number: int) -> Classifier:
        """Read the model of a version; all versions share the backbone of the model that the workspace began with."""
        return read_bundle(self.bundle(number), trust=self.trust, backbone=self._backbone).to(self._device)

    def photo(self, name: str) -> Path:
        """Return the file of a kept photo.

        Raises:
            RequestError: there is no such photo.
        """
        path = self.folder / "photos" / name
        if not PHOTO.fullmatch(name) or not path.is_file():
            raise RequestError(404, "there is no such photo in the workspace")
        return path

    @contextmanager
    def photos_of(self, name: str, count: int) -> Iterator[Path | None]:
        """Open a folder with the kept photos of a class of the current version.

        Args:
            name: of the class.
            count: number of photos that it was learned from.

        Yields:
            The folder; None unless all photos are kept.
        """
        files = [self.folder / "photos" / file for file in self.kept(self.current).get(name, [])]
        if len(files) != count or not all(file.is_file() for file in files):
            yield None
            return
        (self.folder / "incoming").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder / "incoming") as folder:
            for file in files:
                _link(file, Path(folder) / file.name)
            yield Path(folder)

    # ------------------------------------------------------------------ changes

    def keep(self, files: Iterable[Path]) -> None:
        """Keep photos that are about to be learned; returns once the disk has them.

        Raises:
            CifnetError: the disk is full or not writable.
        """
        for file in files:
            target = self.folder / "photos" / file.name
            if not target.is_file():
                content = file.read_bytes()
                write_atomic(target, lambda out, content=content: out.write(content))  # type: ignore[misc]

    def commit(self, model: Classifier, change: Change) -> Version:
        """Store a changed model as a new version and serve it; return once both are on the disk.

        Args:
            model: the changed model.
            change: what was done, for the journal.

        Raises:
            CifnetError: the disk is full or not writable; nothing was changed.
        """
        number = max(self.versions, default=0) + 1
        target = self.folder / "versions" / f"{number:06d}"
        with new_folder(target) as temporary:
            model.save(temporary)
        record: Record = {
            "what": "version",
            "number": number,
            "parent": self.current if self.versions else None,
            "when": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "counts": model.counts,
            "change": plain(change),
        }
        if not self.versions:
            record["origin"] = _origin(model)
        try:
            self._record(record)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        try:
            self._prune()
        except (CifnetError, OSError) as error:  # the change is stored: it must not be refused
            LOG.warning("old versions were not removed: %s", error)
        return self.versions[number]

    def undo(self) -> Version:
        """Serve the version before the current one; RequestError if there is none."""
        return self._move("undo", self.earlier())

    def redo(self) -> Version:
        """Serve the version that was undone last; RequestError if there is none."""
        return self._move("redo", self.later())

    def go_to(self, number: int) -> Version:
        """Serve any stored version; this is a change that can be undone."""
        return self._move("go_to", self.version(number).number)

    def close(self) -> None:
        """Release the workspace for other processes."""
        self._stack.close()

    def purge(self, every: bool) -> int:
        """Delete photos, and all versions but the served one, for good.

        Args:
            every: all kept photos; otherwise those that the served version did not learn.

        Returns:
            Number of photos.
        """
        stay = set() if every else {name for files in self.kept(self.current).values() for name in files}
        names = sorted(name for name in self._learned() - self.purged - stay if self._file(name).is_file())
        others = [number for number, version in self.versions.items() if version.here and number != self.current]
        self._record({"what": "purged", "names": names})
        if others:
            self._record({"what": "dropped", "numbers": others})
        self._remove_leftovers()
        self.remove_unused_photos()
        return len(names)

    def remove_unused_photos(self) -> None:
        """Remove kept photos that no version learned, because their lesson was refused or its process was killed."""
        learned = self._learned() - self.purged
        folder = self.folder / "photos"
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.name not in learned:
                entry.unlink()

    # ------------------------------------------------------------------ details

    def _move(self, action: str, number: int) -> Version:
        self._record(
            {"what": action, "number": number, "when": datetime.now(timezone.utc).isoformat(timespec="seconds")}
        )
        return self.versions[number]

    def _record(self, record: Record) -> None:
        self._journal.append(record)
        self.apply(record)

    def _replay(self, record: Record) -> None:
        """Apply a record that was read; CheckpointError if another version of the program wrote it."""
        try:
            self.apply(record)
        except (KeyError, TypeError, ValueError) as error:
            where = self.folder / JOURNAL
            raise CheckpointError(f"{where} has a record that this version cannot read: update cifnet_pl") from error

    def _check_complete(self) -> None:
        """Raise CheckpointError if the journal has lost records: a kill leaves at most one version without a record."""
        last, folder = max(self.versions, default=0), self.folder / "versions"
        stored = [int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal()] if folder.is_dir() else []
        if max(stored, default=0) > last + 1:
            raise CheckpointError(
                f"{self.folder / JOURNAL} has lost records, it ends with version {last}, but version {max(stored)} is "
                "stored: restore the file from a copy"
            )

    def _file(self, name: str) -> Path:
        return self.folder / "photos" / name

    def _learned(self) -> set[str]:
        """Return the names of all photos that a version learned."""
        changes = [version.change for version in self.versions.values()]
        return {name for change in changes for files in change.learned.values() for name in files}

    def _prune(self) -> None:
        stored = [number for number, version in self.versions.items() if version.here and number != self.current]
        excess = stored[: max(0, len(stored) + 1 - self.keep_versions)]
        if excess:
            self._record({"what": "dropped", "numbers": excess})
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove versions without a record: half-written ones of killed processes, and dropped ones."""
        known = {f"{number:06d}" for number, version in self.versions.items() if version.here}
        folder = self.folder / "versions"
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.name not in known:
                shutil.rmtree(entry)


def _link(file: Path, target: Path) -> None:
    """Link a file to another name; copy it where the file system has no links."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def _origin(model: Classifier) -> dict[str, Any]:
    """Return what identifies a model when its workspace is opened again."""
    return {"backbone": model.backbone.name, "head": type(model.head).__name__, "counts": model.counts}
