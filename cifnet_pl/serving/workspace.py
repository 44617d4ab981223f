"""Keep a folder in which every change of a served model is a version, on disk before it is acknowledged.

A workspace holds ``versions/N`` (one bundle per version), ``photos`` (what was taught here, if photos are kept),
``incoming`` (uploads that are being learned) and ``journal.jsonl``. A change first writes its bundle and then one
record of the journal. Only the record makes the change valid: a bundle without one was never acknowledged, and is
removed when the workspace is opened again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.store import read_bundle
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError
from cifnet_pl.utilities.files import exclusive, new_folder, sync_folder, write_atomic

Record = dict[str, Any]


class Journal:
    """JSON records, one per line, each with a checksum of its own.

    A process that is killed while it writes leaves a torn last line. That record was never acknowledged, so it is
    dropped when the journal is opened again. A damaged line before the last one is an error, because later records
    were built on it.

    Args:
        path: the file; it is made if it is missing.

    Attributes:
        records: everything that was acknowledged, oldest first.

    Raises:
        CheckpointError: a line before the last one is damaged.
        CifnetError: the file cannot be opened for writing.
    """

    def __init__(self, path: Path):
        self.path = path
        self.records: list[Record] = []
        fresh = not path.exists()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._length = self._read()
            os.ftruncate(self._descriptor, self._length)
            os.fsync(self._descriptor)
            if fresh:
                sync_folder(path.parent)
        except OSError as error:
            raise CifnetError(f"cannot open {path}: {error.strerror or error}") from error

    def _read(self) -> int:
        """Fill ``records``; return the number of bytes up to the end of the last complete record."""
        content = self.path.read_bytes()
        position = 0
        while position < len(content):
            end = content.find(b"\n", position) + 1
            record = _decoded(content[position:end]) if end else None
            if record is None:
                if end and end < len(content):
                    line = len(self.records) + 1
                    raise CheckpointError(f"{self.path} is damaged at line {line}: restore the file from a copy")
                break
            self.records.append(record)
            position = end
        return position

    def append(self, record: Record) -> None:
        """Write one record and wait until the disk has it.

        Raises:
            CifnetError: the disk is full or not writable; the journal is as it was.
        """
        line = _encoded(record)
        try:
            _write_all(self._descriptor, line)
            os.fsync(self._descriptor)
        except OSError as error:
            os.ftruncate(self._descriptor, self._length)
            raise CifnetError(f"cannot write {self.path}: {error.strerror or error}; nothing was changed") from error
        self._length += len(line)
        self.records.append(record)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _write_all(descriptor: int, content: bytes) -> None:
    unwritten = memoryview(content)
    while unwritten:
        unwritten = unwritten[os.write(descriptor, unwritten) :]


def _encoded(record: Record) -> bytes:
    text = json.dumps(record, allow_nan=False)  # in the order given: classes have one
    return f"{hashlib.sha256(text.encode()).hexdigest()[:16]} {text}\n".encode()


def _decoded(line: bytes) -> Record | None:
    """Return the record of a line, or None if the line is torn or its checksum is wrong."""
    try:
        record = json.loads(line.partition(b" ")[2])
    except ValueError:
        return None
    return record if isinstance(record, dict) and _encoded(record) == line else None


@dataclass(frozen=True)
class Change:
    """The difference between a version and the one before.

    Attributes:
        what: "open", "extend", "forget" or "rename".
        says: one sentence for people.
        learned: class name → file names of its kept photos.
        forgotten: class that was removed.
        renamed: old and new name of a class.
        scores: percentages that were measured, by name.
    """

    what: str
    says: str
    learned: Mapping[str, list[str]] = field(default_factory=dict)
    forgotten: str | None = None
    renamed: tuple[str, str] | None = None
    scores: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Version:
    """One state of the model.

    Attributes:
        number: 1, 2, …; never used twice.
        parent: the version that was changed, or None for the first.
        change: what was done to it.
        counts: photos learned of each class, by name, in the order of the model's classes.
        when: UTC time, ISO 8601.
        here: whether its bundle is still stored.
    """

    number: int
    parent: int | None
    change: Change
    counts: dict[str, int]
    when: str
    here: bool = True


class History:
    """Versions, and which of them is served. Records change it, in the order in which they were written.

    Undo and redo move along a line of versions; a change after an undo continues the line from there.

    Args:
        keep_versions: number of versions whose bundles are kept; for messages only.

    Attributes:
        versions: all versions by number.
        purged: names of photos that were kept once and deleted for good.
        current: the number of the version that is served.
    """

    def __init__(self, keep_versions: int = 100):
        self.keep_versions = keep_versions
        self.versions: dict[int, Version] = {}
        self.purged: frozenset[str] = frozenset()
        self._line: list[int] = []  # what undo and redo move along
        self._place = -1

    @property
    def current(self) -> int:
        """Number of the version that is served."""
        return self._line[self._place]

    @property
    def can_undo(self) -> bool:
        """Whether there is an earlier version to go back to."""
        return self._place > 0

    @property
    def can_redo(self) -> bool:
        """Whether an undone version can be served again."""
        return self._place + 1 < len(self._line)

    def earlier(self) -> int:
        """Return the version that ``undo`` serves.

        Raises:
            RequestError: there is none.
        """
        if not self.can_undo:
            raise RequestError(409, "there is no change that could be undone")
        return self._line[self._place - 1]

    def later(self) -> int:
        """Return the version that ``redo`` serves.

        Raises:
            RequestError: there is none.
        """
        if not self.can_redo:
            raise RequestError(409, "there is no undone change that could be done again")
        return self._line[self._place + 1]

    def version(self, number: int) -> Version:
        """Return a version whose bundle is stored.

        Raises:
            RequestError: there is no such version, or its bundle was removed.
        """
        version = self.versions.get(number)
        if version is None:
            raise RequestError(404, f"there is no version {number}: the newest is {max(self.versions)}")
        if not version.here:
            raise RequestError(
                410, f"version {number} is no longer stored: only the newest {self.keep_versions} are kept"
            )
        return version

    def compare(self, before: int, after: int) -> dict[str, tuple[int | None, int | None]]:
        """Return the classes whose number of learned photos differs between two versions.

        Args:
            before, after: numbers of the versions.

        Returns:
            Class name → both numbers; None if the version does not know the class.
        """
        old, new = self.version(before).counts, self.version(after).counts
        names = [*old, *(name for name in new if name not in old)]
        return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}

    def kept(self, number: int) -> dict[str, list[str]]:
        """Return the file names of the kept photos of each class of a version."""
        changes: list[Change] = []
        at: int | None = number
        while at is not None:
            changes.append(self.versions[at].change)
            at = self.versions[at].parent
        kept: dict[str, list[str]] = {}
        for change in reversed(changes):
            if change.forgotten is not None:
                kept.pop(change.forgotten, None)
            if change.renamed is not None and change.renamed[0] in kept:
                kept[change.renamed[1]] = kept.pop(change.renamed[0])
            for name, files in change.learned.items():
                kept[name] = list(dict.fromkeys([*kept.get(name, []), *files]))
        purged = self.purged
        return {name: [file for file in files if file not in purged] for name, files in kept.items()}

    def apply(self, record: Record) -> None:
        """Apply a record of the journal."""
        event = record["what"]
        if event == "dropped":
            dropped = set(record["numbers"])
            self.versions |= {n: replace(self.versions[n], here=False) for n in dropped}
            position = sum(n not in dropped for n in self._line[: self._place])
            self._line, self._place = [n for n in self._line if n not in dropped], position
            return
        if event == "purged":
            self.purged |= set(record["names"])
            return
        number = record["number"]
        if event == "undo":
            self._place -= 1
        elif event == "redo":
            self._place += 1
        else:
            if event == "version":
                version = _version(record)
                self.versions = {**self.versions, number: version}
                self.purged -= {name for files in version.change.learned.values() for name in files}
            self._line = [*self._line[: self._place + 1], number]
            self._place = len(self._line) - 1


def plain(change: Change) -> Record:
    """Return a change as the journal stores it."""
    renamed = list(change.renamed) if change.renamed else None
    return {
        "what": change.what,
        "says": change.says,
        "learned": {name: list(files) for name, files in change.learned.items()},
        "forgotten": change.forgotten,
        "renamed": renamed,
        "scores": dict(change.scores),
    }


def _version(record: Record) -> Version:
    stored = dict(record["change"])
    stored["renamed"] = tuple(stored["renamed"]) if stored["renamed"] else None
    return Version(record["number"], record["parent"], Change(**stored), dict(record["counts"]), record["when"])


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
