"""Keep a folder in which every change of a served model is a version.

A version is on the disk before it is acknowledged. A workspace holds ``versions/N`` (one bundle per
version), ``images`` (those that wait, and those that were learned, if images are kept),
``incoming`` (uploads that are being read) and ``journal.sqlite``. A change first writes its bundle
and then the journal, in one transaction. Only the journal makes the change valid: a bundle that it
does not name was never acknowledged, and is removed when the workspace is opened again.
"""

import json
import logging
import os
import re
import shutil
import sqlite3
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import date
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from threading import RLock
from typing import Any, Literal, NamedTuple

from pydantic import Field

from cifnet_pl.images.files import find_images
from cifnet_pl.images.image import UnreadableImage, content_hash
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.store import load_bundle
from cifnet_pl.serving.gate import ApiObject, Upload, file_name, folder_of
from cifnet_pl.serving.messages import RequestError
from cifnet_pl.serving.served import JOURNAL, SERVED_VERSION, bundle_of_version
from cifnet_pl.utilities.errors import (
    CheckpointError,
    CifnetError,
    UsageError,
    explained,
)
from cifnet_pl.utilities.files import exclusive, new_folder, rendered, write_bytes
from cifnet_pl.utilities.text import iso_now, number_of

LOGGER = logging.getLogger("cifnet_pl.serving")
FORMAT = 5
"""Format of the journal."""

TABLES = Path(__file__).with_name("journal.sql")
RESERVE = "reserve"
RESERVE_BYTES = 2**20
"""Size of a file that is given up where a full disk would refuse what frees space."""

KEPT_SECONDS = 7 * 24 * 3600
"""Time for which an image that was taken away can be put back: a week."""

IMAGE_NAME = re.compile(r"[0-9a-f]{64}\.[a-z0-9]{1,5}")
"""File name of a kept image: the SHA-256 of its content, and the extension of its format."""

INSERT_WAITING = (
    f"INSERT INTO inbox (file, since) VALUES (?, ({SERVED_VERSION}))"
    " ON CONFLICT (file) DO UPDATE SET since = excluded.since, gone = NULL WHERE ?"
)
"""Lets an image wait; one that waited before only where the last value is true."""

NAME_WAITING = f"UPDATE inbox SET name = ?, named = ({SERVED_VERSION}) WHERE file = ?"
WAITING_ROWS = """
    SELECT inbox.number, inbox.file, inbox.name, inbox.named, inbox.since,
           group_concat(sent.path, char(10))
    FROM inbox LEFT JOIN sent USING (file) WHERE inbox.gone IS NULL
    GROUP BY inbox.number ORDER BY inbox.number
"""
"""Images that may wait, with the paths that they were sent with, one a line."""

INSERT_VERSION = (
    "INSERT INTO version (number, change, counts, at, parent)"
    f" VALUES (?, ?, ?, ?, ({SERVED_VERSION}))"
)
NAMES_WITH_VERSIONS = """
    BEGIN;
    ALTER TABLE inbox ADD COLUMN named INTEGER;
    UPDATE inbox SET named = (SELECT version FROM line JOIN model USING (place));
    PRAGMA user_version = 5;
    COMMIT;
"""
"""Makes a journal of format 5 of one of format 4, whose names followed each change."""

STEPS = {
    "undo": "SELECT place, version FROM line WHERE place < (SELECT place FROM model)"
    " ORDER BY place DESC LIMIT 1",
    "redo": "SELECT place, version FROM line WHERE place > (SELECT place FROM model)"
    " ORDER BY place LIMIT 1",
}
"""The line has the versions that are stored, in the order in which they were served."""

COUNT_ANSWERS = (
    "INSERT INTO day VALUES (?, ?, ?, ?) ON CONFLICT (date) DO UPDATE SET"
    " asked = max(0, asked + excluded.asked), unsure = max(0, unsure + excluded.unsure),"
    " corrected = max(0, corrected + excluded.corrected)"
)


FilesOfClasses = dict[str, list[str]]
"""Class name → names of the files of its images."""


class Change(ApiObject):
    """The difference between a version and the one that it was made from."""

    action: str
    """open, extend, forget, rename, move or join."""
    message: str
    """One sentence."""
    scores: dict[str, float] = Field(default={})
    """Percentages; new_images is how many images new_accuracy is a share of."""
    learned: FilesOfClasses = Field(default={}, exclude=True)
    """Kept images."""
    forgotten: str | None = Field(default=None, exclude=True)
    """Class that was removed; some of its images may be learned anew."""
    renamed: tuple[str, str] | None = Field(default=None, exclude=True)
    """Old and new name of a class."""

    @property
    def learned_files(self) -> set[str]:
        """Names of the kept images that were learned."""
        return set().union(*self.learned.values())


