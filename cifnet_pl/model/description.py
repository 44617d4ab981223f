"""The description of a stored model: plain tables and lists from a file, read with every type checked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.text import has_controls, printable


@dataclass(frozen=True)
class Event:
    """One step in a model's life: a task of its run, or an extension, or classes forgotten.

    Percentages are 0–100, times in seconds, energies in kWh; None where something was not measured.

    Attributes:
        what: "task", "extend", "merge" or "forget".
        classes: number of classes known afterwards.
        photos: photos taken in (extend, merge) or out (forget).
        accuracy: A_k after a task; for an extension, on the fifth of the new photos that was held back.
        old_accuracy_before: of the earlier classes, on the photos of ``--check``, before the extension.
        old_accuracy: the same afterwards.
    """

    what: str
    classes: int
    photos: int | None = None
    accuracy: float | None = None
    old_accuracy_before: float | None = None
    old_accuracy: float | None = None
    seconds: float | None = None
    energy_kwh: float | None = None
    energy_source: str | None = None


class Entry:
    """A JSON object whose entries are fetched with their types checked."""

    def __init__(self, content: Any, where: str, name: str = "its description"):
        if not isinstance(content, Mapping) or not all(isinstance(key, str) for key in content):
            raise CheckpointError(f"{where} is damaged or not a model: {name} is not a table")
        self.content, self.where, self.name = content, where, name

    def get(self, key: str, kind: type | tuple[type, ...]) -> Any:
        """The entry ``key``, of one of the types ``kind``; a boolean does not count as a number."""
        kinds = kind if isinstance(kind, tuple) else (kind,)
        value = self.content.get(key)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.wrong(key, type(value).__name__, " or ".join(k.__name__ for k in kinds))
        if isinstance(value, float) and not math.isfinite(value):
            raise self.wrong(key, str(value), "a finite number")
        return value

    def sub(self, key: str) -> Entry:
        """The entry ``key``, which is an object itself."""
        return Entry(self.content.get(key), self.where, key)

    def wrong(self, key: str, given: str, expected: str) -> CheckpointError:
        """An error for an entry that is not as it should be."""
        return CheckpointError(f"{self.where} is damaged or not a model: {self.name}.{key} is {given}, not {expected}")


def class_names(names: Sequence[Any], where: str) -> list[str]:
    """``names``, if each is a plain, unique name that is safe to show and to use within a path.

    Raises:
        CheckpointError: no name, one that occurs twice or is not text, control characters, or a path that leads out of
            the folder it is joined to.
    """
    if not names:
        raise CheckpointError(f"{where} names no class")
    for name in names:
        if not isinstance(name, str) or not name or len(name) > 1000:
            raise CheckpointError(
                f"{where} has {shown(name)} for a class name, expected a text of 1 to 1000 characters"
            )
        if has_controls(name):
            raise CheckpointError(f"{where} has control characters in class name {shown(name)}: rename the class")
        if any(part in ("", ".", "..") for part in name.replace("\\", "/").split("/")):
            raise CheckpointError(f"{where} has a path for a class name, {shown(name)}: rename the class")
    if len(set(names)) < len(names):
        raise CheckpointError(f"{where} has class {shown(Counter(names).most_common(1)[0][0])} twice")
    return list(names)


def event(item: Any, where: str) -> Event:
    """An entry of the history."""
    kinds: dict[str, tuple[type, ...]] = {"what": (str,), "classes": (int,), "photos": (int, type(None))}
    kinds["energy_source"] = (str, type(None))
    entry = Entry(item, where, "history")
    known = [f.name for f in fields(Event)]
    if set(entry.content) != set(known):
        raise CheckpointError(f"{where} is damaged or not a model: its history has unknown entries")
    return Event(**{name: entry.get(name, kinds.get(name, (int, float, type(None)))) for name in known})


def shown(value: Any) -> str:
    """A value from a file as it may be shown in a message: quoted, short, on one line."""
    return f"'{printable(str(value)[:60])}'"
