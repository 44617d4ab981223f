"""(f) Time of one more task after many, against that many systems solved."""

from __future__ import annotations

import itertools

import torch

from benchmarks.measure import Row, ratio, side_by_side, spread
from cifnet_pl.heads import CIFNetHead, Head
from cifnet_pl.statistics import Sums, solve_ridge

FEATURES = 512
SAMPLES = 50
COHORTS = 500
REPEATS = 7


def task(head: Head, first: int, draw: torch.Generator) -> None:
    """Learn a task of two new classes, counted from ``first``."""
    y = torch.arange(first, first + 2).repeat(SAMPLES)
    head.begin_task(range(first, first + 2))
    head.observe(torch.randn(len(y), head.in_features, generator=draw), y)
    head.solve()


def rows() -> list[Row]:
    """Every cohort of ``CIFNetHead`` shown one more task and solved, against that many systems
    solved and no more.
    """
    head = CIFNetHead(FEATURES, ridge=1.0)
    draw = torch.Generator().manual_seed(0)
    for k in range(COHORTS):
        task(head, 2 * k, draw)
    sums = [module for module in head.modules() if isinstance(module, Sums)]
    penalty = sums[0].gram.new_tensor(1.0)

    unseen = itertools.count(2 * COHORTS, 2)

    def ours() -> None:
        task(head, next(unseen), draw)

    def bare() -> None:
        for module in sums:
            solve_ridge(module.gram, module.class_sums.T, penalty)

    whole, systems = side_by_side(ours, bare, REPEATS)
    title = f"(f) CIFNetHead: one more task after {COHORTS} / as many systems solved"
    about = (
        f"d={FEATURES}, a Cholesky solve of each of {COHORTS} Gram matrices, float64, "
    )
    about += f"{COHORTS * (FEATURES + 1) ** 2 * 8 / 1e9:.2g} GB"
    return [
        Row(
            title,
            spread(whole),
            spread(systems),
            ratio(whole, systems),
            "near 1",
            about,
        )
    ]
