"""Novelty of every head against its equations, written down sample by sample."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cifnet_pl.heads import ACILHead, FeCAMHead, Head, SLDAHead
from cifnet_pl.heads.trial import WIDTH, TrialTask, learn
from cifnet_pl.statistics.distances import NOVELTY_RIDGE, OVERALL_SHARE
from cifnet_pl.testing import QUERIES, TASKS, Case, difference
from tests.heads.suite import HEADS, teach

Z = torch.cat([task.z for task in TASKS])
Y = torch.cat([task.y for task in TASKS])
SAME = {"cifnet-gcv", "cifnet-released", "ranpac", "acil", "dsal-gcv", "ridge-auto"}
"""Heads that have the sums and the features of another."""

TELLING = [
    case
    for case in HEADS
    if case.id not in SAME and case.values[0].make(WIDTH).tells_novelty
]
telling = pytest.mark.parametrize("case", TELLING)


class Literal:
    """Samples (n, p) of known groups, and the novelty of a query by definition.

    Group −1 is no class: it counts for both scatters, and nothing is near to it.
    """

    def __init__(self, rows: np.ndarray, groups: np.ndarray, ridge: float | None):
        self.rows = rows
        self.groups = groups
        means = {g: rows[groups == g].mean(axis=0) for g in np.unique(groups)}
        self.mean = rows.mean(axis=0)
        n, width = rows.shape
        away = rows - np.stack([means[g] for g in groups])
        within = away.T @ away
        scatter = (rows - self.mean).T @ (rows - self.mean)
        self.ridge = ridge or NOVELTY_RIDGE * np.trace(within) / width
        self.within = n * np.linalg.inv(within + self.ridge * np.eye(width))
        self.scatter = n * np.linalg.inv(scatter + self.ridge * np.eye(width))
        self.length = np.sqrt((rows**2).sum(axis=1).mean())
        self.means = [mean for g, mean in means.items() if g >= 0]

    def of(self, x: np.ndarray) -> torch.Tensor:
        q = x / np.linalg.norm(x, axis=1, keepdims=True) * self.length
        squares = [((q - m) @ self.within * (q - m)).sum(axis=1) for m in self.means]
        overall = ((q - self.mean) @ self.scatter * (q - self.mean)).sum(axis=1)
        return torch.from_numpy(np.min(squares, axis=0) - OVERALL_SHARE * overall)

    def without(self, gone: np.ndarray) -> Literal:
        rows = np.delete(self.rows, gone, axis=0)
        return Literal(rows, np.delete(self.groups, gone), self.ridge)


def literal(head: Head, tasks: list[TrialTask], removed: int | None = None) -> Literal:
    """All samples of a stream as this head weighs them, without the class ``removed``."""
    z = torch.cat([task.z for task in tasks])
    y = torch.cat([task.y for task in tasks])
    groups = torch.unique(y, return_inverse=True)[1]
    if removed is not None:
        groups[y == removed] = -1
    return Literal(rows(head, z), groups.numpy(), None)


def rows(head: Head, z: torch.Tensor) -> np.ndarray:
    return head._novelty_features(z).double().numpy()


def assert_near(found, expected, case, least=0.0):
    assert difference(found, expected) <= max(case.tolerance, least)


@telling
def test_novelty_is_that_of_the_equations(case: Case) -> None:
    """Along the stream, and whatever the length of an embedding."""
    head = case.make(WIDTH)
    for k in range(len(TASKS)):
        learn(head, TASKS[k : k + 1])
        found = head.novelty(QUERIES)
        assert (found.shape, found.dtype) == ((len(QUERIES),), torch.float64)
        expected = literal(head, TASKS[: k + 1]).of(rows(head, QUERIES))
        assert_near(found, expected, case)
    assert_near(head.novelty(7 * QUERIES), found, case)
    assert head.novelty(QUERIES[:0]).shape == (0,)
    assert_near(case.reloaded(head).novelty_function()(QUERIES), found, case)


@telling
def test_leaving_a_group_out_is_learning_without_it(case: Case) -> None:
    """Single samples, groups within classes, and one across classes."""
    head = case.learned()
    full = literal(head, TASKS)
    groups = torch.arange(len(Y))
    groups[1::4] = 1
    for label in Y.unique():
        own = (label == Y).nonzero().flatten()
        groups[own[: len(own) // 2]] = own[0]
    found = head.leave_one_out_novelty(Z, Y, groups)
    expected = torch.zeros_like(found)
    for group in groups.unique():
        gone = (groups == group).nonzero().flatten().numpy()
        expected[gone] = full.without(gone).of(full.rows[gone])
    assert_near(found, expected, case, 1e-8)


@telling
def test_novelty_follows_every_change(case: Case) -> None:
    """Merge and subtract: as if learned at once, and never what was before."""
    head = case.learned()
    if not head.merges:
        return
    first = case.learned(TASKS[:1])
    alone = first.novelty(QUERIES)
    other = case.learned(TASKS[1:])
    first.merge_(other)
    first.solve()
    assert_near(first.novelty(QUERIES), head.novelty(QUERIES), case)
    if head.subtracts:
        first.subtract_(other)
        first.remove_classes(other.classes)
        first.solve()
        assert_near(first.novelty(QUERIES), alone, case, 1e-8)


@telling
def test_a_removed_class_is_unknown_again(case: Case) -> None:
    head = case.learned()
    label = TASKS[2].classes[2]
    own = TASKS[2].z[TASKS[2].y == label]
    before = head.novelty(own)
    head.remove_classes([label])
    after = head.novelty(own)
    # Not of each sample: the overall mean and scatter change, too.
    assert after.mean() > before.mean()
    if isinstance(head, FeCAMHead):  # a class leaves with its matrix
        never = [task.part(task.y != label) for task in TASKS]
        assert_near(after, literal(head, never).of(rows(head, own)), case)
    elif not isinstance(head, ACILHead | SLDAHead):
        # Which keep no sum of what was removed.
        expected = literal(head, TASKS, removed=label).of(rows(head, own))
        assert_near(after, expected, case)


@telling
def test_a_class_with_one_sample(case: Case) -> None:
    """Without it nothing is known of the class."""
    z = QUERIES[:1]
    y = torch.tensor([4])
    head = teach(case.make(WIDTH), z, y)
    assert head.novelty(QUERIES).isfinite().all()
    assert head.leave_one_out_novelty(z, y).isnan().all()
    other = TASKS[1].y == -3
    both = torch.cat([y, TASKS[1].y[other]])
    head = teach(case.make(WIDTH), torch.cat([z, TASKS[1].z[other]]), both)
    assert head.leave_one_out_novelty(z, y).isnan().all()
