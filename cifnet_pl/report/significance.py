"""Test which differences between methods are more than chance: paired over seeds, and over test images."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from cifnet_pl.report.outcomes import Stat
from cifnet_pl.report.runs import paired

LEVEL = 0.05
RESAMPLES, BLOCK = 10_000, 500
"""Resamples of a bootstrap, and how many of them are drawn at once."""
ROUNDING = 1e-12
"""Differences that differ by less are the same: percentages are computed in float64."""


def common_differences(a: Stat, b: Stat) -> np.ndarray:
    """Return the differences a − b over the seeds that both have.

    Returns:
        (n,) float64.
    """
    return np.array([a.by_seed[key] - b.by_seed[key] for key in a.by_seed if key in b.by_seed], dtype=np.float64)


def paired_test(differences: np.ndarray) -> float | None:
    """Compute the two-sided p of the paired t-test that the mean difference is 0.

    Args:
        differences: (n,).

    Returns:
        None for fewer than two pairs, and if all seeds have one difference that is not 0: methods that no seed changes
        give one measurement however often they are run.
    """
    if len(differences) < 2:
        return None
    if np.ptp(differences) <= ROUNDING:
        return 1.0 if np.abs(differences).max() <= ROUNDING else None
    return float(stats.ttest_1samp(differences, 0.0).pvalue)


def is_worse(cell: Stat, rival: Stat, better: str) -> bool | None:
    """Test whether one cell is significantly worse than another, over common seeds or over one seed's test images.

    Args:
        cell, rival: of one column.
        better: "max" or "min".

    Returns:
        None if it cannot be tested.
    """
    differences = common_differences(cell, rival)
    p = paired_test(differences)
    if p is None:
        p = _single_run_test(cell, rival)
    if p is None or not len(differences):
        return None
    behind = differences.mean() < 0 if better == "max" else differences.mean() > 0
    return bool(behind and p < LEVEL)


def _single_run_test(cell: Stat, rival: Stat) -> float | None:
    """Compute McNemar's p of two runs of a common seed that kept their predictions; None where they did not."""
    common = [key for key in cell.answers if key in rival.answers]
    if not common:
        return None
    _, a, b = paired(cell.answers[common[0]], rival.answers[common[0]])
    return mcnemar(a, b)[2] if len(a) else None


def marked(cells: Sequence[Stat | None], better: str, exact: bool = False) -> set[int]:
    """Return the positions of the cells to mark as best: the best mean, and those after it that nothing is better than.

    In the order of their means, cells are marked up to the first one that another one is significantly better than, or
    that was not tested, having too few seeds: no marked cell has a worse mean than one that is not marked. Nothing is
    marked where nothing can be told apart: fewer than two cells with two common seeds, or all of them tied.

    Args:
        cells: of one column, and comparable with each other.
        better: "max" or "min".
        exact: whether the values cannot depend on chance, so that their means are compared as they are.

    Returns:
        Positions of the cells.
    """
    known = {i: cell for i, cell in enumerate(cells) if cell is not None}
    if exact:
        best = (max if better == "max" else min)((cell.mean for cell in known.values()), default=None)
        winners = {i for i, cell in known.items() if cell.mean == best}
        return winners if len(known) > len(winners) else set()
    found = {i: [is_worse(cell, rival, better) for j, rival in known.items() if j != i] for i, cell in known.items()}
    tested = {i: verdicts for i, verdicts in found.items() if any(verdict is not None for verdict in verdicts)}
    ordered = sorted(known, key=lambda i: known[i].mean, reverse=better == "max")
    leading = set(itertools.takewhile(lambda i: i in tested and True not in tested[i], ordered))
    return leading if len(tested) > len(leading) else set()


# ---------------------------------------------------------------------- over test images


@dataclass(frozen=True)
class Interval:
    """A difference with its 95 % interval; percentage points."""

    mean: float
    low: float
    high: float


Answers = tuple[np.ndarray, np.ndarray, np.ndarray]
"""(n,) identities of test images, and (n,) bool twice: whether the first and the second method are right on them."""


def bootstrap(answers: Sequence[Answers], seed: int = 0) -> Interval:
    """Return the mean difference of accuracy a − b in percentage points, with its percentile interval.

    Seeds are drawn with replacement, and so are test images, the same ones for all seeds, as an image that is hard is
    hard for all of them. The interval covers other class orders and other photos; with one seed, other photos only.

    Args:
        answers: of both methods, for each common seed.
        seed: of the resampling.
    """
    draw, n_seeds = np.random.default_rng(seed), len(answers)
    names, position = np.unique(np.concatenate([images for images, _, _ in answers]), return_inverse=True)
    differences = np.zeros((len(names), n_seeds), dtype=np.int64)
    tested = np.zeros_like(differences)
    column = np.repeat(np.arange(n_seeds), [len(images) for images, _, _ in answers])
    differences[position, column] = np.concatenate([a.astype(np.int64) - b for _, a, b in answers])
    tested[position, column] = 1
    means = differences.sum(axis=0) / tested.sum(axis=0)
    # Images with the same differences are alike: a resample follows from how many of each kind are drawn.
    kinds, counts = np.unique(np.hstack([differences, tested]), axis=0, return_counts=True)
    totals = []
    for _ in range(RESAMPLES // BLOCK):
        drawn = draw.multinomial(len(names), counts / len(names), size=BLOCK) @ kinds
        sums, sizes = drawn[:, :n_seeds], drawn[:, n_seeds:]
        each = np.where(sizes > 0, sums / np.maximum(sizes, 1), means)
        totals.append((draw.multinomial(n_seeds, np.full(n_seeds, 1 / n_seeds), size=BLOCK) * each).mean(axis=1))
    low, high = np.quantile(np.concatenate(totals), [LEVEL / 2, 1 - LEVEL / 2])
    return Interval(100 * float(means.mean()), 100 * float(low), 100 * float(high))


def mcnemar(a: np.ndarray, b: np.ndarray) -> tuple[int, int, float]:
    """Compute the exact McNemar test of two classifiers on the same images.

    Args:
        a: (n,) bool, whether the first is right.
        b: (n,) bool, whether the second is right.

    Returns:
        (images that only a has right, images that only b has right, two-sided p).
    """
    only_a, only_b = int(np.sum(a & ~b)), int(np.sum(b & ~a))
    if only_a + only_b == 0:
        return 0, 0, 1.0
    return only_a, only_b, float(stats.binomtest(only_a, only_a + only_b).pvalue)


def seed_interval(differences: np.ndarray) -> Interval | None:
    """Return the mean difference with its t interval over seeds; None for fewer than two, or if all are the same."""
    if len(differences) < 2 or np.ptp(differences) <= ROUNDING:
        return None
    half = float(stats.t.ppf(1 - LEVEL / 2, len(differences) - 1) * stats.sem(differences))
    mean = float(differences.mean())
    return Interval(mean, mean - half, mean + half)


def ratio(cell: Stat | None, reference: Stat | None) -> Stat | None:
    """Return ``cell`` / ``reference``, over common seeds if there are any; None if one of them is missing."""
    if cell is None or reference is None or not reference.mean:
        return None
    common: Mapping[str, float] = {
        key: cell.by_seed[key] / reference.by_seed[key]
        for key in cell.by_seed if reference.by_seed.get(key)
    }  # fmt: skip
    if not common:
        return Stat(cell.mean / reference.mean, None, min(cell.n, reference.n))
    values = np.array(list(common.values()))
    sd = float(values.std(ddof=1)) if len(values) > 1 else None
    return Stat(float(values.mean()), sd, len(values), common)
