"""Names that come from outside: of classes, of the splits of a data set, of backbones.

Every entrance (folders, archives, tables, shards, hubs, Python objects, options, requests, stored
models) asks these functions, so that no two of them disagree.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from cifnet_pl.utilities.errors import CifnetError, DataError
from cifnet_pl.utilities.text import shown

Split = Literal["train", "val", "test"]

DEFAULT_BACKBONE = "embedded:efficientnet_lite0"
"""Backbone where none is named; its weights are in an installed package."""

SPLIT_NAMES: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "trn": "train",
    "test": "test",
    "testing": "test",
    "tst": "test",
    "eval": "test",
    "evaluation": "test",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
}
"""Names of splits in data sets, in small letters → the split."""

LONGEST_CLASS_NAME = 1000
"""Characters of a class name."""

CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
"""Control characters, and those that end a line or a paragraph (Unicode categories Cc, Zl, Zp)."""

HIDDEN = re.compile(
    "[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u00ad\u200b\u2060\ufeff]"
)
"""Invisible characters that change the direction of the text around them (Unicode, UAX 9), or would
make two names of what looks like one.
"""

DEVICE_NAME = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)
"""Names that Windows keeps for devices, with any ending."""


def split_of(name: str) -> Split | None:
    """Return the split that a name means, in any letter case; None if it means none.

    Example:
        >>> split_of("Training"), split_of("VAL"), split_of("trains")
        ('train', 'val', None)
    """
    return SPLIT_NAMES.get(name.strip().casefold())


def split_in(name: str) -> Split | None:
    """Return the split that the name or the path of a file has as a word; None if it has none.

    The last of several counts, as the name of a data set comes first.

    Example:
        >>> split_in("scans-train-000.tar"), split_in("val/1.csv"), split_in("latest.tar")
        ('train', 'val', None)
    """
    split = None
    for word in re.findall(r"[^\W\d_]+", name):
        split = split_of(word) or split
    return split


def class_name(name: str) -> str:
    """Return the name of a class in the one form in which it is stored and compared (Unicode NFC).

    Systems write one letter in different ways: macOS gives folders with "u" and a combining
    diaeresis, where others have "ü".

    Example:
        >>> class_name("u\u0308") == "\u00fc"
        True
    """
    return unicodedata.normalize("NFC", name)


def class_name_problem(name: object) -> str | None:
    """Return why something cannot be the name of a class, to follow "it"; None if it can.

    A class name is shown on one line, stored in files, and joined to the path of a folder.

    Example:
        >>> class_name_problem("a\\nb"), class_name_problem("../b"), class_name_problem("a/b")
        ('has control characters', 'is a path', None)
    """
    if not isinstance(name, str):
        return f"is a {type(name).__name__}, not a text"
    if not name.strip():
        return "is empty"
    if len(name) > LONGEST_CLASS_NAME:
        return f"has {len(name)} characters, at most {LONGEST_CLASS_NAME} are allowed"
    if CONTROL.search(name):
        return "has control characters"
    if hidden := HIDDEN.search(name):
        return f"has the invisible character U+{ord(hidden[0]):04X}"
    for part in name.replace("\\", "/").split("/"):
        if part in ("", ".", ".."):
            return "is a path"
    return None


def class_names(
    names: Sequence[Any],
    where: str,
    error: type[CifnetError] = DataError,
) -> list[str]:
    """Check class names from outside: unique, and safe to show and to use in a path.

    Args:
        names: the names, or what stands in their place.
        where: what an error calls the file or folder that has them.
        error: class of the error.

    Returns:
        The names as they are stored and compared.

    Raises:
        DataError, or ``error``: no name, one that occurs twice, or one that cannot be that of a
            class.
    """
    if not names:
        raise error(f"{where} names no class")
    for name in names:
        problem = class_name_problem(name)
        if problem is not None:
            raise error(
                f"{where}: class name {shown(name)} {problem}: rename the class"
            )
    stored = [class_name(name) for name in names]
    name, times = Counter(stored).most_common(1)[0]
    if times > 1:
        raise error(f"{where} has class {shown(name)} twice: rename the class")
    return stored


def folder_names(classes: Iterable[str]) -> dict[str, str]:
    """Return a folder's name for each class that every system can keep beside the others.

    Windows keeps neither some characters, nor a dot or space at the end, nor names of devices.
    There, and on macOS, names that differ in the case of letters only are one folder.

    Example:
        >>> folder_names(["ant", "Ant", "F/A-18", "aux"])
        {'ant': 'ant', 'Ant': 'Ant_', 'F/A-18': 'F_A-18', 'aux': '_aux'}
    """
    folders = {}
    taken = set()
    for name in classes:
        folder = re.sub(r'[<>:"/\\|?*]|[. ]$', "_", name)
        if DEVICE_NAME.fullmatch(folder):
            folder = f"_{folder}"
        while folder.casefold() in taken:
            folder += "_"
        taken.add(folder.casefold())
        folders[name] = folder
    return folders
