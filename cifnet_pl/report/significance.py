"""Average over seeds, and compare two methods: paired over seeds, and over test images."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.05
"""One minus the coverage of all intervals."""

RESAMPLES = 10_000
RESAMPLES_PER_BLOCK = 500
"""Resamples of a bootstrap, and how many of them are drawn at once."""

SAME_DIFFERENCE = 1e-12
"""Differences that differ by less are the same: percentages are computed in float64."""


@dataclass(frozen=True)
class Stat:
    """Mean and deviation over seeds.

    Attributes:
        mean: over seeds.
        sd: standard deviation (n − 1); None for a single seed.
        n: number of seeds.
        by_seed: value of each seed.
    """

    mean: float
    sd: float | None
    n: int
    by_seed: Mapping[str, float] = field(default_factory=dict, compare=False)


def stat_of(values: Mapping[str, float | None]) -> Stat | None:
    """Return the mean and sample standard deviation of the values that are not None.

    Args:
        values: one for each seed.

    Returns:
        None if all are None.

    Example:
        >>> stat_of({"1": 96.0, "2": 98.0, "3": None}).mean
        97.0
    """
    known: dict[str, float] = {}
    for seed, value in values.items():
        if value is not None:
            known[seed] = float(value)
    if not known:
        return None
    sd = None
    if len(known) > 1:
        sd = statistics.stdev(known.values())
    mean = statistics.fmean(known.values())
    return Stat(mean, sd, len(known), known)


def without_deviation(value: float | None, seeds: int = 1) -> Stat | None:
    """Return a number without deviation, such as that of a formula or of the paper.

    Args:
        value: the number, or None.
        seeds: number of seeds to show.
    """
    if value is None:
        return None
    return Stat(float(value), None, seeds)


# ---------------------------------------------------------------------- over seeds


def paired_test(differences: np.ndarray) -> float | None:
    """Compute the two-sided p of the paired t-test that the mean difference is 0.

    Args:
        differences: (n,), one for each seed.

    Returns:
        1 if all differences are 0. None for fewer than two pairs, and if all seeds have one
        difference that is not 0: methods that no seed changes give one measurement however often
        they are run.
    """
    if len(differences) < 2:
        return None
    if np.ptp(differences) > SAME_DIFFERENCE:
        return float(stats.ttest_1samp(differences, 0.0).pvalue)
    if np.abs(differences).max() <= SAME_DIFFERENCE:
        return 1.0
    return None


def seed_interval(differences: np.ndarray) -> tuple[float, float] | None:
    """Return the 95 % t interval of the mean over seeds.

    Returns:
        None for fewer than two seeds, and if all differences are the same.
    """
    if len(differences) < 2 or np.ptp(differences) <= SAME_DIFFERENCE:
        return None
    degrees_of_freedom = len(differences) - 1
    level = 1 - LEVEL / 2
    quantile = stats.t.ppf(level, degrees_of_freedom)
    error = stats.sem(differences)
    half = float(quantile * error)
    mean = float(differences.mean())
    return mean - half, mean + half


# ---------------------------------------------------------------------- over test images


class McNemarTest(NamedTuple):
    """Result of McNemar's exact test.

    Attributes:
        only_first, only_second: numbers of images that only one of the two predicts correctly.
        p: probability of such a difference, or a larger one, if both were equally good; 1 where
            every image is predicted correctly by both or by neither.
    """

    only_first: int
    only_second: int
    p: float


def mcnemar(frame: pd.DataFrame) -> McNemarTest:
    """Compare two runs over the images that both were tested with, by McNemar's exact test.

    Args:
        frame: as :func:`cifnet_pl.report.runs.paired_predictions` returns it.
    """
    first = frame["a"].to_numpy(bool)
    second = frame["b"].to_numpy(bool)
    first_alone = first & ~second
    only_first = int(first_alone.sum())
    second_alone = second & ~first
    only_second = int(second_alone.sum())
    p = 1.0
    if only_first + only_second:
        discordant = only_first + only_second
        test = stats.binomtest(only_first, discordant)
        p = float(test.pvalue)
    return McNemarTest(only_first, only_second, p)


def bootstrap_interval(frames: Sequence[pd.DataFrame]) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean difference of accuracy a − b in points.

    Seeds are drawn with replacement, and so are test images. The images are the same for all
    seeds, since an image that is hard is hard for all of them. The interval covers other class
    orders and other images; with one seed, other images only.

    Args:
        frames: predictions of both methods, for each common seed, as
            :func:`cifnet_pl.report.runs.paired_predictions` returns them.
    """
    generator = np.random.default_rng(0)
    n_seeds = len(frames)
    # A row for each image, a column for each seed, NaN where a seed was not tested on the image.
    columns = []
    for frame in frames:
        first = frame["a"].astype(int)
        second = frame["b"].astype(int)
        columns.append(first - second)
    joined = pd.concat(columns, axis=1)
    differences = joined.to_numpy(float)
    n_images = len(differences)
    means = np.nanmean(differences, axis=0)
    # Images with the same differences are alike: how many of each kind are drawn is enough.
    tested = ~np.isnan(differences)
    known_differences = np.nan_to_num(differences)
    rows = np.hstack([known_differences, tested])
    table = rows.astype(np.int64)
    kinds, counts = np.unique(table, axis=0, return_counts=True)
    resampled = []
    for _ in range(RESAMPLES // RESAMPLES_PER_BLOCK):
        shares = counts / n_images
        of_kinds = generator.multinomial(n_images, shares, size=RESAMPLES_PER_BLOCK)
        drawn = of_kinds @ kinds
        sums = drawn[:, :n_seeds]
        sizes = drawn[:, n_seeds:]
        tested_images = np.maximum(sizes, 1)
        by_seed = np.where(sizes > 0, sums / tested_images, means)
        shares = np.full(n_seeds, 1 / n_seeds)
        of_seeds = generator.multinomial(n_seeds, shares, size=RESAMPLES_PER_BLOCK)
        weighted = of_seeds * by_seed
        resampled.append(weighted.mean(axis=1))
    ends = [LEVEL / 2, 1 - LEVEL / 2]
    all_means = np.concatenate(resampled)
    low, high = np.quantile(all_means, ends)
    return 100 * float(low), 100 * float(high)