class Version(Change):
    """One version of the model, with the change that made it."""

    number: int
    """1, 2, …; never used twice."""
    parent: int | None
    """The version that was changed; null for the first."""
    counts: dict[str, int] = Field(exclude=True)
    """Images learned of each class, in the order of the model's classes."""
    classes: int
    images: int
    time: str
    """UTC, ISO 8601."""
    stored: bool
    """Whether its bundle is still stored."""


class WaitingImage(NamedTuple):
    """An image that waits to be labelled.

    Attributes:
        number: larger for images that came later.
        file: name of its file in the workspace.
        path: with which it was sent first.
        folders: names of the folders that it was sent in, each once.
        name: of its class, as someone typed it; None without.
    """

    number: int
    file: str
    path: str
    folders: list[str]
    name: str | None

    @property
    def folder(self) -> str | None:
        """Name of the folder that it was sent in; None for none or several."""
        if len(self.folders) == 1:
            return self.folders[0]
        return None


class LineStep(NamedTuple):
    """A step along the line of versions.

    Attributes:
        place: to which it leads.
        version: there.
        message: what it does, in one sentence.
    """

    place: int
    version: int
    message: str


class DeletedCounts(ApiObject):
    """Numbers of images and versions that a purge deletes for good."""

    learned: int
    """Kept images that the served version did not learn, or all."""
    taken_away: int
    """Images that were taken away from those that wait."""
    versions: int
    """Other versions."""
    files: set[str] = Field(exclude=True)
    """Names of the images' files."""


class Day(ApiObject):
    """Counts of classified images and corrections of one day."""

    date: str
    asked: int
    unsure: int
    """Images for which no class, or several, were likely enough."""
    corrected: int
    """Images whose class someone corrected."""


