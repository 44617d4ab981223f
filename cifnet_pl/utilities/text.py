"""Make text from outside safe to print on one line of a screen or in a file."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable


def printable(text: str) -> str:
    r"""Return ``text`` on one line: line breaks, control characters and undecodable bytes become escapes.

    Example:
        >>> printable("two\nlines")
        'two\\nlines'
    """
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def has_controls(text: str) -> bool:
    """Return whether ``text`` holds control characters or line breaks of any kind."""
    return any(unicodedata.category(c) in ("Cc", "Zl", "Zp") for c in text)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type where there is none."""
    lines: Iterable[str] = str(error).splitlines()
    return next(iter(lines), type(error).__name__)


def one_line(error: BaseException, length: int = 300) -> str:
    """Return an error's message with its line breaks as spaces, cut to ``length`` characters."""
    return " ".join(str(error).split())[:length]
