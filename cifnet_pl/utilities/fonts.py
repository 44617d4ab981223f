"""Draw names of classes and files in pictures, in any script, with the fonts that this machine has."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from matplotlib.font_manager import FontEntry, findfont, fontManager
from matplotlib.ft2font import FT2Font

from cifnet_pl.utilities.text import printable

BASE = "DejaVu Sans"
"""The font that comes with matplotlib: Latin, Greek, Cyrillic, Arabic, Hebrew, Georgian, Armenian, many symbols."""

ADVICE = (
    "install a font that has them, such as Noto Sans CJK or Noto Emoji (in outlines: matplotlib draws no colour fonts)"
)


@dataclass(frozen=True)
class Lettering:
    """The fonts and escapes by which given texts are drawn.

    Attributes:
        families: names of fonts for matplotlib's ``font.family``, each for what those before it lack.
        missing: characters that no font of this machine has.
    """

    families: tuple[str, ...]
    missing: frozenset[str]

    def of(self, text: str, longest: int = 200) -> str:
        """Return a text as it is to be drawn: on one line, with escapes for characters that no font has.

        Args:
            text: any text.
            longest: number of characters to keep at most.
        """
        plain = printable(text)
        plain = plain if len(plain) <= longest else plain[: longest - 1] + "…"
        return "".join(c.encode("ascii", "backslashreplace").decode() if c in self.missing else c for c in plain)

    @property
    def note(self) -> str | None:
        """Sentence for the user about characters that could not be drawn; None if there are none."""
        if not self.missing:
            return None
        shown = ", ".join(f"U+{ord(c):04X} {unicodedata.name(c, '')}".strip() for c in sorted(self.missing)[:3])
        more = f" and {len(self.missing) - 3} others" if len(self.missing) > 3 else ""
        return f"no font of this machine has {shown}{more}, so the picture shows codes: {ADVICE}"


def lettering(texts: Iterable[str]) -> Lettering:
    """Choose fonts for ``texts``: matplotlib's own, and as few others as draw what it lacks."""
    wanted = {ord(c) for text in texts for c in printable(text)}
    families, left = [BASE], wanted - _characters(findfont(BASE))
    while left:
        best = max(_others(), key=lambda entry: len(left & _characters(entry.fname)), default=None)
        if best is None or not left & _characters(best.fname):
            break
        families.append(best.name)
        left -= _characters(best.fname)
    return Lettering(tuple(families), frozenset(map(chr, left)))


def _others() -> list[FontEntry]:
    """Return the upright fonts of normal weight, in an order that does not depend on the file system."""
    upright = (entry for entry in fontManager.ttflist if entry.style == "normal" and entry.weight in (400, "normal"))
    # matplotlib's font of last resort has a box for every character.
    return sorted((e for e in upright if not e.name.startswith("Last Resort")), key=lambda e: (e.name, e.fname))


@lru_cache(maxsize=1024)
def _characters(path: str) -> frozenset[int]:
    """Return the characters of a font file; none of one that matplotlib cannot draw with."""
    try:
        return frozenset(FT2Font(path).get_charmap())
    except (RuntimeError, OSError):  # a bitmap font
        return frozenset()
