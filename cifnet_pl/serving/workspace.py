"""Keep a folder in which every change of a served model is a version, on disk before it is
acknowledged.

A workspace holds ``versions/N`` (one bundle per version), ``photos`` (what was taught here, if
photos are kept), ``incoming`` (uploads that are being learned) and ``journal.sqlite``. A change
first writes its bundle and then the journal, in one transaction. Only the journal makes the change
valid: a bundle that it does not name was never acknowledged, and is removed when the workspace is
opened again.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.store import read_bundle
from cifnet_pl.serving.refusals import RequestError
from cifnet_pl.serving.uploads import learned_images
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError, explained
from cifnet_pl.utilities.files import exclusive, new_folder, rendered, write_bytes
from cifnet_pl.utilities.text import number_of

LOG = logging.getLogger("cifnet_pl.serving")
JOURNAL = "journal.sqlite"
FORMAT = 2
IMAGE = re.compile(r"[0-9a-f]{64}\.[a-z0-9]{1,5}")
"""File name of a kept photo: the SHA-256 of its content, and the extension of its format."""

TABLES = Path(__file__).with_name("journal.sql")
BRING = "INSERT INTO inbox (file, sent, since) VALUES (?, ?, ?) ON CONFLICT (file) DO "
AGAIN = BRING + "UPDATE SET sent = excluded.sent, since = excluded.since, gone = 0"
ONCE = BRING + "NOTHING"

EARLIER = (
    "SELECT place, version FROM line WHERE place < (SELECT place FROM model) ORDER BY place DESC"
    " LIMIT 1"
)
LATER = (
    "SELECT place, version FROM line WHERE place > (SELECT place FROM model) ORDER BY place LIMIT 1"
)


@dataclass(frozen=True)
class Change:
    """The difference between a version and the one before.

    Attributes:
        what: "open", "extend", "forget", "rename", "move" or "join".
        says: one sentence for people.
        learned: class name → file names of its kept photos.
        forgotten: class that was removed; some of its photos may be learned anew.
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
        stored: whether its bundle is still stored.
    """

    number: int
    parent: int | None
    change: Change
    counts: dict[str, int]
    when: str
    stored: bool


class Waiting(NamedTuple):
    """A photo that waits to be decided: the name of its file, and the path that it was sent
    with.
    """

    file: str
    sent: str


class Workspace:
    """The versions of one model in a folder, and the journal that says which of them is served.

    Only one process may have a workspace open, and only one thread may change it; any thread may
    read.

    Args:
        folder: made if it is missing.
        model: version 1 of a new workspace; an existing one must have begun with the same model. It
            may know no class.
        keep_versions: number of bundles to keep; the oldest are removed beyond it.
        trust: whether versions may import heads and networks from outside the package.
        images: folder whose photos a new workspace keeps, as far as the model has learned them;
            None for none.

    Raises:
        UsageError: another process has the workspace open, or it began with another model.
        CheckpointError: its journal is damaged, or of another format.
        CifnetError: the folder cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        model: Classifier,
        keep_versions: int = 100,
        trust: bool = False,
        images: Path | None = None,
    ):
        self.folder = folder
        self.keep_versions = keep_versions
        self.trust = trust
        self._empty = None if model.class_names else model.clone()
        self._backbone = model.backbone
        self._device = model.device
        self._lock = RLock()
        with ExitStack() as stack:
            stack.enter_context(exclusive(folder / "workspace"))
            begun = self._open(stack, model)
            self._remove_leftovers()
            shutil.rmtree(folder / "incoming", ignore_errors=True)
            (folder / "incoming").mkdir()
            self.remove_unused_images()
            if not begun:
                says = f"{number_of(len(model.class_names), 'class')} from the model that was given"
                if images is None:
                    learned = {}
                else:
                    learned = self._bring(model, images)
                self.commit(
                    model,
                    Change("open", says if model.class_names else "began with no class", learned),
                )
            self._stack = stack.pop_all()

    def _open(self, stack: ExitStack, model: Classifier) -> bool:
        """Open the journal; return whether there are versions already."""
        path = self.folder / JOURNAL
        about = json.dumps(_about(model))
        damaged = explained(
            CheckpointError, f"{path} is damaged", sqlite3.DatabaseError, end="; use a copy of it"
        )
        with damaged, explained(CifnetError, f"cannot open {path}", sqlite3.OperationalError):
            self._journal = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            stack.callback(self._journal.close)
            # A transaction ends when the truncated rollback journal is on the disk.
            self._journal.executescript("PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = FULL")
            ((written,),) = self._rows("PRAGMA user_version")
            if written == 0:
                self._journal.executescript(rendered(TABLES, format=FORMAT))
            elif written != FORMAT:
                raise CheckpointError(
                    f"{path} has format {written}, expected {FORMAT}: choose another --workspace"
                )
            self._journal.execute(
                "INSERT INTO model SELECT ?, NULL WHERE NOT EXISTS (SELECT 1 FROM model)", [about]
            )
            ((first,),) = self._rows("SELECT about FROM model")
            ((last,),) = self._rows("SELECT coalesce(max(number), 0) FROM version")
        if first != about:
            raise UsageError(
                f"the workspace {self.folder} began with another model: choose another with"
                " --workspace"
            )
        # A kill leaves at most one version that the journal does not name.
        newest = max(
            (int(entry.name) for entry in self._bundles() if entry.name.isdecimal()), default=0
        )
        if newest > last + 1:
            raise CheckpointError(
                f"{path} ends with version {last}, but {newest} is stored: restore it from a copy"
            )
        return bool(last)

    # ------------------------------------------------------------------ reading

    @property
    def current(self) -> int:
        """Number of the version that is served."""
        ((number,),) = self._rows("SELECT version FROM line JOIN model USING (place)")
        return int(number)

    @property
    def can_undo(self) -> bool:
        """Whether there is an earlier version to go back to."""
        return bool(self._rows(EARLIER))

    @property
    def can_redo(self) -> bool:
        """Whether an undone version can be served again."""
        return bool(self._rows(LATER))

    @property
    def versions(self) -> dict[int, Version]:
        """All versions by number, oldest first."""
        rows = self._rows(
            "SELECT number, parent, change, counts, at, stored FROM version ORDER BY number"
        )
        return {
            number: Version(number, parent, _parsed(change), json.loads(counts), at, bool(stored))
            for number, parent, change, counts, at, stored in rows
        }

    def version(self, number: int) -> Version:
        """Return a version whose bundle is stored.

        Raises:
            RequestError: there is no such version, or its bundle was removed.
        """
        versions = self.versions
        if number not in versions:
            raise RequestError(404, f"there is no version {number}: the newest is {max(versions)}")
        if not versions[number].stored:
            raise RequestError(
                410,
                f"version {number} is no longer stored: the newest {self.keep_versions} are kept",
            )
        return versions[number]

    def kept(self, number: int) -> dict[str, list[str]]:
        """Return the file names of the kept photos of each class of a version."""
        kept: dict[str, list[str]] = {}
        for change in (version.change for version in self._line(number)):
            if change.forgotten is not None:
                kept.pop(change.forgotten, None)
            if change.renamed is not None and change.renamed[0] in kept:
                kept[change.renamed[1]] = kept.pop(change.renamed[0])
            for name, files in change.learned.items():
                kept[name] = list(dict.fromkeys([*kept.get(name, []), *files]))
        here = self._names()
        return {name: [file for file in files if file in here] for name, files in kept.items()}

    def waiting(self) -> list[Waiting]:
        """Return the photos that wait to be decided, in the order they came."""
        current = self.current
        here = self._names()
        kept = {file for files in self.kept(current).values() for file in files}
        learned = {
            file: version.number
            for version in self._line(current)
            for files in version.change.learned.values()
            for file in files
        }
        rows = self._rows("SELECT file, sent, since FROM inbox WHERE NOT gone ORDER BY number")
        return [
            Waiting(file, sent)
            for file, sent, since in rows
            if file in here and file not in kept and learned.get(file, 0) <= since
        ]

    def _line(self, number: int) -> list[Version]:
        """Return the versions that led to a version, and itself, the first first."""
        versions = self.versions
        line = []
        at: int | None = number
        while at is not None:
            line.append(versions[at])
            at = versions[at].parent
        return line[::-1]

    def bundle(self, number: int) -> Path:
        """Return the bundle of a stored version; RequestError for one that knows no class."""
        if not self.version(number).counts:
            raise RequestError(409, f"version {number} knows no class yet")
        return self._bundle(number)

    def load(self, number: int) -> Classifier:
        """Read the model of a version; all versions share the backbone of the model that the
        workspace began with.
        """
        if self._empty is not None and not self.version(number).counts:
            return self._empty.clone()
        return read_bundle(self.bundle(number), trust=self.trust, backbone=self._backbone).to(
            self._device
        )

    def image(self, name: str) -> Path:
        """Return the file of a kept photo.

        Raises:
            RequestError: there is no such photo.
        """
        path = self.folder / "images" / name
        if not IMAGE.fullmatch(name) or not path.is_file():
            raise RequestError(404, "there is no such photo in the workspace")
        return path

    def images_of(self, name: str, count: int) -> list[Path] | None:
        """Return the kept photos of a class of the current version; None unless all that it learned
        are kept.

        Args:
            name: of the class.
            count: number of photos that it was learned from.
        """
        files = self.kept(self.current).get(name, [])
        if len(files) == count:
            return [self.folder / "images" / file for file in files]
        return None

    def incoming(self) -> Path:
        """Make a folder for the files of one request; what a killed process leaves goes when a
        workspace is opened.
        """
        return Path(tempfile.mkdtemp(dir=self.folder / "incoming"))

    # ------------------------------------------------------------------ changes

    def receive(self, images: Mapping[str, tuple[str, bytes]], again: bool) -> list[str]:
        """Keep photos until they are decided; return once the disk has them.

        Args:
            photos: name of the file → the path that the photo was sent with, and its content; none
                of them waits.
            again: whether those that were taken away or forgotten wait again.

        Returns:
            Names of the files that wait now.

        Raises:
            CifnetError: the disk is full or not writable; nothing was changed.
        """
        with self._lock:  # no one removes what is not yet in the journal
            for file, (_, content) in images.items():
                if not (target := self.folder / "images" / file).is_file():
                    write_bytes(target, content)
            new = []
            with self._transaction():
                for file, (sent, _) in images.items():
                    row = file, sent.encode(errors="replace").decode(), self.current
                    new += [file] * self._journal.execute(AGAIN if again else ONCE, row).rowcount
            return new

    def remove(self, images: Iterable[str], back: bool) -> None:
        """Take away photos that wait, or take them ``back``; their files stay until the workspace
        is opened again.
        """
        rows = [(not back, file) for file in images if IMAGE.fullmatch(file)]
        with self._transaction():
            self._journal.executemany("UPDATE inbox SET gone = ? WHERE file = ?", rows)

    def commit(self, model: Classifier, change: Change) -> Version:
        """Store a changed model as a new version and serve it; return once both are on the disk.

        Args:
            model: the changed model.
            change: what was done.

        Raises:
            CifnetError: the disk is full or not writable; nothing was changed.
        """
        number = max(self.versions, default=0) + 1
        at = _now()
        parent = self.current if number > 1 else None
        with new_folder(self._bundle(number)) as temporary:
            if model.class_names:
                model.save(temporary)
        row = (number, json.dumps(asdict(change)), parent, json.dumps(model.counts), at)
        try:
            with self._transaction():
                self._journal.execute(
                    "INSERT INTO version (number, change, parent, counts, at) VALUES (?,?,?,?,?)",
                    row,
                )
                self._continue(change.what, number)
        except BaseException:
            shutil.rmtree(self._bundle(number), ignore_errors=True)
            raise
        try:
            self._drop(
                [n for n, version in self.versions.items() if version.stored][: -self.keep_versions]
            )
        except (CifnetError, OSError) as error:  # the change is stored: it must not be refused
            LOG.warning("old versions were not removed: %s", error)
        return self.versions[number]

    def undo(self) -> tuple[Version, Classifier]:
        """Serve the version before the current one; RequestError if there is none."""
        return self._step("undo", self._rows(EARLIER), "there is no change that could be undone")

    def redo(self) -> tuple[Version, Classifier]:
        """Serve the version that was undone last; RequestError if there is none."""
        return self._step(
            "redo", self._rows(LATER), "there is no undone change that could be done again"
        )

    def go_to(self, number: int) -> tuple[Version, Classifier]:
        """Serve any stored version; this is a change that can be undone."""
        model = self.load(number)
        with self._transaction():
            self._continue("go to", number)
        return self.version(number), model

    def purge(self, every: bool) -> int:
        """Delete photos, and all versions but the served one, for good.

        Args:
            every: all kept photos; otherwise those that the served version did not learn.

        Returns:
            Number of photos.
        """
        current = self.current
        self._drop(
            [
                number
                for number, version in self.versions.items()
                if version.stored and number != current
            ]
        )
        if every:
            stay = set()
        else:
            stay = {name for files in self.kept(current).values() for name in files}
        stay.update(one.file for one in self.waiting())
        gone = self._names() - stay
        with self._transaction():
            rows = [(file,) for file in gone]
            self._journal.executemany("UPDATE inbox SET gone = 1, sent = '' WHERE file = ?", rows)
        for file in gone:
            (self.folder / "images" / file).unlink()
        return len(gone)

    def remove_unused_images(self) -> None:
        """Remove photos that neither wait nor were learned: taken away, or of a lesson that was
        refused or killed.
        """
        with self._lock:
            learned = {
                name
                for v in self.versions.values()
                for files in v.change.learned.values()
                for name in files
            }
            waiting = {file for (file,) in self._rows("SELECT file FROM inbox WHERE NOT gone")}
            for file in self._names() - learned - waiting:
                (self.folder / "images" / file).unlink()

    def close(self) -> None:
        """Release the workspace for other processes."""
        self._stack.close()

    # ------------------------------------------------------------------ details

    def _bring(self, model: Classifier, images: Path) -> dict[str, list[str]]:
        """Keep the photos of a folder that a model has learned; return their file names by
        class.
        """
        learned: dict[str, list[str]] = {}
        (self.folder / "images").mkdir(exist_ok=True)
        for path, file, name in learned_images(model, images):
            if file not in learned.setdefault(name, []):
                _link(path, self.folder / "images" / file)
                learned[name].append(file)
        return learned

    def _bundle(self, number: int) -> Path:
        return self.folder / "versions" / f"{number:06d}"

    def _bundles(self) -> list[Path]:
        return list((self.folder / "versions").glob("*"))

    def _names(self) -> set[str]:
        return {path.name for path in (self.folder / "images").glob("*")}

    def _rows(self, query: str) -> list[Any]:
        with self._lock:
            return self._journal.execute(query).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Write to the journal; at the end of the block the disk has it, or nothing was changed."""
        with self._lock:
            try:
                self._journal.execute("BEGIN IMMEDIATE")
                yield
                self._journal.execute("COMMIT")
            except sqlite3.Error as error:
                if self._journal.in_transaction:
                    self._journal.execute("ROLLBACK")
                where = self.folder / JOURNAL
                raise CifnetError(f"cannot write {where}: {error}; nothing was changed") from error

    def _continue(self, what: str, number: int) -> None:
        """Continue the line of versions with one that is served from now on."""
        self._journal.execute("DELETE FROM line WHERE place > (SELECT place FROM model)")
        self._serve(
            what, self._journal.execute("INSERT INTO line (version) VALUES (?)", [number]).lastrowid
        )

    def _step(
        self, what: str, found: list[tuple[int, int]], none: str
    ) -> tuple[Version, Classifier]:
        """Serve a version of the line, once its bundle is read."""
        if not found:
            raise RequestError(409, none)
        place, number = found[0]
        model = self.load(number)
        with self._transaction():
            self._serve(what, place)
        return self.version(number), model

    def _serve(self, what: str, place: int | None) -> None:
        self._journal.execute("UPDATE model SET place = ?", [place])
        self._journal.execute(
            "INSERT INTO journal (at, what, serves) VALUES (?, ?, ?)", (_now(), what, self.current)
        )

    def _drop(self, numbers: Iterable[int]) -> None:
        """Remove the bundles of versions other than the current one."""
        rows = [(number,) for number in numbers if number != self.current]
        if rows:
            with self._transaction():
                self._journal.executemany("UPDATE version SET stored = 0 WHERE number = ?", rows)
                self._journal.executemany("DELETE FROM line WHERE version = ?", rows)
            self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove bundles that the journal does not name: half-written ones of killed processes, and
        dropped ones.
        """
        named = {
            self._bundle(number) for number, version in self.versions.items() if version.stored
        }
        for entry in self._bundles():
            if entry not in named:
                shutil.rmtree(entry)


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


@lru_cache(maxsize=10_000)
def _parsed(change: str) -> Change:
    return Change(**json.loads(change))


def _link(file: Path, target: Path) -> None:
    """Link a file to another name; copy it where the file system has no links."""
    try:
        os.link(file, target)
    except OSError:
        shutil.copyfile(file, target)


def _about(model: Classifier) -> dict[str, Any]:
    """Return what identifies a model when its workspace is opened again."""
    return {
        "backbone": model.backbone.name,
        "head": type(model.head).__name__,
        "counts": model.counts,
    }
