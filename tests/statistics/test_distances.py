"""Discriminant analysis from sums: as scikit-learn has it from samples, and leave-one-out scores as refits give."""

import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor

from cifnet_pl.statistics import augment
from cifnet_pl.statistics.distances import Discriminant, within_scatter

CLASSES, EACH, WIDTH, RIDGE = 3, 8, 4, 0.7


@pytest.fixture
def samples() -> tuple[Tensor, Tensor]:
    """(n, d) rows, (n,) labels."""
    draw = torch.Generator().manual_seed(3)
    y = torch.arange(CLASSES).repeat_interleave(EACH)
    centres = 2 * torch.randn(CLASSES, WIDTH, generator=draw, dtype=torch.float64)
    z = centres[y] + torch.randn(len(y), WIDTH, generator=draw, dtype=torch.float64)
    return z, y


def fitted(z: Tensor, y: Tensor, ridge: float = RIDGE, unbiased: bool = False) -> Discriminant:
    x = augment(z)
    class_sums = torch.zeros(CLASSES, WIDTH + 1, dtype=torch.float64).index_add(0, y, x)
    return Discriminant.from_sums(
        within_scatter(x.T @ x, class_sums), class_sums, torch.tensor(len(x)), ridge, unbiased
    )


def test_scores_are_those_of_scikit_learn(samples: tuple[Tensor, Tensor]) -> None:
    z, y = samples
    weights = fitted(z, y, ridge=0.0).weights()
    theirs = LinearDiscriminantAnalysis(solver="lsqr", priors=[1 / CLASSES] * CLASSES).fit(z.numpy(), y.numpy())
    queries = torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    expected = torch.log_softmax(torch.from_numpy(theirs.decision_function(queries.numpy())), dim=1)
    assert torch.allclose(torch.log_softmax(augment(queries) @ weights, dim=1), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("unbiased", [False, True])
def test_groups_left_out_as_refits_give(samples: tuple[Tensor, Tensor], unbiased: bool) -> None:
    """Groups of one class, of two, and of more rows than features; one function serves several groupings."""
    z, y = samples
    left_out = fitted(z, y, unbiased=unbiased).leaving_out(z, y)
    for groups in (torch.arange(len(y)) // 2, torch.arange(len(y)) % 4, torch.arange(len(y)) % 9):
        result = left_out(groups)
        for group in groups.unique():
            gone = groups == group
            expected = augment(z[gone]) @ fitted(z[~gone], y[~gone], unbiased=unbiased).weights()
            assert torch.allclose(result[gone], expected, rtol=1e-8, atol=1e-8)


def test_unbiased_scores_forgive_a_class_of_few_rows_the_length_of_its_mean() -> None:
    """Rows of one distribution, cut into a class of 4 and one of 400: both are named equally often."""
    draw = torch.Generator().manual_seed(0)
    named = {False: 0, True: 0}
    for _ in range(20):
        z = torch.randn(404, WIDTH, generator=draw, dtype=torch.float64)
        y, ones = (torch.arange(404) >= 4).long(), torch.ones(404, dtype=torch.float64)
        x = augment(z)
        sums = torch.zeros(2, WIDTH + 1, dtype=torch.float64).index_add(0, y, x)
        new = augment(torch.randn(500, WIDTH, generator=draw, dtype=torch.float64))
        for unbiased in named:
            rule = Discriminant.from_sums(within_scatter(x.T @ x, sums), sums, ones.sum(), RIDGE, unbiased)
            named[unbiased] += int(((new @ rule.weights()).argmax(dim=1) == 0).sum())
    assert named[False] < 0.4 * 20 * 500
    assert abs(named[True] - 0.5 * 20 * 500) < 0.05 * 20 * 500
