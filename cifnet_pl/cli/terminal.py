"""Print on any terminal: characters that its encoding lacks are replaced, and never end a run."""

from __future__ import annotations

import codecs
import sys

STAND_INS = {
    "Ā": "A_bar",
    "→": "->",
    "←": "<-",
    "–": "-",
    "—": "-",
    "−": "-",
    "…": "...",
    "·": ".",
    "•": "*",
    "×": "x",
    "≥": ">=",
    "≤": "<=",
    "±": "+-",
    "λ": "lambda",
    "²": "^2",
    "₂": "2",
    "’": "'",
    "“": '"',
    "”": '"',
    "█": "#",
    "─": "-",
}
"""What this package itself prints, in ASCII; other characters, such as those of class names, become escapes."""

HANDLER = "cifnet_pl.stand_ins"


def _stand_in(error: UnicodeError) -> tuple[str, int]:
    """Replace characters that cannot be encoded; an error handler of :mod:`codecs`."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    parts = (STAND_INS.get(c) or c.encode("ascii", "backslashreplace").decode() for c in missing)
    return "".join(parts), error.end


def accept_all_characters() -> None:
    """Make standard output and standard error accept every character, whatever their encoding (cp1252, ASCII, …)."""
    codecs.register_error(HANDLER, _stand_in)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # streams that a test or a notebook put there may lack it
        if reconfigure is not None:
            reconfigure(errors=HANDLER)
