"""(f) Time of one more task after many: flat for ``RidgeHead``, linear in the tasks for ``CIFNetHead``."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from copy import deepcopy

import torch

from benchmarks.measure import Row, ratio, seconds, side_by_side, spread
from cifnet_pl.heads import CIFNetHead, Head, RidgeHead
from cifnet_pl.statistics import Sums, solve_ridge
from cifnet_pl.utilities.memory import keep_freed_memory

FEATURES, SAMPLES, CHECKPOINTS = 512, 50, (10, 50, 200, 1000)
FEW = CHECKPOINTS[0]
COHORTS, REPEATS = 500, 7


def task(head: Head, first: int, draw: torch.Generator, classes: int = 2) -> None:
    """Learn a task of new classes, counted from ``first``."""
    y = torch.arange(first, first + classes).repeat(SAMPLES)
    head.begin_task(range(first, first + classes))
    head.observe(torch.randn(len(y), head.in_features, generator=draw), y)
    head.solve()


def growth(name: str, make: Callable[[], Head]) -> list[Row]:
    """One more task, solved and ready to predict, after many tasks and after few: a fresh copy of both each time."""
    head, draw, rows = make(), torch.Generator().manual_seed(0), []
    kept: dict[int, int] = {}
    for tasks in range(1, max(CHECKPOINTS) + 1):
        task(head, 2 * tasks - 2, draw)
        if tasks not in CHECKPOINTS:
            continue
        head.refresh()
        kept[tasks] = sum(head.state_elements().values())
        if tasks == FEW:
            few = deepcopy(head)
            continue
        many, rival = one_more(head, few, draw)
        wanted = "flat but for d² a class" if name == "RidgeHead" else f"≤ {tasks // FEW}"
        title = f"(f) {name}: one more task after {tasks} / after {FEW}"
        about = f"d={FEATURES}, tasks of 2 classes and {2 * SAMPLES} samples, float64; numbers kept: "
        about += f"{kept[tasks]:,} after {tasks}, {kept[FEW]:,} after {FEW}"
        rows.append(Row(title, spread(many), spread(rival), ratio(many, rival), wanted, about))
    return rows


def one_more(head: Head, rival: Head, draw: torch.Generator) -> tuple[list[float], list[float]]:
    """Seconds of learning two more classes and of making ready to predict, alternating, on a fresh copy each time."""

    def once(trial: Head) -> float:
        known = len(trial.labels)

        def learned() -> None:
            task(trial, known, draw)
            trial.refresh()

        return seconds(learned)

    pairs = [(once(deepcopy(head)), once(deepcopy(rival))) for _ in range(REPEATS)]
    return [many for many, _ in pairs], [few for _, few in pairs]


def same_classes() -> Row:
    """One more task of ``RidgeHead`` after many tasks, against one after few tasks of as many classes in all."""
    draw, tasks = torch.Generator().manual_seed(0), max(CHECKPOINTS)
    small, large = RidgeHead(FEATURES), RidgeHead(FEATURES)
    for k in range(tasks):
        task(small, 2 * k, draw)
    size = 2 * tasks // FEW
    for k in range(FEW):
        task(large, size * k, draw, size)
    many, few = one_more(small, large, draw)
    title = f"(f) RidgeHead: one more task after {tasks} / after {FEW} of the same {2 * tasks} classes"
    about = f"d={FEATURES}, tasks of 2 and of {size} classes, {SAMPLES} samples a class, float64; numbers kept: "
    about += f"{sum(small.state_elements().values()):,} and {sum(large.state_elements().values()):,}"
    return Row(title, spread(many), spread(few), ratio(many, few), "flat", about)


def many_systems() -> Row:
    """Every cohort of ``CIFNetHead`` shown one more task and solved, against that many systems solved and no more."""
    head, draw = CIFNetHead(FEATURES, ridge=1.0), torch.Generator().manual_seed(0)
    for k in range(COHORTS):
        task(head, 2 * k, draw)
    sums = [module for module in head.modules() if isinstance(module, Sums)]
    penalty = sums[0].gram.new_tensor(1.0)

    unseen = itertools.count(2 * COHORTS, 2)

    def ours() -> None:
        task(head, next(unseen), draw)
        head.refresh()

    def bare() -> None:
        for module in sums:
            solve_ridge(module.gram, module.class_sums.T, penalty)

    whole, systems = side_by_side(ours, bare, REPEATS)
    title = f"(f) CIFNetHead: one more task after {COHORTS} / as many systems solved"
    about = f"d={FEATURES}, a Cholesky solve of each of {COHORTS} Gram matrices, float64, "
    about += f"{COHORTS * (FEATURES + 1) ** 2 * 8 / 1e9:.2g} GB"
    return Row(title, spread(whole), spread(systems), ratio(whole, systems), "near 1", about)


def rows() -> list[Row]:
    """Both heads at every checkpoint, and what limits them."""
    keep_freed_memory()  # as the command line does
    rows = [many_systems(), same_classes()]
    for name, make in (
        ("RidgeHead", lambda: RidgeHead(FEATURES)),
        ("CIFNetHead", lambda: CIFNetHead(FEATURES, ridge=1.0)),
    ):
        rows += growth(name, make)
    return rows
