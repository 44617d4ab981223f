"""The picture of a run: an axis that does not exaggerate, and numbers in the matrix."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from cifnet_pl.learning.callbacks.pictures import NUMBERED, draw_trajectory, limits
from cifnet_pl.learning.run_record import RunRecord, TaskRow


def record(accuracies: list[float | None]) -> RunRecord:
    """A run in which every task has the accuracy of the whole."""
    rows = [
        TaskRow(k + 1, 2 * k + 2, a, a, None, None, 1.0, 1.0, 1.0, None, None, 1, 0, None)
        for k, a in enumerate(accuracies)
    ]
    return RunRecord(rows, [[a] * (k + 1) for k, a in enumerate(accuracies)])


@pytest.mark.parametrize(
    ("accuracies", "lowest"), [([100.0, 98.6], 50), ([95.0, 47.0], 40), ([31.0, 30.5], 20), ([1.0], 0), ([None], 50)]
)
def test_small_changes_look_small(accuracies: list[float | None], lowest: float):
    assert limits(accuracies) == (lowest, 101)
    upper = draw_trajectory(record(accuracies), "run").axes[0]
    assert upper.get_ylim() == (lowest, 101)


def test_cells_have_numbers_where_there_is_room():
    lower = draw_trajectory(record([100.0, 98.6, None]), "run").axes[1]
    assert [text.get_text() for text in lower.texts] == ["100", "99", "99"]
    assert not draw_trajectory(record([90.0] * (NUMBERED + 1)), "run").axes[1].texts


def test_axes_count_whole_classes_and_tasks():
    figure = draw_trajectory(record([98.0]), "run")  # a run of a single task
    axes = figure.axes[:2]
    ticks = [tick for axis in (axes[0].xaxis, axes[1].xaxis, axes[1].yaxis) for tick in axis.get_majorticklocs()]
    assert all(tick == round(tick) for tick in ticks)


@pytest.mark.parametrize("tasks", [5, NUMBERED])
def test_numbers_fit_their_cells_and_can_be_read(tasks: int):
    figure = draw_trajectory(record([100.0] * tasks), "run")
    lower = figure.axes[1]
    renderer = FigureCanvasAgg(figure).get_renderer()
    width, height = np.abs(lower.transData.transform((1, 1)) - lower.transData.transform((0, 0)))
    for text in lower.texts:
        box = text.get_window_extent(renderer)
        assert box.width < width
        assert box.height < height
        assert text.get_fontsize() >= 10
