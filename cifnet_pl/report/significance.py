"""Average over seeds, and test which differences are more than chance: paired over seeds, and over
test images.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.05
SHARED = "†"
"""Mark of times and energies that were measured while other processes counted; it follows their
conditions' letter.
"""
RESAMPLES = 10_000
BLOCK = 500
"""Resamples of a bootstrap, and how many of them are drawn at once."""
ROUNDING = 1e-12
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
    known = {key: float(value) for key, value in values.items() if value is not None}
    if not known:
        return None
    sd = statistics.stdev(known.values()) if len(known) > 1 else None
    return Stat(statistics.fmean(known.values()), sd, len(known), known)


def fixed(value: float | None, seeds: int = 1) -> Stat | None:
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
        differences: (n,).

    Returns:
        None for fewer than two pairs, and if all seeds have one difference that is not 0: methods
        that no seed changes give one measurement however often they are run.
    """
    if len(differences) < 2:
        return None
    if np.ptp(differences) <= ROUNDING:
        if np.abs(differences).max() <= ROUNDING:
            return 1.0
        return None
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def seed_interval(differences: np.ndarray) -> tuple[float, float] | None:
    """Return the 95 % t interval of the mean over seeds; None for fewer than two, or if all are the
    same.
    """
    if len(differences) < 2 or np.ptp(differences) <= ROUNDING:
        return None
    half = float(stats.t.ppf(1 - LEVEL / 2, len(differences) - 1) * stats.sem(differences))
    return float(differences.mean()) - half, float(differences.mean()) + half


# ---------------------------------------------------------------------- over test images


def mcnemar(both: pd.DataFrame) -> tuple[int, int, float]:
    """Compare two runs over the images that both were tested with, by McNemar's exact test.

    Args:
        both: as :func:`cifnet_pl.report.runs.paired` returns it.

    Returns:
        The numbers of images that only the first and only the second named right, and the
        probability of such a difference, or a larger one, if both were equally good.
    """
    a = both["a"].to_numpy(bool)
    b = both["b"].to_numpy(bool)
    first = int((a & ~b).sum())
    second = int((b & ~a).sum())
    return (
        first,
        second,
        float(stats.binomtest(first, first + second).pvalue) if first + second else 1.0,
    )


def bootstrap(answers: Sequence[pd.DataFrame]) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean difference of accuracy a − b in percentage
    points.

    Seeds are drawn with replacement, and so are test images, the same ones for all seeds, as an
    image that is hard is hard for all of them. The interval covers other class orders and other
    images; with one seed, other images only.

    Args:
        answers: of both methods, for each common seed, as :func:`cifnet_pl.report.runs.paired`
            returns them.
    """
    draw = np.random.default_rng(0)
    n_seeds = len(answers)
    # A row for each image, a column for each seed, NaN where a seed has not been tested on the
    # image.
    each = pd.concat(
        [both["a"].astype(int) - both["b"].astype(int) for both in answers], axis=1
    ).to_numpy(float)
    means = np.nanmean(each, axis=0)
    # Images with the same differences are alike: a resample follows from how many of each kind are
    # drawn.
    table = np.hstack([np.nan_to_num(each), ~np.isnan(each)]).astype(np.int64)
    kinds, counts = np.unique(table, axis=0, return_counts=True)
    totals = []
    for _ in range(RESAMPLES // BLOCK):
        drawn = draw.multinomial(len(each), counts / len(each), size=BLOCK) @ kinds
        sums = drawn[:, :n_seeds]
        sizes = drawn[:, n_seeds:]
        accuracies = np.where(sizes > 0, sums / np.maximum(sizes, 1), means)
        totals.append(
            (
                draw.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=BLOCK) * accuracies
            ).mean(axis=1)
        )
    low, high = np.quantile(np.concatenate(totals), [LEVEL / 2, 1 - LEVEL / 2])
    return 100 * float(low), 100 * float(high)


# ---------------------------------------------------------------------- the best of a column


def worse_p(cell: Stat, leader: Stat, better: str) -> float | None:
    """Compute the p that one cell is no worse than another, over common seeds.

    Args:
        cell, leader: of one column.
        better: "max" or "min".

    Returns:
        Two-sided; 1 if the cell is not behind; None if it cannot be tested.
    """
    differences = np.array(
        [cell.by_seed[key] - leader.by_seed[key] for key in cell.by_seed if key in leader.by_seed]
    )
    p = paired_test(differences)
    if p is None:
        return None
    if better == "max":
        behind = differences.mean() < 0
    else:
        behind = differences.mean() > 0
    if behind:
        return p
    return 1.0


def marked(cells: Sequence[Stat | None], better: str, exact: bool = False) -> set[int]:
    """Return the positions of the cells to mark as best: the best mean, and those after it that it
    is not better than.

    Each cell is tested against the best mean, at a level that is corrected for the number of tests
    (Holm, 1979). In the order of their means, cells are marked up to the first one that is
    significantly worse, or that was not tested, having too few seeds. Nothing is marked where no
    cell is worse than the best one.

    Args:
        cells: of one column, and comparable with each other.
        better: "max" or "min".
        exact: whether the values cannot depend on chance, so that their means are compared as they
            are.

    Returns:
        Positions of the cells.
    """
    known = {i: cell for i, cell in enumerate(cells) if cell is not None}
    if exact:
        best = (max if better == "max" else min)(
            (cell.mean for cell in known.values()), default=None
        )
        winners = {i for i, cell in known.items() if cell.mean == best}
        if len(known) > len(winners):
            return winners
        return set()
    leader, *others = sorted(known, key=lambda i: known[i].mean, reverse=better == "max") or [-1]
    tests = {i: p for i in others if (p := worse_p(known[i], known[leader], better)) is not None}
    by_p = sorted(tests, key=lambda i: tests[i])
    worse = set(
        itertools.takewhile(lambda i: tests[i] <= LEVEL / (len(by_p) - by_p.index(i)), by_p)
    )
    tied = itertools.takewhile(lambda i: i in tests and i not in worse, others)
    if worse:
        return {leader, *tied}
    return set()
