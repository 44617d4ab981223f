"""Sentences for the people who use the page, in everyday words, and the errors that carry them."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Mapping, Sequence

from cifnet_pl.utilities.errors import (
    CifnetError,
    DataError,
    UnsupportedError,
    UsageError,
)
from cifnet_pl.utilities.text import number_of, printable

SHOWN_NAMES = 3
"""Class names in one sentence; others are left out."""

LONGEST_SHOWN = 200
"""Characters of a name from outside that are shown."""

ENOUGH_IMAGES = 10
"""Images of a class below which more of it are asked for."""

DISK_ERRORS = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EIO,
)
"""Error numbers of a system that cannot store a change."""

# In a sentence {name} is a text from outside, and {images} a number with its unit: see filled().

# ---------------------------------------------------------------------- refusals

FAILED = "the server failed; its log says why"
IMPOSSIBLE = "the server could not do that; its log says why"
DISK_FULL = (
    "the server's disk is full, not writable, or held by another program; nothing was changed:"
    " delete photos of forgotten classes, or make room on it"
)
READ_ONLY = "this service is read-only: it answers, but does not learn"
WRONG_HOST = "this service answers on this machine only: ask for it as localhost"
WRONG_ORIGIN = "requests from pages of other sites are refused"
WRONG_TOKEN = "this service needs a token: send the header Authorization: Bearer TOKEN"
NOTHING_HERE = "there is nothing here; /docs lists what there is"
OTHER_METHOD = "this path takes another method"
TOO_LARGE_REQUEST = "the request is larger than {limit} MiB: send it in parts"
TOO_LARGE_FILE = "{file} is larger than {limit} MiB"
TOO_LARGE_ZIP = "{file} unpacks to more than {limit} MiB: send it in parts"
DAMAGED_ZIP = "{file} is damaged or not a zip file that can be read"
TOO_MANY_IMAGES = "more than {limit} photos in one request: send them in parts"
TOO_MANY_TO_GROUP = (
    "more than {limit} photos to group in one request: send them in parts"
)
TOO_MANY_WAITING = "{images} wait already: decide some of them first"
CHANGES_WAITING = "{changes} are waiting already: try again later"
HALF_CHARACTER = "a class name holds half a character: type it again"
NO_JOB = "there is no such job, or it ended long ago"
NO_IMAGE = "there is no such photo in the workspace"
DAMAGED = "its file was deleted or changed on the server's disk"
DAMAGED_IMAGE = "{file}: " + DAMAGED
DAMAGED_IMAGES = (
    "photos of '{name}' were changed on the server's disk, so it can be forgotten from the answers"
    " only; its photos would still count against other classes"
)
NO_UNDO = "there is no change that could be undone"
NO_REDO = "there is no undone change that could be done again"
NO_VERSION = "there is no version {number}: the newest is {newest}"
REMOVED_VERSION = "version {number} is no longer stored: the newest {stored} are kept"
EMPTY_VERSION = "version {number} knows no class yet"
NOTHING_WAITS = (
    "none of these photos waits any more: someone else decided them, or took them away"
)
NOTHING_TO_AUDIT = (
    "no photos of two classes are kept here, so none can be checked: teach some"
)
NOTHING_TO_MOVE = "none of these is a photo of '{name}' that is to be another class"
CANNOT_MOVE = (
    "'{name}' cannot be taken out exactly, as not all of its photos are kept here: forget it, and"
    " teach its photos as '{target}'"
)
ONLY_CLASS = "'{name}' is the only class: teach another one first"
SAME_NAME = "'{name}' has this name already: give another one"
TAKEN_NAME = "there is a class '{name}' already: '{name}' and '{old}' would become one"
SIMILAR_NAMES = "{pairs} differ by capitals, spaces or Unicode form only"
LEARNED_AS = (
    "{file} was learned as '{name}' before, and a photo in two classes makes both of them"
    " worse"
)
LEARNED_BEFORE = "{images} sent, but all were learned before"

# ---------------------------------------------------------------------- what was done

OPENED = "{classes} from the model that was given"
BEGAN_EMPTY = "began with no class"
LEARNED = "learned {images} of {names}"
FORGOT_EXACTLY = "forgot '{name}' exactly: the model keeps nothing of its photos"
FORGOT = (
    "forgot '{name}' from the answers; its photos still count against other classes"
)
IMAGES_STAY = (
    "{images} of it and the versions before stay here until you delete them for good"
)
RENAMED = "renamed '{name}' to '{new}'"
MOVED = "moved {images} of '{name}' to '{target}'"
JOINED = "joined '{name}' to '{target}'"
UNDID = "undid: {message}"
REDID = "did again: {message}"
WENT_BACK = "went back"
WENT_AGAIN = "went there again"
WENT_TO = "went to version {number}"
ADD_IMAGES = "Next: add photos of {names}, taken on another day."
ASK_AGAIN = "Next: ask about photos of another day."

ACCURACY_MESSAGES = {
    "given": "Photos taken together, as they were named, count as one.",
    "found": "Photos taken together, on one day or at one place, count as one.",
    "independent": "No photos taken together were found, so one number serves for both.",
    "measured": "Measured on photos of another place that someone named.",
    "one_group": "Most classes have photos of one day or place only, so how often it is right on"
    " another day cannot be told.",
    "few": "There are too few photos to say how often it is right on another day.",
    "unknown": "How often it is right on another day is not estimated.",
}
"""How the two accuracies were found, by the kind of the estimate."""

UNITS = {"images": "photo", "changes": "change", "classes": "class"}
"""Places of a sentence for a number and its unit, and the unit's name for one."""


