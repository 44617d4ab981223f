"""Intervals and tests against scipy and brute force."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cifnet_pl.report.significance import bootstrap_interval, paired_test, seed_interval


def test_the_paired_test_is_scipys() -> None:
    a = np.array([70.0, 71.0, 69.0, 70.5])
    b = np.array([69.0, 70.2, 68.4, 69.1])
    assert paired_test(a - b) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert paired_test(np.array([1.0])) is None
    assert paired_test(np.zeros(3)) == 1.0
    assert (
        paired_test(np.ones(3)) is None
    )  # no seed changed anything: one measurement, three times
    assert seed_interval(np.ones(3)) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scipy's, of catastrophic cancellation
        assert paired_test(np.array([70.1 - 68.1, 60.1 - 58.1, 2.0])) is None
    interval = seed_interval(a - b)
    low, high = stats.ttest_rel(a, b).confidence_interval()
    assert interval == pytest.approx((low, high))


def predictions(a: np.ndarray, b: np.ndarray, seed: str = "") -> pd.DataFrame:
    """Whether two methods are right on images of one class."""
    return pd.DataFrame(
        {"a": a, "b": b}, index=[("class", f"{seed}{i}") for i in range(len(a))]
    )


def test_the_bootstrap_covers_the_truth() -> None:
    draw = np.random.default_rng(0)
    a = draw.random(4000) < 0.70
    b = draw.random(4000) < 0.66
    low, high = bootstrap_interval([predictions(a, b)])
    assert low < 4.0 < high
    # The interval of a mean of independent images, by the normal approximation.
    half = 1.96 * 100 * (a.astype(float) - b).std() / 4000**0.5
    assert high - low == pytest.approx(2 * half, rel=0.05)
    assert bootstrap_interval([predictions(a, a)]) == (0, 0)
    assert bootstrap_interval([predictions(a, b)]) == (low, high)
    # Four seeds that answer alike are one measurement: they say no more about other images than one
    # of them.
    low, high = bootstrap_interval([predictions(a, b)] * 4)
    assert high - low == pytest.approx(2 * half, rel=0.05)


def test_seeds_with_images_of_their_own_are_independent() -> None:
    draw = np.random.default_rng(0)
    seeds = [
        predictions(draw.random(1000) < 0.7, draw.random(1000) < 0.6, f"{s} ")
        for s in range(2)
    ]
    low, high = bootstrap_interval(seeds)
    assert low < 50 * sum(both["a"].mean() - both["b"].mean() for both in seeds) < high
