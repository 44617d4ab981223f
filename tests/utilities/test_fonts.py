"""Names in any script: which fonts are chosen."""

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import findfont

from cifnet_pl.utilities import fonts as module
from cifnet_pl.utilities.fonts import BASE, families


def test_matplotlibs_own_font_is_enough_for_many_scripts_and_emoji():
    assert families(["Ströme", "Ёлка", "قطة", "😀"]) == [BASE]


def test_another_font_is_taken_for_what_the_first_lacks(recwarn):
    own, other = module._characters(findfont(BASE)), module._characters(findfont("STIXGeneral"))
    character = chr(min(c for c in other - own if chr(c).isprintable()))
    chosen = families(["plain", f"odd {character}"])
    assert len(chosen) == 2
    figure = Figure()
    FigureCanvasAgg(figure)
    with matplotlib.rc_context({"font.family": chosen}):
        figure.text(0.1, 0.5, f"odd {character}")
        figure.canvas.draw()
    assert not [w for w in recwarn if "Glyph" in str(w.message)]
