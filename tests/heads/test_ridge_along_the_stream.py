"""What a ridge is worth where the number of samples passes the width of a projection (the paper's fig:long_tail).

Real scans; the same on photos, with 10 and 50 tasks, is docs/ridge.md.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from cifnet_pl.heads import ACILHead, DSALHead, Head

WIDTH, LEARNED = 600, 900
"""About 90 samples a digit: the sixth or seventh task reaches the width."""


def trajectory(head: Head) -> list[float]:
    """A_k in percent of ten tasks of one digit, on pixels."""
    images, targets = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(targets))
    z, y = torch.from_numpy(images[order] / 16), torch.from_numpy(targets[order]).long()
    result = []
    for digit in range(10):
        rows = (y[:LEARNED] == digit).nonzero().flatten()
        head.begin_task([digit])
        head.observe(z[rows], y[rows])
        head.solve()
        test = LEARNED + (y[LEARNED:] <= digit).nonzero().flatten()
        result.append(100 * (head.predict(z[test]) == y[test]).double().mean().item())
    return result


def deepest_dip(values: list[float]) -> tuple[float, int]:
    """How far a task lies below the lower of its neighbours, at most, and which one (from 1)."""
    return max((min(values[k - 1], values[k + 1]) - values[k], k + 1) for k in range(1, len(values) - 1))


@pytest.mark.parametrize("kind", [ACILHead, DSALHead])
def test_a_small_ridge_collapses_where_samples_pass_the_width_and_gcv_does_not(kind: type[ACILHead]) -> None:
    points, task = deepest_dip(trajectory(kind(64, width=WIDTH, ridge=1e-6)))
    assert points > 3
    assert task in (6, 7)
    values = trajectory(kind(64, width=WIDTH, ridge="gcv"))
    assert deepest_dip(values)[0] <= 2
    assert min(values) > 98
