"""Figures show the numbers that they are given."""

import matplotlib
import pytest
from matplotlib.patches import Rectangle

from cifnet_pl.report.accuracy_figures import pair_bars, trajectories
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.significance import Stat
from cifnet_pl.report.study import Group, Outcome, Study
from cifnet_pl.report.style import SETTINGS


def test_bars_are_as_long_as_their_numbers() -> None:
    bars = [("full", Stat(80.0, 1.5, 3), Stat(70.0, None, 1)), ("published", None, Stat(64.2, None, 1))]
    chart = pair_bars(bars, "An ablation")
    (axes,), (legend,) = chart.axes, chart.legends
    assert [text.get_text() for text in legend.get_texts()] == [r"average accuracy $\bar{A}$", "final accuracy $A_K$"]
    lengths = sorted(bar.get_width() for bar in axes.patches if isinstance(bar, Rectangle))
    assert lengths == pytest.approx([64.2, 70.0, 80.0])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["full", "published"]
    assert sorted(text.get_text()[:4] for text in axes.texts) == ["64.2", "70.0", "80.0"]
    assert axes.get_xlim()[1] > 81.5


def test_labels_say_how_many_seeds_where_numbers_differ() -> None:
    setting = Setting("photos", "10", 2, 20, 128, "file:x", "p")

    def legend(*seeds: int) -> list[str]:
        groups = [
            Group(setting, f"M{i}", "measured", [Outcome(s, (90.0, 80.0), {}, key=str(s)) for s in range(n)])
            for i, n in enumerate(seeds)
        ]
        with matplotlib.rc_context(SETTINGS):
            (picture, *_) = trajectories(Study(groups), setting)
        return [text.get_text() for text in picture.figure.legends[0].get_texts()]

    assert legend(2, 3) == ["M0 (n = 2)", "M1 (n = 3)"]
    assert legend(3, 3) == ["M0", "M1"]


def test_deviations_end_at_0_and_100_percent() -> None:
    setting = Setting("photos", "10", 2, 20, 128, "file:x", "p")
    seeds = [Outcome(seed, (99.0 + spread, 1.0 + spread), {}, key=str(seed)) for seed, spread in ((1, 1.0), (2, -1.0))]
    with matplotlib.rc_context(SETTINGS):
        (picture,) = trajectories(Study([Group(setting, "A", "external", seeds)]), setting)
    (axes,) = picture.figure.axes
    (bars,) = axes.containers
    (segments,) = bars.lines[2]  # type: ignore[attr-defined]
    ends = [sorted(end for _, end in segment) for segment in segments.get_segments()]
    sd = 2**0.5
    assert ends == [pytest.approx([99 - sd, 100.0]), pytest.approx([0.0, 1 + sd])]
    assert axes.get_ylim()[0] >= -2
    assert axes.get_ylim()[1] <= 102
