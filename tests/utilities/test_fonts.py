"""Names in any script: which fonts are chosen, and what is said where no font has a character."""

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont

from cifnet_pl.utilities import fonts as module
from cifnet_pl.utilities.fonts import BASE, lettering


def test_matplotlibs_own_font_is_enough_for_many_scripts_and_emoji():
    letters = lettering(["Ströme", "Ёлка", "قطة", "😀"])
    assert (letters.families, letters.missing, letters.note) == ((BASE,), frozenset(), None)


def test_another_font_is_taken_for_what_the_first_lacks():
    own, other = module._characters(findfont(BASE)), module._characters(findfont("STIXGeneral"))
    character = chr(min(c for c in other - own if chr(c).isprintable()))
    letters = lettering(["plain", f"odd {character}"])
    assert len(letters.families) == 2
    assert not letters.missing
    figure = Figure()
    FigureCanvasAgg(figure)
    with matplotlib.rc_context({"font.family": list(letters.families)}):
        figure.text(0.1, 0.5, letters.of(f"odd {character}"))
        figure.canvas.draw()  # a missing glyph would be a warning, and so an error


def test_what_no_font_has_is_a_code_and_a_sentence(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "_others", list)
    letters = lettering(["猫", "cat"])
    assert (letters.of("猫 a"), letters.of("cat")) == ("\\u732b a", "cat")
    assert letters.note is not None
    assert "U+732B" in letters.note
    assert "Noto Sans CJK" in letters.note


def test_long_names_and_control_characters():
    letters = lettering(["a"])
    assert letters.of("a" * 30, 10) == "a" * 9 + "…"
    assert letters.of("a\nb") == "a\\nb"
