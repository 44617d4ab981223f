"""Discriminant analysis from sums: as scikit-learn has it from samples, and leave-one-out scores as
refits give.
"""

import torch

from cifnet_pl.statistics import RidgeFactor, RidgeSystem, augment

WIDTH = 4
RIDGE = 0.7


def test_unbiased_scores_forgive_a_class_of_few_rows_the_length_of_its_mean() -> None:
    """Rows of one distribution, cut into a class of 4 and one of 400: both are named equally
    often.
    """
    draw = torch.Generator().manual_seed(0)
    named = {False: 0, True: 0}
    for _ in range(20):
        z = torch.randn(404, WIDTH, generator=draw, dtype=torch.float64)
        y = (torch.arange(404) >= 4).long()
        x = augment(z)
        sums = torch.zeros(2, WIDTH + 1, dtype=torch.float64).index_add(0, y, x)
        new = augment(torch.randn(500, WIDTH, generator=draw, dtype=torch.float64))
        for unbiased in named:
            system = RidgeSystem(x.T @ x, sums, sums[:0], 404, limit=1.0)
            rule = RidgeFactor(system, RIDGE)
            if not unbiased:
                rule.degrees_of_freedom = torch.zeros((), dtype=torch.float64)
            predicted = (new @ rule.discriminant_weights()).argmax(dim=1)
            named[unbiased] += int((predicted == 0).sum())
    assert named[False] < 0.4 * 20 * 500
    assert abs(named[True] - 0.5 * 20 * 500) < 0.05 * 20 * 500
