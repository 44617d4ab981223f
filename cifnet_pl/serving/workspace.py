"""A folder in which every change of a served model is a version, durable before it is acknowledged.

A workspace holds ``versions/N`` (one bundle per version), ``photos`` (what was taught here, if photos are kept),
``incoming`` (uploads that are being learned) and ``journal.jsonl``. A change first writes its bundle and then one
record of the journal. The record is what makes the change count: a bundle without one was never acknowledged, and is
removed when the workspace is opened again.
"""

from __future__ import annotations

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
from cifnet_pl.model.loading import read_bundle
from cifnet_pl.serving.journal import Journal, Record
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from cifnet_pl.utilities.files import exclusive, new_folder, write_atomic

JOURNAL = "journal.jsonl"
PHOTO = re.compile(r"[0-9a-f]{64}\.[a-z0-9]{1,5}")
"""File name of a kept photo: the SHA-256 of its content, and the extension of its format."""


@dataclass(frozen=True)
class Change:
    """What a version differs in from the one before.

    Attributes:
        what: "open", "extend", "forget" or "rename".
        says: one sentence for people.
        learned: class name → file names of its kept photos.
        forgotten: class that was removed.
        renamed: old and new name of a class.
        scores: percentages that were measured, by name; only those that were.
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


class Workspace:
    """Versions of one model, and the journal that says which of them is served.

    Only one process may have a workspace open, and only one thread may change it; any thread may read.

    Args:
        folder: made if it is missing.
        model: version 1 of a new workspace; an existing one must have begun with the same model.
        keep_versions: number of bundles to keep; the oldest are removed beyond it.

    Attributes:
        versions: all versions by number.
        current: the number of the version that is served.

    Raises:
        UsageError: another process has the workspace open, or it began with another model.
        CheckpointError: its journal is damaged.
        CifnetError: the folder cannot be written.
    """

    def __init__(self, folder: Path, model: Classifier, keep_versions: int = 100):
        self.folder, self.keep_versions = folder, keep_versions
        self.versions: dict[int, Version] = {}
        self._line: list[int] = []  # what undo and redo move along
        self._place = -1
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
            self._remove_leftovers()
            if not self.versions:
                self.commit(model, Change("open", f"{len(model.class_names)} classes from the model that was given"))
            elif self._journal.records[0]["origin"] != _origin(model):
                raise UsageError(f"the workspace {folder} began with another model: choose another with --workspace")
            self._stack = stack.pop_all()

    # ------------------------------------------------------------------ reading

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
        """The version that ``undo`` serves; RequestError if there is none."""
        if not self.can_undo:
            raise RequestError(409, "there is no change that could be undone")
        return self._line[self._place - 1]

    def later(self) -> int:
        """The version that ``redo`` serves; RequestError if there is none."""
        if not self.can_redo:
            raise RequestError(409, "there is no undone change that could be done again")
        return self._line[self._place + 1]

    def version(self, number: int) -> Version:
        """Version ``number``; RequestError if there is none or its bundle was removed."""
        found = self.versions.get(number)
        if found is None:
            raise RequestError(404, f"there is no version {number}: the newest is {max(self.versions)}")
        if not found.here:
            raise RequestError(
                410, f"version {number} is no longer stored: only the newest {self.keep_versions} are kept"
            )
        return found

    def bundle(self, number: int) -> Path:
        """The bundle of a stored version."""
        return self.folder / "versions" / f"{self.version(number).number:06d}"

    def load(self, number: int) -> Classifier:
        """Read the model of a version, on the CPU."""
        return read_bundle(self.bundle(number))

    def compare(self, before: int, after: int) -> dict[str, tuple[int | None, int | None]]:
        """Photos learned of each class whose number differs between two versions; None where a class is unknown."""
        old, new = self.version(before).counts, self.version(after).counts
        names = [*old, *(name for name in new if name not in old)]
        return {name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)}

    def kept(self, number: int) -> dict[str, list[str]]:
        """File names of the kept photos of each class of a version."""
        changes: list[Change] = []
        at: int | None = number
        while at is not None:
            changes.append(self.versions[at].change)
            at = self.versions[at].parent
        found: dict[str, list[str]] = {}
        for change in reversed(changes):
            if change.forgotten is not None:
                found.pop(change.forgotten, None)
            if change.renamed is not None and change.renamed[0] in found:
                found[change.renamed[1]] = found.pop(change.renamed[0])
            for name, files in change.learned.items():
                found[name] = list(dict.fromkeys([*found.get(name, []), *files]))
        return found

    def photo(self, name: str) -> Path:
        """The file of a kept photo; RequestError for a name that is not one."""
        path = self.folder / "photos" / name
        if not PHOTO.fullmatch(name) or not path.is_file():
            raise RequestError(404, "there is no such photo in the workspace")
        return path

    @contextmanager
    def photos_of(self, name: str, count: int) -> Iterator[Path | None]:
        """A folder with the kept photos of a class of the current version; None unless all ``count`` are kept."""
        files = [self.folder / "photos" / file for file in self.kept(self.current).get(name, [])]
        if len(files) != count or not all(file.is_file() for file in files):
            yield None
            return
        (self.folder / "incoming").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder / "incoming") as folder:
            for file in files:
                os.link(file, Path(folder) / file.name)
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
        """Store a changed model as a new version and serve it; returns once the disk has both.

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
            "change": _plain(change),
        }
        if not self.versions:
            record["origin"] = _origin(model)
        try:
            self._record(record)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        self._prune()
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
        """Let another process open the workspace."""
        self._stack.close()

    # ------------------------------------------------------------------ details

    def _move(self, what: str, number: int) -> Version:
        self._record({"what": what, "number": number, "when": datetime.now(timezone.utc).isoformat(timespec="seconds")})
        return self.versions[number]

    def _record(self, record: Record) -> None:
        self._journal.append(record)
        self._apply(record)

    def _replay(self, record: Record) -> None:
        """Apply a record that was read; CheckpointError for one that another program wrote."""
        try:
            self._apply(record)
        except (KeyError, TypeError, ValueError) as error:
            where = self.folder / JOURNAL
            raise CheckpointError(f"{where} has a record that this version cannot read: update cifnet_pl") from error

    def _apply(self, record: Record) -> None:
        """Change the state as a record of the journal says."""
        what = record["what"]
        if what == "dropped":
            dropped = set(record["numbers"])
            self.versions |= {n: replace(self.versions[n], here=False) for n in dropped}
            place = sum(n not in dropped for n in self._line[: self._place])
            self._line, self._place = [n for n in self._line if n not in dropped], place
            return
        number = record["number"]
        if what == "undo":
            self._place -= 1
        elif what == "redo":
            self._place += 1
        else:
            if what == "version":
                self.versions = {**self.versions, number: _version(record)}
            self._line = [*self._line[: self._place + 1], number]
            self._place = len(self._line) - 1

    def _prune(self) -> None:
        stored = [number for number, version in self.versions.items() if version.here and number != self.current]
        excess = stored[: max(0, len(stored) + 1 - self.keep_versions)]
        if excess:
            self._record({"what": "dropped", "numbers": excess})
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove what no record speaks of: half-written versions of killed processes, uploads, dropped versions."""
        known = {f"{number:06d}" for number, version in self.versions.items() if version.here}
        folder = self.folder / "versions"
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.name not in known:
                shutil.rmtree(entry)
        shutil.rmtree(self.folder / "incoming", ignore_errors=True)


def _origin(model: Classifier) -> dict[str, Any]:
    """What a model is recognised by when its workspace is opened again."""
    return {"backbone": model.backbone.name, "head": type(model.head).__name__, "counts": model.counts}


def _plain(change: Change) -> Record:
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
