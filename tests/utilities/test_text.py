"""Nouns that fit their number, names written in two ways, and names in any script."""

import io

import matplotlib
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontEntry, findfont, fontManager

from cifnet_pl.utilities import text as module


@pytest.mark.parametrize(
    ("names", "known", "pairs"),
    [
        (["fish"], ["Fish", "cup"], ["'Fish' and 'fish'"]),
        (["a b", "a_b", "A-B "], [], ["'a b' and 'a_b'", "'a b' and 'A-B '"]),
        (
            ["Gr\u00fcn", "Gru\u0308n", "STRASSE", "straße"],
            [],
            ["'Grün' and 'Gru\u0308n'", "'STRASSE' and 'straße'"],
        ),
        (["cup"], ["cup"], []),
        (["cup", "cups", "1", "10"], ["Cub"], []),
    ],
)
def test_class_names_that_differ_only_in_how_they_are_written(names, known, pairs):
    found = module.similar_spellings_message(names, known)
    assert (found is None) == (not pairs)
    for pair in pairs:
        assert pair in found


def test_another_font_is_taken_for_what_matplotlibs_own_lacks(recwarn):
    assert module.families(["Ströme", "Ёлка", "قطة", "😀"]) == [module.FONT]
    own = module._characters(findfont(module.FONT))
    other = module._characters(findfont("STIXGeneral"))
    character = chr(min(c for c in other - own if chr(c).isprintable()))
    chosen = module.families(["plain", f"odd {character}"])
    assert len(chosen) == 2
    figure = Figure()
    FigureCanvasAgg(figure)
    with matplotlib.rc_context({"font.family": chosen}):
        figure.text(0.1, 0.5, f"odd {character}")
        figure.canvas.draw()
    assert not [w for w in recwarn if "Glyph" in str(w.message)]


def test_oblique_and_bold_fonts_are_no_other_families(monkeypatch):
    other = findfont("STIXGeneral")
    character = chr(
        min(module._characters(other) - module._characters(findfont(module.FONT)))
    )
    entries = [
        FontEntry(other, name="Slanted", style="italic", weight=400),
        FontEntry(other, name="Thick", style="normal", weight=700),
    ]
    monkeypatch.setattr(fontManager, "ttflist", entries)
    assert module.families([character]) == [module.FONT]
    entries.append(FontEntry(other, name="Plain", style="normal", weight=400))
    assert module.families([character]) == [module.FONT, "Plain"]


class Terminal(io.StringIO):
    """A stream that a person reads."""

    def isatty(self) -> bool:
        return True


LONG = "accuracy " * 20 + "images/of/a/folder/whose/path/is/longer/than/the/screen"


def test_text_wraps_at_a_terminal_but_commands_and_lines_of_logs_are_whole(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    screen = Terminal()
    module.print_text(LONG, screen)
    lines = screen.getvalue().splitlines()
    assert max(len(line) for line in lines[:-1]) <= 40
    assert lines[-1].strip() == LONG.split()[-1]
    assert " ".join(lines).split() == LONG.split()
    command = module.next_command("info", "--model", LONG)
    for text, stream in ((command, Terminal()), (LONG, io.StringIO())):
        module.print_text(text, stream)
        assert stream.getvalue() == text + "\n"


def test_a_log_says_now_and_then_how_far_a_command_is(monkeypatch, capsys):
    monkeypatch.setattr(module, "LOG_SECONDS", 0)
    assert list(module.counted(iter("abc"), "embedding")) == ["a", "b", "c"]
    said = capsys.readouterr()
    assert said.err.splitlines() == ["embedding: 1", "embedding: 2", "embedding: 3"]
    monkeypatch.setattr(module, "LOG_SECONDS", 30)
    assert list(module.counted("abc", "embedding")) == ["a", "b", "c"]
    assert capsys.readouterr().err == said.out == ""
