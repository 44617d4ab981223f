"""Figures show the numbers that they are given."""

import pytest
from matplotlib.patches import Rectangle

from cifnet_pl.report.curves import pair_bars
from cifnet_pl.report.outcomes import Stat


def test_bars_are_as_long_as_their_numbers() -> None:
    bars = [("full", Stat(80.0, 1.5, 3), Stat(70.0, None, 1)), ("published", None, Stat(64.2, None, 1))]
    (axes,) = pair_bars(bars, "An ablation").axes
    lengths = sorted(bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle))
    assert lengths == pytest.approx([64.2, 70.0, 80.0])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["full", "published"]
    assert sorted(text.get_text()[:4] for text in axes.texts) == ["64.2", "70.0", "80.0"]
    assert axes.get_xlim()[1] > 81.5
