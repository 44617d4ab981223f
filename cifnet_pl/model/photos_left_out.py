"""Judge embeddings on disk by a classifier that learned all others but their near-copies, some at a time."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.heads import RidgeHead
from cifnet_pl.statistics import comparable, joined, left_out_groups, near_limit
from cifnet_pl.statistics.near_copies import SAMPLED

AT_ONCE = 2048
"""Embeddings in memory at once, in float64."""


@dataclass(frozen=True)
class Rows:
    """Some rows of an array, read when they are asked for: those of a memory-mapped array stay on the disk.

    Attributes:
        z: (n, d).
        rows: (m,) int64 positions in ``z``.
    """

    z: np.ndarray
    rows: np.ndarray

    @property
    def shape(self) -> tuple[int, int]:
        """Number of the rows, and their width."""
        return len(self.rows), self.z.shape[1]

    def __getitem__(self, chosen: slice | np.ndarray) -> np.ndarray:
        return np.asarray(self.z[self.rows[chosen]])


Embeddings = np.ndarray | Rows


def taken(z: Embeddings, rows: np.ndarray) -> Tensor:
    """Return a copy of some rows (m,) in memory, (m, d)."""
    return torch.from_numpy(np.array(z[rows]))


def unit(z: Tensor) -> Tensor:
    """Return embeddings (m, d) at length 1, float64."""
    return torch.nn.functional.normalize(z.double(), dim=1)


def batches(z: Embeddings, labels: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield embeddings and labels, ``AT_ONCE`` at a time."""
    for start in range(0, len(labels), AT_ONCE):
        batch = slice(start, start + AT_ONCE)
        yield torch.from_numpy(np.array(z[batch])), torch.from_numpy(labels[batch])


def learned(z: Embeddings, labels: np.ndarray, classes: int) -> RidgeHead:
    """Return an exact head that has learned all rows.

    Args:
        z: (n, d).
        labels: (n,) int64 in 0 … ``classes`` − 1.
        classes: number of classes.
    """
    head = RidgeHead(z.shape[1])
    head.begin_task(range(classes))
    for x, y in batches(z, labels):
        head.observe(x, y)
    head.solve()
    return head


def left_out(
    head: RidgeHead, z: Embeddings, labels: np.ndarray, groups: np.ndarray
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Yield rows and their scores without all rows of their group, about ``AT_ONCE`` at a time.

    Args:
        head: that has learned all rows.
        z: (n, d).
        labels: (n,) int64.
        groups: (n,) int64 below n, equal for rows that are left out together.
    """
    for rows in whole_groups(groups):
        yield rows, head.leave_one_out(taken(z, rows), *map(torch.from_numpy, (labels[rows], groups[rows])))
    for rows in large_groups(groups):
        rest = _without(head, z, labels, rows)
        yield from ((part, rest(taken(z, part))) for part in _parts(rows))


def with_group_sums(z: Embeddings, groups: np.ndarray) -> Iterator[tuple[np.ndarray, Tensor, Tensor, Tensor]]:
    """Yield rows brought to length 1, about ``AT_ONCE`` at a time, with what their groups are.

    Args:
        z: (n, d).
        groups: (n,) int64 below n.

    Yields:
        (m,) rows, their embeddings (m, d) float64, and the sum (m, d) and the number (m,) of those of each one's group.
    """
    for rows in whole_groups(groups):
        x, group = unit(taken(z, rows)), torch.from_numpy(np.unique(groups[rows], return_inverse=True)[1])
        sums = x.new_zeros(int(group.max()) + 1, x.shape[1]).index_add_(0, group, x)
        yield rows, x, sums[group], group.bincount()[group]
    for rows in large_groups(groups):
        total = torch.zeros(z.shape[1], dtype=torch.float64)
        for part in _parts(rows):
            total += unit(taken(z, part)).sum(dim=0)
        for part in _parts(rows):
            yield part, unit(taken(z, part)), total.expand(len(part), -1), torch.full((len(part),), len(rows))


def whole_groups(groups: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of groups of at most ``AT_ONCE``, about as many at a time, those of one group in one part."""
    rows = np.flatnonzero(~_is_large(groups))
    order = rows[np.argsort(groups[rows], kind="stable")]
    first = np.flatnonzero(np.diff(groups[order], prepend=-1))  # of each group
    ends = first[np.searchsorted(first, np.arange(AT_ONCE, len(order), AT_ONCE), side="right") - 1]
    yield from (np.sort(part) for part in np.split(order, np.unique(ends)) if len(part))


def large_groups(groups: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the rows of each group of more than ``AT_ONCE``."""
    large = _is_large(groups)
    yield from (np.flatnonzero(groups == group) for group in np.unique(groups[large]))


def _is_large(groups: np.ndarray) -> np.ndarray:
    return np.asarray(np.bincount(groups)[groups] > AT_ONCE)


def _parts(rows: np.ndarray) -> list[np.ndarray]:
    return np.split(rows, range(AT_ONCE, len(rows), AT_ONCE))


def _without(head: RidgeHead, z: Embeddings, labels: np.ndarray, rows: np.ndarray) -> RidgeHead:
    """Return the head as if it had not learned some rows, at the same ridge, from its sums without theirs."""
    gone = head.fresh()
    gone.begin_task(head.classes)
    for part in _parts(rows):
        gone.observe(taken(z, part), torch.from_numpy(labels[part]))
    rest = copy.deepcopy(head)
    rest.subtract_(gone)
    rest.ridge = head.ridge_used.item()
    rest.solve()
    return rest


def _comparable(z: Embeddings, rows: np.ndarray, part: Tensor) -> Tensor:
    return comparable(taken(z, rows[part.numpy()]))


class NearCopies(NamedTuple):
    """The near-copies among photos.

    Attributes:
        groups: (n,) int64, equal for photos that are left out together.
        copied: (n,) bool, which photos have a near-copy in their class.
        judged: (n,) bool, which can be judged: not the only photo of a class, nor those of a class that are all
            near-copies of one another, as without them nothing is known of it.
    """

    groups: np.ndarray
    copied: np.ndarray
    judged: np.ndarray


def near_copies(z: Embeddings, labels: np.ndarray) -> NearCopies:
    """Find near-copies of one class, such as bursts.

    Args:
        z: (n, d) embeddings.
        labels: (n,) int64.
    """
    groups, copied = np.arange(len(labels)), np.zeros(len(labels), dtype=bool)
    judged = np.bincount(labels)[labels] > 1
    by_class = np.argsort(labels, kind="stable")
    sample = np.sort(by_class[:: -(-len(labels) // SAMPLED)])
    limit = near_limit(comparable(taken(z, sample)), torch.from_numpy(labels[sample]))
    if limit is None:  # one class
        return NearCopies(groups, copied, judged)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        alike = joined(partial(_comparable, z, rows), len(rows), limit)
        copied[rows] = (alike.bincount()[alike] > 1).numpy()
        judged[rows] = (alike.bincount()[alike] < len(rows)).numpy()
        together = left_out_groups(alike, torch.zeros(len(rows), dtype=torch.int64)).numpy()
        _, first, group = np.unique(together, return_index=True, return_inverse=True)
        groups[rows] = rows[first][group]
    return NearCopies(groups, copied, judged)
