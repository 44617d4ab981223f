"""Figures of runs and evaluations, against values worked out by hand."""

import pytest

from cifnet_pl.model.metrics import (
    average_accuracy,
    backward_transfer,
    forgetting,
    max_drop,
    percent,
    wilson_interval,
)

MATRIX = [[90.0], [80.0, 70.0], [85.0, 60.0, 50.0], [75.0, 65.0, 40.0, 95.0]]


@pytest.mark.parametrize(
    ("matrix", "forgotten", "transfer"),
    [
        (MATRIX, (15 + 5 + 10) / 3, (-15 - 5 - 10) / 3),
        # The best moment need not be the first.
        ([[50.0], [80.0, 10.0], [60.0, 30.0, 90.0]], (20 + 0) / 2, (10 + 20) / 2),
        # Best at the end: not forgotten at all, rather than less than not at all.
        ([[50.0], [80.0, 10.0]], 0, 30),
        # Tasks without test images are left out.
        ([[None], [None, 70.0], [None, 40.0, None]], 30, -30),
        ([[None], [None, 70.0]], None, None),
        # Tested later only: forgotten from there on, but not known from when it was learned.
        ([[None], [60.0, 70.0], [50.0, 70.0, 80.0]], 5, 0),
        # Not tested at the end: unknown.
        ([[60.0], [None, 70.0]], None, None),
    ],
)
def test_forgetting_from_the_best_moment_and_transfer_from_the_first(
    matrix, forgotten, transfer
) -> None:
    assert forgetting(matrix) == pytest.approx(forgotten)
    assert backward_transfer(matrix) == pytest.approx(transfer)


def test_nothing_measured_is_none_and_never_nan() -> None:
    for figure in (forgetting, backward_transfer, average_accuracy, max_drop):
        assert figure([]) is None
    assert percent(0, 0) is None
    assert wilson_interval(0, 0) == (0.0, 100.0)


def test_tasks_without_test_images_are_left_out() -> None:
    assert average_accuracy([None, 80.0, 60.0]) == 70
    assert average_accuracy([None, None]) is None
    assert max_drop([90.0, None, 50.0, 45.0]) == 5
    assert max_drop([None, 50.0]) is None