class Workspace:
    """The versions of one model in a folder, and the journal that says which of them is served.

    Only one process may have a workspace open, and only one thread may change it; any thread may
    read.

    Args:
        folder: made if it is missing.
        model: version 1 of a new workspace; an existing one must have begun with the same model. It
            may know no class.
        keep_versions: number of bundles to keep; the oldest are removed beyond it.
        trust: whether versions may import heads and backbones from outside the package.
        images: folder whose images a new workspace keeps, as far as the model has learned them;
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
        self.images_folder = folder / "images"
        self.versions_folder = folder / "versions"
        self.incoming = folder / "incoming"
        self.keep_versions = keep_versions
        self.trust = trust
        self._empty = None if model.class_names else model.clone()
        self._backbone = model.backbone
        self._lock = RLock()
        with ExitStack() as stack:
            try:
                stack.enter_context(exclusive(folder / "workspace"))
            except UsageError as error:
                raise UsageError(
                    f"another process serves the workspace {folder}: end it, or choose another"
                    " with --workspace"
                ) from error
            self._open_journal(model, stack)
            self._remove_leftovers()
            self._remove_unused_images()
            with self._room():
                if not self.versions:
                    begun = f"began with {number_of(len(model.class_names), 'class')}"
                    first = Change(action="open", message=begun)
                    if images is not None:
                        first.learned = self._link_learned(model, images)
                    self.commit(model, first)
            self._stack = stack.pop_all()

    def _open_journal(self, model: Classifier, stack: ExitStack) -> None:
        """Open the database that alone says which versions and images are valid.

        Args:
            model: the journal must be of it.
            stack: closes the database.
        """
        path = self.folder / JOURNAL
        damaged = f"{path} is damaged"
        with (
            explained(
                CheckpointError,
                damaged,
                sqlite3.DatabaseError,
                end="; use a copy of it",
            ),
            explained(CifnetError, f"cannot open {path}", sqlite3.OperationalError),
        ):
            self._database = sqlite3.connect(
                path, isolation_level=None, check_same_thread=False
            )
            stack.callback(self._database.close)
            self._database.row_factory = sqlite3.Row
            # A transaction ends when the truncated rollback journal is on the disk.
            self._database.executescript(
                "PRAGMA journal_mode = TRUNCATE; PRAGMA synchronous = FULL"
            )
            written = self._value("PRAGMA user_version")
            if written == 0:
                self._database.executescript(rendered(TABLES, format=FORMAT))
            elif written == 4:
                self._database.executescript(NAMES_WITH_VERSIONS)
            elif written != FORMAT:
                found = f"{path} has format {written}, expected {FORMAT}"
                raise CheckpointError(f"{found}: choose another --workspace")
            self._check_model(model)

    def _check_model(self, model: Classifier) -> None:
        """Check that the journal is of this model, and not older than the bundles."""
        about = {
            "backbone": model.backbone.name,
            "head": type(model.head).__name__,
            "counts": model.counts,
        }
        identity = json.dumps(about)
        with self._transaction() as database:
            database.execute(
                "INSERT INTO model SELECT ?, NULL WHERE NOT EXISTS (SELECT 1 FROM model)",
                [identity],
            )
            first = self._value("SELECT about FROM model")
            last = self._value("SELECT coalesce(max(number), 0) FROM version")
        if first != identity:
            raise UsageError(
                f"the workspace {self.folder} began with another model: choose another with"
                " --workspace"
            )
        stored = [path.name for path in self.versions_folder.glob("*")]
        newest = max(map(int, filter(str.isdecimal, stored)), default=0)
        # A kill leaves at most one version that the journal does not name.
        if newest > last + 1:
            journal = self.folder / JOURNAL
            found = f"{journal} ends with version {last}, but {newest} is stored"
            raise CheckpointError(f"{found}: restore it from a copy")

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Change the journal; at the end of the block the disk has it, or nothing was changed.

        Raises:
            CifnetError: the disk is full or not writable, or another process holds the database.
        """
        with self._lock:
            try:
                with self._database:
                    self._database.execute("BEGIN IMMEDIATE")
                    yield self._database
            except sqlite3.OperationalError as error:
                failed = f"cannot write the journal of {self.folder}: {error}"
                raise CifnetError(f"{failed}; nothing was changed") from error

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return the rows of a query of the journal."""
        failed = f"cannot read the journal of {self.folder}"
        with self._lock, explained(CifnetError, failed, sqlite3.OperationalError):
            return self._database.execute(query, values).fetchall()

    def _value(self, query: str) -> Any:
        """Return the value of a query with one row and one column."""
        ((value,),) = self._rows(query)
        return value

    def _link_learned(self, model: Classifier, folder: Path) -> FilesOfClasses:
        """Keep the images of a folder that a model has learned, found by their content."""
        self.images_folder.mkdir(exist_ok=True)
        names_of = model.classes_of_hashes()
        learned = defaultdict[str, set[str]](set)
        for path in find_images(folder):
            try:
                content = path.read_bytes()
                names = names_of.get(content_hash(content))
                if not names:
                    continue
                file = self.images_folder / file_name(content)
            except (OSError, UnreadableImage):
                # Within an archive, or of a format that is not kept.
                continue
            for name in names:
                learned[name].add(file.name)
            if file.exists():
                continue
            try:
                os.link(path, file)
            except OSError:  # the file system has no links
                shutil.copyfile(path, file)
        return {name: sorted(files) for name, files in learned.items()}

    def close(self) -> None:
        """Release the workspace for other processes."""
        self._stack.close()

    # ------------------------------------------------------------------ versions

    @property
    def current(self) -> int:
        """Number of the version that is served."""
        return int(self._value(SERVED_VERSION))

    def step(self, action: Literal["undo", "redo"]) -> LineStep | None:
        """Return where a step along the line leads, None at its end.

        After a jump to another version, undo leads to the one that was served before, not to the
        one that the current one was made from.
        """
        served = self.current
        versions = self.versions
        for place, number in self._rows(STEPS[action]):
            message = f"went to version {number}"
            if action == "undo" and versions[served].parent == number:
                message = f"undid: {versions[served].message}"
            if action == "redo" and versions[number].parent == served:
                message = f"did again: {versions[number].message}"
            return LineStep(place, number, message)
        return None

    @property
    def versions(self) -> dict[int, Version]:
        """All versions by number, oldest first."""
        rows = self._rows(
            "SELECT number, change, counts, parent, at, stored FROM version ORDER BY number"
        )
        return {row[0]: _parsed(row) for row in rows}

    @property
    def stored_versions(self) -> list[int]:
        """Numbers of the versions whose bundle is stored, oldest first."""
        return [number for number, version in self.versions.items() if version.stored]

    def version(self, number: int) -> Version:
        """Return a version whose bundle is stored.

        Raises:
            RequestError: there is no such version, or its bundle was removed.
        """
        versions = self.versions
        if number not in versions:
            missing = f"there is no version {number}: the newest is {max(versions)}"
            raise RequestError(404, missing)
        if not versions[number].stored:
            kept = f"the newest {self.keep_versions} are kept"
            raise RequestError(410, f"version {number} is no longer stored: {kept}")
        return versions[number]

    def bundle(self, number: int) -> Path:
        """Return the bundle of a stored version; RequestError for one that knows no class."""
        if not self.version(number).counts:
            raise RequestError(409, f"version {number} knows no class yet")
        return bundle_of_version(self.folder, number)

    def load(self, number: int) -> Classifier:
        """Read the model of a version.

        All versions share the backbone of the model that the workspace began with.
        """
        if self._empty is not None and not self.version(number).counts:
            return self._empty.clone()
        bundle = self.bundle(number)
        model = load_bundle(bundle, trust=self.trust, backbone=self._backbone)
        return model.to(self._backbone.device)

    def commit(
        self,
        model: Classifier,
        change: Change,
        deleted: Collection[str] = (),
    ) -> int:
        """Store a changed model as a new version and serve it; return once both are on the disk.

        Args:
            model: the changed model.
            change: what was done.
            deleted: files of images that are deleted with it.

        Raises:
            CifnetError: the disk is full or not writable; nothing was changed.
        """
        number = max(self.versions, default=0) + 1
        bundle = bundle_of_version(self.folder, number)
        with new_folder(bundle) as temporary:
            if model.class_names:
                model.save(temporary)
        content = json.dumps(dict(change))
        row = (number, content, json.dumps(model.counts), iso_now())
        try:
            with self._transaction() as database:
                database.execute(INSERT_VERSION, row)
                self._serve(change.action, number)
                self._forget_images(deleted)
        except BaseException:
            shutil.rmtree(bundle, ignore_errors=True)
            raise
        try:
            # Undo needs the version before, however old it is.
            parent = self.versions[number].parent
            old = self.stored_versions[: -self.keep_versions]
            self._drop([version for version in old if version != parent])
            self._unlink(set(deleted) - self.ever_learned())
        except (CifnetError, OSError) as error:
            # The change is stored: it must not be refused. The next start removes the rest.
            LOGGER.warning("photos or old versions were not removed: %s", error)
        return number

    def go(
        self,
        number: int,
        action: str = "go to",
        place: int | None = None,
    ) -> Classifier:
        """Serve a stored version, once its bundle is read; return its model.

        Args:
            number: of the version.
            action: for the journal.
            place: of a :class:`LineStep`; None to continue the line, which can be undone.
        """
        model = self.load(number)
        with self._room(), self._transaction():
            self._serve(action, number, place)
        return model

    def _serve(self, action: str, number: int, place: int | None = None) -> None:
        """Serve the version at a place of the line; without one the line goes on with it."""
        execute = self._database.execute
        if place is None:
            execute("DELETE FROM line WHERE place > (SELECT place FROM model)")
            execute("INSERT INTO line (version) VALUES (?)", [number])
            place = self._value("SELECT max(place) FROM line")
        execute("UPDATE model SET place = ?", [place])
        execute(
            "INSERT INTO journal (at, what, serves) VALUES (?, ?, ?)",
            (iso_now(), action, number),
        )

    def _renamed_since(self, number: int) -> list[tuple[str, str | None]]:
        """Return what became of class names since a version was served, in order.

        Returns:
            Old name, and the name in the version that is served now; None where there is none.
        """
        before = self._ancestry(number)
        after = self._ancestry(self.current)
        steps: list[tuple[str, str | None]] = []
        for version in reversed(before.values()):
            if version.number not in after and version.renamed is not None:
                old, new = version.renamed
                steps.append((new, old))
        for version in after.values():
            if version.number in before:
                continue
            if version.renamed is not None:
                steps.append(version.renamed)
            elif version.forgotten is not None and version.action != "move":
                joined = next(iter(version.learned), None)
                steps.append((version.forgotten, joined))
        return steps

    def _drop(self, numbers: Iterable[int]) -> None:
        """Remove the bundles of versions other than the current one."""
        current = self.current
        rows = [(number,) for number in numbers if number != current]
        if not rows:
            return
        with self._transaction() as database:
            database.executemany("UPDATE version SET stored = 0 WHERE number = ?", rows)
            database.executemany("DELETE FROM line WHERE version = ?", rows)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove bundles that the journal does not name.

        Killed processes left them half-written, or they were dropped.
        """
        stored = {
            bundle_of_version(self.folder, number) for number in self.stored_versions
        }
        for entry in self.versions_folder.glob("*"):
            if entry.is_dir() and entry not in stored:
                shutil.rmtree(entry)

    def _ancestry(self, number: int) -> dict[int, Version]:
        """Return the versions that led to one, and itself, by number, the first first."""
        versions = self.versions
        line = {}
        ancestor: int | None = number
        while ancestor is not None:
            line[ancestor] = versions[ancestor]
            ancestor = versions[ancestor].parent
        return dict(reversed(line.items()))

    # ------------------------------------------------------------------ images

    def image(self, name: str) -> Path:
        """Return the file of a kept image.

        Raises:
            RequestError: there is no such image.
        """
        path = self.images_folder / name
        if not IMAGE_NAME.fullmatch(name) or not path.is_file():
            raise RequestError(404, "there is no such photo in the workspace")
        return path

    def kept_images(self) -> FilesOfClasses:
        """Return the file names of the kept images of each class of the current version."""
        learned: FilesOfClasses = {}
        for version in self._ancestry(self.current).values():
            if version.forgotten is not None:
                learned.pop(version.forgotten, None)
            if version.renamed is not None:
                old, new = version.renamed
                learned[new] = learned.pop(old, [])
            for name, files in version.learned.items():
                learned.setdefault(name, []).extend(files)
        present = self._file_names()
        return {
            name: [file for file in files if file in present]
            for name, files in learned.items()
        }

    def unchanged(self, files: Iterable[str]) -> dict[str, int]:
        """Return the content hashes of those of some images whose content their names tell."""
        hashes = {}
        for file in files:
            path = self.images_folder / file
            with suppress(OSError):  # it is gone
                content = path.read_bytes()
                if sha256(content).hexdigest() == path.stem:
                    hashes[file] = content_hash(content)
        return hashes

    def waiting(self) -> dict[str, WaitingImage]:
        """Return the images that wait to be labelled by their files, in the order they came."""
        open_files = self._file_names().difference(*self.kept_images().values())
        learned_by = {}
        for number, version in self._ancestry(self.current).items():
            learned_by.update(dict.fromkeys(version.learned_files, number))
        renamed_since = cache(self._renamed_since)
        images = {}
        for number, file, name, named, since, paths in self._rows(WAITING_ROWS):
            if file in open_files and learned_by.get(file, 0) <= since:
                sent = (paths or file).splitlines()
                found = dict.fromkeys(map(folder_of, sent))
                folders = list(filter(None, found))
                if name is not None:
                    for old, new in renamed_since(named):
                        if name == old:
                            name = new
                images[file] = WaitingImage(number, file, sent[0], folders, name)
        return images

    def receive(
        self,
        images: Sequence[Upload],
        waiting: set[str],
        again: bool,
    ) -> list[str]:
        """Store images until they are labelled; return once the disk has them.

        Args:
            images: those that wait already get one more path.
            waiting: files that wait; new ones are added.
            again: whether those that were taken away or forgotten wait again.

        Returns:
            Names of the files that wait now, and did not before.

        Raises:
            CifnetError: the disk is full or not writable; nothing was changed.
        """
        new = []
        # No one removes files until the journal has them, and it has none without its file.
        with self._transaction() as database:
            for path, content, file, _ in images:
                if file not in waiting:
                    if not database.execute(INSERT_WAITING, (file, again)).rowcount:
                        continue
                    waiting.add(file)
                    new.append(file)
                    database.execute("DELETE FROM sent WHERE file = ?", [file])
                target = self.images_folder / file
                if not target.is_file():
                    write_bytes(target, content)
                sent = path.encode(errors="replace").decode()
                on_one_line = " ".join(sent.splitlines())
                database.execute(
                    "INSERT OR IGNORE INTO sent VALUES (?, ?)", (file, on_one_line)
                )
        return new

    def remove(self, images: Iterable[str], back: bool = False) -> None:
        """Take away images that wait; their files stay for a week.

        Args:
            images: names of their files.
            back: whether to take them back instead.
        """
        gone = None if back else time.time()
        rows = [(gone, file) for file in images]
        with self._transaction() as database:
            database.executemany("UPDATE inbox SET gone = ? WHERE file = ?", rows)

    def name_images(self, names: Mapping[str, str | None]) -> None:
        """Remember the classes that someone typed for images that wait.

        Args:
            names: name of a file → name of its class; None to forget it.
        """
        rows = [(name, file) for file, name in names.items()]
        with self._transaction() as database:
            database.executemany(NAME_WAITING, rows)

    def purge_counts(self, every: bool) -> DeletedCounts:
        """Count the images and versions that a purge would delete.

        Args:
            every: as for :meth:`purge`.
        """
        files = self._file_names() - self.waiting().keys()
        if not every:
            files = files.difference(*self.kept_images().values())
        taken_away = len(files - self.ever_learned())
        return DeletedCounts(
            learned=len(files) - taken_away,
            taken_away=taken_away,
            versions=len(self.stored_versions) - 1,
            files=files,
        )

    def purge(self, every: bool) -> DeletedCounts:
        """Delete images, and all versions but the served one, for good.

        Args:
            every: all kept images; otherwise those that the served version did not learn.

        Returns:
            What was deleted.
        """
        with self._lock, self._room():  # nothing is received meanwhile
            counts = self.purge_counts(every)
            self._drop(self.stored_versions)
            with self._transaction():
                self._forget_images(counts.files)
            self._unlink(counts.files)
        return counts

    def _forget_images(self, files: Iterable[str]) -> None:
        """Let images wait no more, and forget how they were sent."""
        rows = [(file,) for file in files]
        execute = self._database.executemany
        execute("UPDATE inbox SET gone = 0, name = NULL WHERE file = ?", rows)
        execute("DELETE FROM sent WHERE file = ?", rows)

    def _unlink(self, files: Iterable[str]) -> None:
        """Delete the files of images."""
        for file in files:
            (self.images_folder / file).unlink(missing_ok=True)

    def _remove_unused_images(self) -> None:
        """Remove images that neither wait nor were learned, nor can be put back, and uploads."""
        shutil.rmtree(self.incoming, ignore_errors=True)
        self.incoming.mkdir()
        for path in self.images_folder.glob(".*.tmp"):  # of a killed process
            path.unlink()
        wait = self._rows(
            "SELECT file FROM inbox WHERE gone IS NULL OR gone > ?",
            [time.time() - KEPT_SECONDS],
        )
        used = self.ever_learned().union(file for (file,) in wait)
        self._unlink(self._file_names() - used)

    def ever_learned(self) -> set[str]:
        """Return the names of the images that any version learned."""
        versions = self.versions.values()
        return set().union(*(version.learned_files for version in versions))

    def _file_names(self) -> set[str]:
        """Return the names of all image files; nothing else in their folder is ours."""
        names = (path.name for path in self.images_folder.glob("*"))
        return set(filter(IMAGE_NAME.fullmatch, names))

    # ------------------------------------------------------------------ other things on the disk

    def count_answers(self, asked: int, unsure: int, corrected: int) -> None:
        """Add to the counts of this day, or take from them what is negative.

        Args:
            asked: images that were asked about.
            unsure: those of them for which no class, or several, were likely enough.
            corrected: those whose class someone corrected.
        """
        row = (date.today().isoformat(), asked, unsure, corrected)
        with self._transaction() as database:
            database.execute(COUNT_ANSWERS, row)

    def days(self) -> list[Day]:
        """Return the counts of all days, oldest first."""
        rows = self._rows("SELECT * FROM day ORDER BY date")
        return [Day(**dict(row)) for row in rows]

    @contextmanager
    def _room(self) -> Iterator[None]:
        """Give up the space of the reserve file within the block, and take it afterwards.

        So what frees space, or goes back, is possible where the disk is full.
        """
        reserve = self.folder / RESERVE
        reserve.unlink(missing_ok=True)
        try:
            yield
        finally:
            with suppress(CifnetError):  # the disk is full
                write_bytes(reserve, os.urandom(RESERVE_BYTES))


@lru_cache(maxsize=10_000)
def _parsed(row: tuple[Any, ...]) -> Version:
    """Return a version from its row of the journal, as :attr:`Workspace.versions` reads it."""
    number, change, counts, parent, time, stored = row
    images = json.loads(counts)
    return Version(
        **json.loads(change),
        number=number,
        parent=parent,
        counts=images,
        classes=len(images),
        images=sum(images.values()),
        time=time,
        stored=stored,
    )
