"""Keep the versions of a served model, from the records of a journal: undo, redo, comparison, kept photos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from cifnet_pl.serving.journal import Record
from cifnet_pl.serving.refusals import RequestError


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
