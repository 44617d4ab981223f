"""The pictures of a run: any number of classes and tasks, and numbers that can be read."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from cifnet_pl.model.drawing import (
    MAX_NUMBERED_CLASSES,
    MAX_NUMBERED_TASKS,
    clustered,
    draw_calibration,
    draw_confusion,
    draw_trajectory,
)


def test_confused_classes_are_neighbours():
    matrix = 100 * np.eye(8)
    for a, b in ((0, 5), (2, 7), (1, 6)):
        matrix[a, b] = matrix[b, a] = 30
    position = np.argsort(clustered(matrix / matrix.sum(axis=1, keepdims=True)))
    assert sorted(position) == list(range(8))
    assert all(abs(position[a] - position[b]) == 1 for a, b in ((0, 5), (2, 7), (1, 6)))


def test_rows_are_true_classes_and_those_without_images_are_left_out():
    matrix = np.array([[8, 0, 2], [0, 0, 0], [0, 0, 10]])
    axes = draw_confusion(matrix, ["a", "b", "c"], "title").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "c"]
    places = {text.get_text(): text.get_position() for text in axes.texts}
    assert places == {"80": (1, 1), "20": (2, 1), "100": (2, 2)}  # column, row
    assert axes.yaxis_inverted()


def test_calibration_bins():
    confidence = np.array([0.05, 0.95, 0.95, 1.0])
    figure = draw_calibration(confidence, np.array([False, True, False, True]), "title")
    upper, lower = figure.axes
    points = upper.lines[-1].get_xydata()
    np.testing.assert_allclose(points, [[0.05, 0.0], [2.9 / 3, 2 / 3]])
    assert [bar.get_height() for bar in lower.patches] == [1, *[0] * 8, 3]


def accuracy_matrix(tasks: int):
    """The axes of the accuracy matrix of a run without errors."""
    accuracy = [100.0] * tasks
    matrix = [[100.0] * (k + 1) for k in range(tasks)]
    classes_seen = range(2, 2 * tasks + 2, 2)
    return draw_trajectory(classes_seen, accuracy, accuracy, matrix, "run").axes[1]


def confusions(classes: int):
    """The axes of a picture with a number in every cell."""
    matrix = np.full((classes, classes), 1) + np.diag([200] * classes)
    axes = draw_confusion(matrix, [str(i) for i in range(classes)], "title").axes[0]
    assert len(axes.texts) >= classes
    return axes


@pytest.mark.parametrize(
    ("draw", "count"),
    [(confusions, MAX_NUMBERED_CLASSES), (accuracy_matrix, MAX_NUMBERED_TASKS)],
)
def test_numbers_fit_their_cells_and_can_be_read(draw, count):
    drawn = draw(count)
    renderer = FigureCanvasAgg(drawn.figure).get_renderer()
    width, height = np.abs(
        drawn.transData.transform((1, 1)) - drawn.transData.transform((0, 0))
    )
    for text in drawn.texts:
        box = text.get_window_extent(renderer)
        assert box.width < width
        assert box.height < height
        assert text.get_fontsize() >= 10
