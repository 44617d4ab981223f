"""Compare class names that people type: spaces, capitals and Unicode forms."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from cifnet_pl.serving import messages
from cifnet_pl.serving.refusals import Question, RequestError
from cifnet_pl.utilities.names import class_name, split_of


def tidy(name: str) -> str:
    """Return a class name in Unicode form NFC, without spaces around it or two in a row.

    Raises:
        RequestError: it holds half a character (a lone surrogate), which no file can store.
    """
    if any("\ud800" <= character <= "\udfff" for character in name):
        raise RequestError(422, messages.HALF_CHARACTER)
    return re.sub(r"[^\S\t-\r]+", " ", class_name(name)).strip(" ")


def bare(name: str) -> str:
    """Return a name without what typing mistakes change: spaces, capitals and Unicode form."""
    return "".join(unicodedata.normalize("NFKC", name).casefold().split())


def similar_name(name: str, others: Iterable[str]) -> str | None:
    """Return the name that differs by spaces, capitals or Unicode form only; None without one."""
    for other in others:
        if name != other and bare(name) == bare(other):
            return other
    return None


def check_similar(name: str, others: Iterable[str]) -> None:
    """Raise Question where a name may be a typing mistake of another one."""
    instead = similar_names([name], others)
    if instead:
        raise Question(messages.similar_names(instead), instead)


def similar_names(names: Sequence[str], known: Iterable[str]) -> dict[str, str]:
    """Return the names that may be typing mistakes, and the ones that may be meant.

    Args:
        names: each once.
        known: names that exist already.
    """
    known = list(known)
    instead: dict[str, str] = {}
    for position, name in enumerate(names):
        other = similar_name(name, [*known, *names[:position]])
        if other is not None and name not in known:
            instead[name] = instead.get(other, other)
    return instead


def folder_of(path: str) -> str | None:
    """Return the name of the folder that an image was sent in; None without one.

    A folder with the name of a split is none: its name is not that of a class.

    Example:
        >>> folder_of("birds/train/hen/1.jpg"), folder_of("birds/train/1.jpg")
        ('hen', None)
    """
    parts = []
    for part in path.replace("\\", "/").split("/"):
        if part not in ("", "."):
            parts.append(part)
    if len(parts) < 2 or split_of(parts[-2]) is not None:
        return None
    return parts[-2]
