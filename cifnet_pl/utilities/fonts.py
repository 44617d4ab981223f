"""Draw names of classes and files in pictures, in any script, with the fonts that this machine has."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from functools import lru_cache

from matplotlib.font_manager import FontEntry, findfont, fontManager
from matplotlib.ft2font import FT2Font

from cifnet_pl.utilities.text import printable

BASE = "DejaVu Sans"
"""The font that comes with matplotlib: Latin, Greek, Cyrillic, Arabic, Hebrew, Georgian, Armenian, many symbols."""

# A box stands in the picture instead: hundreds of names would give hundreds of warnings.
warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)


def families(texts: Iterable[str]) -> list[str]:
    """Choose fonts for texts, for matplotlib's ``font.family``: its own, and as few others as draw what it lacks."""
    wanted = {ord(c) for text in texts for c in printable(text)}
    chosen, left = [BASE], wanted - _characters(findfont(BASE))
    while left:
        best = max(_others(), key=lambda entry: len(left & _characters(entry.fname)), default=None)
        if best is None or not left & _characters(best.fname):
            break
        chosen.append(best.name)
        left -= _characters(best.fname)
    return chosen


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
