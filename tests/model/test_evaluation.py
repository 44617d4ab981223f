"""Evaluation of a model on labelled photos, against numbers worked out by hand."""

import numpy as np
import pytest

from cifnet_pl.model.metrics import FEW, Evaluation, compare, interval
from cifnet_pl.utilities.errors import DataError

NAMES = ["ant", "bee", "cat"]


def evaluation(target: list[int], predicted: list[int], rows: list[int] | None = None) -> Evaluation:
    size = len(target)
    positions = np.arange(size) if rows is None else np.array(rows)
    return Evaluation(NAMES, positions, np.array(target), np.array(predicted), np.full(size, 0.9), 3.0)


def test_scores_confusions_and_pairs():
    result = evaluation([0] * 6 + [1] * 6 + [2] * 2, [0, 0, 0, 1, 1, 2] + [1] * 6 + [2, 0])
    assert result.accuracy == pytest.approx(100 * 10 / 14)
    assert result.confusion().tolist() == [[3, 2, 1], [0, 6, 0], [1, 0, 1]]
    scores = result.class_scores()
    assert [(s.name, s.right, s.photos, s.taken_for, s.tested) for s in scores] == [
        ("ant", 3, 6, ("bee", 2), True),
        ("bee", 6, 6, None, True),
        ("cat", 1, 2, ("ant", 1), False),
    ]
    assert result.confused_pairs()[0] == ("ant", "bee", 2, 6)
    assert FEW == 5


def test_interval_is_wilsons():
    # Wilson (1927): (p + z²/2n ± z·sqrt(p(1−p)/n + z²/4n²)) / (1 + z²/n)
    z, n, p = 1.959963984540054, 20, 0.75
    middle, width = p + z**2 / (2 * n), z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    expected = [100 * (middle + sign * width) / (1 + z**2 / n) for sign in (-1, 1)]
    assert interval(15, 20) == pytest.approx(expected)
    assert interval(0, 0) == (0.0, 100.0)


def test_comparison_on_the_photos_that_both_were_asked_about():
    first = evaluation([0, 0, 1, 1, 2], [0, 0, 1, 0, 2], [1, 2, 3, 4, 9])
    second = evaluation([0, 0, 1, 1], [0, 1, 0, 0], [1, 2, 3, 4])
    result = compare(first, second)
    assert (result.both, result.first, result.second, result.neither) == (1, 2, 0, 1)
    assert result.accuracies == (75.0, 25.0)
    assert result.p_value == pytest.approx(0.5)  # two heads of two coins, either way
    with pytest.raises(DataError, match="no class in common"):
        compare(first, evaluation([0], [0], [77]))
