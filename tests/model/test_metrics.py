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


def test_forgetting_is_measured_from_the_best_moment_of_each_task() -> None:
    # Task 0: best 90, last 75; task 1: best 70, last 65; task 2: best 50, last 40.
    assert forgetting(MATRIX) == pytest.approx((15 + 5 + 10) / 3)
    # The best moment need not be the first.
    assert forgetting([[50.0], [80.0, 10.0], [60.0, 30.0, 90.0]]) == pytest.approx(
        (20 + 0) / 2
    )
    # A task that is best at the end is not forgotten at all, rather than less than not at all.
    assert forgetting([[50.0], [80.0, 10.0]]) == 0


def test_backward_transfer_is_measured_from_when_a_task_was_learned() -> None:
    assert backward_transfer(MATRIX) == pytest.approx((-15 - 5 - 10) / 3)
    assert backward_transfer([[50.0], [80.0, 10.0]]) == 30


def test_nothing_measured_is_none_and_never_nan() -> None:
    for figure in (forgetting, backward_transfer, average_accuracy, max_drop):
        assert figure([]) is None
    assert percent(0, 0) is None
    assert wilson_interval(0, 0) == (0.0, 100.0)


def test_tasks_without_test_images_are_left_out() -> None:
    matrix = [[None], [None, 70.0], [None, 40.0, None]]
    assert forgetting(matrix) == 30
    assert backward_transfer(matrix) == -30
    assert forgetting([[None], [None, 70.0]]) is None
    assert backward_transfer([[None], [None, 70.0]]) is None
    # Tested later only: forgotten from there on, but with no accuracy from when it was learned.
    assert forgetting([[None], [60.0, 70.0], [50.0, 70.0, 80.0]]) == 5
    assert backward_transfer([[None], [60.0, 70.0], [50.0, 70.0, 80.0]]) == 0
    # Not tested at the end: unknown.
    assert forgetting([[60.0], [None, 70.0]]) is None
    assert backward_transfer([[60.0], [None, 70.0]]) is None
    assert average_accuracy([None, 80.0, 60.0]) == 70
    assert average_accuracy([None, None]) is None
    assert max_drop([90.0, None, 50.0, 45.0]) == 5
    assert max_drop([None, 50.0]) is None