def filled(sentence: str, **values: str | int | Sequence[str]) -> str:
    """Return a sentence with its places filled.

    Args:
        sentence: as above.
        values: texts, whose control characters are shown; numbers; names of classes, of which a
            few are quoted.

    Example:
        >>> filled(LEARNED, images=1, names=["ant"])
        "learned 1 photo of 'ant'"
    """
    shown: dict[str, str] = {}
    for place, value in values.items():
        if place in UNITS and isinstance(value, int):
            shown[place] = number_of(value, UNITS[place])
        elif isinstance(value, str | int):
            shown[place] = printable(str(value))
        else:
            shown[place] = listed(value)
    return sentence.format(**shown)


def listed(names: Sequence[str]) -> str:
    """Return a few class names, quoted."""
    quoted = [f"'{printable(name)}'" for name in names[:SHOWN_NAMES]]
    if len(names) > SHOWN_NAMES:
        quoted.append("…")
    return ", ".join(quoted)


def purged(learned: int, taken_away: int, versions: int) -> str:
    """Return the summary of a purge of images and versions."""
    parts = [number_of(learned, "photo")]
    if taken_away:
        parts.append(f"{number_of(taken_away, 'photo')} that had been taken away")
    parts.append(f"{number_of(versions, 'other version')} for good")
    return f"deleted {' and '.join(parts)}"


def next_step(counts: Mapping[str, int]) -> str:
    """Return the most useful next step, given the numbers of images by class."""
    few = [name for name, count in counts.items() if count < ENOUGH_IMAGES]
    if few:
        return filled(ADD_IMAGES, names=few)
    return ASK_AGAIN


# ---------------------------------------------------------------------- errors


class RequestError(UsageError):
    """A request that is refused.

    Args:
        status: of HTTP.
        sentence: for people.
        values: that fill it.
    """

    def __init__(self, status: int, sentence: str, **values: str | int):
        super().__init__(filled(sentence, **values) if values else sentence)
        self.status = status


class Question(RequestError):
    """A change that may be a mistake, refused with 409 unless the client asks for it anyway.

    Args:
        sentence: what may be wrong.
        instead: name that was given → name of the class that may be meant.
        allowed: whether it may be made anyway; otherwise only with the other names.
        values: that fill the sentence.
    """

    def __init__(
        self,
        sentence: str,
        instead: Mapping[str, str] | None = None,
        allowed: bool = True,
        **values: str | int,
    ):
        super().__init__(409, sentence, **values)
        self.instead = dict(instead or {})
        self.allowed = allowed


def refusal_of(error: BaseException) -> RequestError:
    """Return an error as the answer to a request, without paths of the server."""
    if isinstance(error, RequestError):
        return error
    if has_disk_error(error):
        return RequestError(507, DISK_FULL)
    if isinstance(error, UnsupportedError):
        return RequestError(409, str(error))
    if isinstance(error, UsageError | DataError):
        return RequestError(422, str(error))
    if isinstance(error, CifnetError):
        return RequestError(500, IMPOSSIBLE)
    return RequestError(500, FAILED)


def has_disk_error(error: BaseException) -> bool:
    """Return whether an error, or what caused it, is that a change cannot be stored."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, RequestError):
        if isinstance(cause, sqlite3.OperationalError):
            return True
        if isinstance(cause, OSError) and cause.errno in DISK_ERRORS:
            return True
        cause = cause.__cause__ or cause.__context__
    return False
