"""Marks and intervals against what scipy and brute force say."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from cifnet_pl.report.significance import (
    Stat,
    bootstrap,
    marked,
    paired_test,
    seed_interval,
    stat_of,
    worse_p,
)


def of(**values: float) -> Stat:
    return stat_of(values)


def test_the_paired_test_is_scipys() -> None:
    a = np.array([70.0, 71.0, 69.0, 70.5])
    b = np.array([69.0, 70.2, 68.4, 69.1])
    assert paired_test(a - b) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert paired_test(np.array([1.0])) is None
    assert paired_test(np.zeros(3)) == 1.0
    assert paired_test(np.ones(3)) is None  # no seed changed anything: one measurement, three times
    assert seed_interval(np.ones(3)) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scipy's, of catastrophic cancellation
        assert paired_test(np.array([70.1 - 68.1, 60.1 - 58.1, 2.0])) is None
    interval = seed_interval(a - b)
    low, high = stats.ttest_rel(a, b).confidence_interval()
    assert interval == pytest.approx((low, high))


def test_only_common_seeds_are_compared() -> None:
    low = of(a=60.0, b=61.0, c=62.0)
    high = of(b=71.5, c=72.0, d=50.0)
    assert worse_p(low, high, "max") == pytest.approx(
        stats.ttest_rel([61.0, 62.0], [71.5, 72.0]).pvalue
    )
    assert worse_p(low, high, "min") == 1.0
    assert worse_p(low, of(d=99.0), "max") is None


def test_ties_are_marked_alike_and_nothing_where_nothing_differs() -> None:
    best = of(a=70.0, b=71.0, c=72.0)
    tied = of(a=70.4, b=70.8, c=71.9)
    worse = of(a=60.0, b=61.1, c=62.0)
    assert marked([best, tied, worse], "max") == {0, 1}
    assert marked([best, tied], "max") == set()
    # A mean below one that is not marked is not marked either, however wide its own deviation.
    wide = of(a=40.0, b=75.0, c=50.0)
    assert (worse_p(wide, best, "max") or 0) > 0.05
    assert marked([best, worse, wide], "max") == {0}
    assert marked([best, None, of(a=1.0)], "max") == set()  # one common seed tells nothing
    # A better mean of a single seed is not tested, and what is worse than it is not called best.
    assert marked([best, tied, worse, of(a=95.0)], "max") == set()
    assert marked([best, tied, worse, of(a=65.0)], "max") == {0, 1}


def test_marks_are_corrected_for_the_number_of_comparisons() -> None:
    """A row that is worse at a level of 0.03: alone that is a difference, among ten such rows it is
    none (Holm).
    """
    best = of(a=70.0, b=71.0, c=72.0)
    near = [of(a=69.0 - i / 1e6, b=70.4, c=71.2) for i in range(10)]
    p = stats.ttest_1samp([1.0, 0.6, 0.8], 0.0).pvalue
    assert 0.02 < p < 0.05
    assert marked([best, near[0]], "max") == {0}
    assert marked([best, *near], "max") == set()
    far = [of(a=20.0, b=20.9, c=22.1)] * 9
    assert marked([best, *far], "max") == {0}


def answers(a: np.ndarray, b: np.ndarray, seed: str = "") -> pd.DataFrame:
    """Whether two methods are right on images of one class."""
    return pd.DataFrame({"a": a, "b": b}, index=[("class", f"{seed}{i}") for i in range(len(a))])


def test_the_bootstrap_covers_the_truth() -> None:
    draw = np.random.default_rng(0)
    a = draw.random(4000) < 0.70
    b = draw.random(4000) < 0.66
    low, high = bootstrap([answers(a, b)])
    assert low < 4.0 < high
    # The interval of a mean of independent images, by the normal approximation.
    half = 1.96 * 100 * (a.astype(float) - b).std() / 4000**0.5
    assert high - low == pytest.approx(2 * half, rel=0.05)
    assert bootstrap([answers(a, a)]) == (0, 0)
    assert bootstrap([answers(a, b)]) == (low, high)
    # Four seeds that answer alike are one measurement: they say no more about other images than one
    # of them.
    low, high = bootstrap([answers(a, b)] * 4)
    assert high - low == pytest.approx(2 * half, rel=0.05)


def test_seeds_with_images_of_their_own_are_independent() -> None:
    draw = np.random.default_rng(0)
    seeds = [answers(draw.random(1000) < 0.7, draw.random(1000) < 0.6, f"{s} ") for s in range(2)]
    low, high = bootstrap(seeds)
    assert low < 50 * sum(both["a"].mean() - both["b"].mean() for both in seeds) < high
