"""Sentences for the people who use the page: photos, teaching and learning in everyday words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cifnet_pl.utilities.text import number_of, printable

SHOWN_NAMES = 3
"""Class names in one sentence; others are left out."""

ENOUGH_IMAGES = 10
"""Images of a class below which more of it are asked for."""

LONGEST_FILE_NAME = 200
"""Characters of a file's name that are shown."""

BUSY = "too many photos are waiting: try again in a few seconds"
COSTLY_WORK_RUNS = (
    "an audit or an ONNX graph is being made already: try again in a few seconds"
)
FAILED = "the server failed; its log says why"
IMPOSSIBLE = "the server could not do that; its log says why"
DISK_FULL = (
    "the server's disk is full or not writable; nothing was changed: delete photos of forgotten"
    " classes, or make room on it"
)
JOURNAL_LOCKED = "another program holds the list of changes: try again in a few seconds"
READ_ONLY = "this service is read-only: it answers, but does not learn"
NO_JOB = "there is no such job, or it ended long ago"
NO_IMAGE = "there is no such photo in the workspace"
DAMAGED = "its file was deleted or changed on the server's disk"
NO_UNDO = "there is no change that could be undone"
NO_REDO = "there is no undone change that could be done again"
NOTHING_WAITS = (
    "none of these photos waits any more: someone else decided them, or took them away"
)
NOTHING_TO_AUDIT = (
    "no photos of two classes are kept here, so none can be checked: teach some"
)
HALF_CHARACTER = "a class name holds half a character: type it again"
TWO_CLASSES = "a photo in two classes makes both of them worse"
WENT_BACK = "went back"
WENT_AGAIN = "went there again"
BEGAN_EMPTY = "began with no class"

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


def too_many_images(limit: int) -> str:
    """Return why a request with more than ``limit`` images is refused."""
    return f"more than {limit} photos in one request: send them in parts"


def too_many_to_group(limit: int) -> str:
    """Return why more than ``limit`` images are not grouped."""
    return f"more than {limit} photos to group in one request: send them in parts"


def too_many_waiting(limit: int) -> str:
    """Return why a full inbox takes no more images."""
    return f"{limit} photos wait already: decide some of them first"


def changes_waiting(count: int) -> str:
    """Return why no further change is taken in."""
    return f"{count} changes are waiting already: try again later"


def too_large(file: str, limit: int) -> str:
    """Return why a file of more than ``limit`` bytes is refused."""
    return f"{printable(file[:LONGEST_FILE_NAME])} is larger than {limit // 2**20} MiB"


def unpacks_to_more(file: str, size: str) -> str:
    """Return why a zip file with more than ``size`` is refused."""
    return f"{file} unpacks to more than {size}: send it in parts"


def damaged_zip(file: str) -> str:
    """Return why a zip file cannot be read."""
    return f"{file} is damaged or not a zip file that can be read"


def learned(counts: dict[str, int]) -> str:
    """Return the summary of a version's learned images, given their numbers by class."""
    return (
        f"learned {number_of(sum(counts.values()), 'photo')} of {listed(list(counts))}"
    )


def listed(names: Sequence[str]) -> str:
    """Return a few class names, quoted."""
    quoted = [f"'{printable(name)}'" for name in names[:SHOWN_NAMES]]
    if len(names) > SHOWN_NAMES:
        quoted.append("…")
    return ", ".join(quoted)


def opened(classes: int) -> str:
    """Return the summary of the first version of a workspace."""
    if not classes:
        return BEGAN_EMPTY
    return f"{number_of(classes, 'class')} from the model that was given"


def forgot(name: str, exact: bool) -> str:
    """Return the summary of a forgotten class."""
    if exact:
        how = "exactly: the model keeps nothing of its photos"
    else:
        how = "from the answers; its photos still count against other classes"
    return f"forgot '{printable(name)}' {how}"


def damaged_images(name: str) -> str:
    """Return why a class cannot be forgotten exactly."""
    return (
        f"photos of '{printable(name)}' were changed on the server's disk, so it can be forgotten"
        " from the answers only; its photos would still count against other classes"
    )


def images_stay(count: int) -> str:
    """Return a note on the data of a forgotten class that stays in the workspace."""
    photos = number_of(count, "photo")
    return f"{photos} of it and the versions before stay here until you delete them for good"


def renamed(old: str, new: str) -> str:
    """Return the summary of a renamed class."""
    return f"renamed '{printable(old)}' to '{printable(new)}'"


def moved(count: int, name: str, target: str) -> str:
    """Return the summary of ``count`` images moved to another class."""
    return f"moved {number_of(count, 'photo')} of '{printable(name)}' to '{printable(target)}'"


def joined(name: str, target: str) -> str:
    """Return the summary of two joined classes."""
    return f"joined '{printable(name)}' to '{printable(target)}'"


def undid(message: str) -> str:
    """Return the summary of an undone change."""
    return f"undid: {message}"


def redid(message: str) -> str:
    """Return the summary of a change done again."""
    return f"did again: {message}"


def went_to(number: int) -> str:
    """Return the summary of a switch to another version."""
    return f"went to version {number}"


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
        return f"Next: add photos of {listed(few)}, taken on another day."
    return "Next: ask about photos of another day."


def same_name(name: str) -> str:
    """Return why a class cannot get the name that it has."""
    return f"'{printable(name)}' has this name already: give another one"


def taken_name(name: str, old: str) -> str:
    """Return why a class cannot get the name of another one without joining both."""
    both = f"'{printable(name)}' and '{printable(old)}' would become one"
    return f"there is a class '{printable(name)}' already: {both}"


def similar_names(instead: Mapping[str, str]) -> str:
    """Return why class names may be typing mistakes: names, and the ones that may be meant."""
    pairs = []
    for name, other in instead.items():
        pairs.append(f"'{printable(name)}' and '{printable(other)}'")
    differ = "differ by capitals, spaces or Unicode form only"
    if len(pairs) == 1:
        return f"{pairs[0]} {differ}"
    return f"these names {differ}: {'; '.join(pairs)}"


def learned_as(file: str, name: str) -> str:
    """Return why an image may be a mistake that was learned as another class before."""
    shown = printable(file[:LONGEST_FILE_NAME])
    return f"{shown} was learned as '{printable(name)}' before, and {TWO_CLASSES}"


def learned_before(count: int) -> str:
    """Return why an update of ``count`` known images is refused."""
    subject = "it was" if count == 1 else "all were"
    return f"{number_of(count, 'photo')} sent, but {subject} learned before"


def nothing_to_move(name: str) -> str:
    """Return why a request that moves no image is refused."""
    return (
        f"none of these is a photo of '{printable(name)}' that is to be another class"
    )


def cannot_move(name: str, target: str) -> str:
    """Return why images cannot be moved out of a class."""
    why = f"'{printable(name)}' cannot be taken out exactly, as not all of its photos are kept here"
    return f"{why}: forget it, and teach its photos as '{printable(target)}'"


def only_class(name: str) -> str:
    """Return why the last class is not removed."""
    return f"'{printable(name)}' is the only class: teach another one first"


def no_version(number: int, newest: int) -> str:
    """Return why an unknown version is refused."""
    return f"there is no version {number}: the newest is {newest}"


def removed_version(number: int, stored: int) -> str:
    """Return why a version without its bundle is refused."""
    return f"version {number} is no longer stored: the newest {stored} are kept"


def empty_version(number: int) -> str:
    """Return why a version without a class cannot be downloaded."""
    return f"version {number} knows no class yet"
