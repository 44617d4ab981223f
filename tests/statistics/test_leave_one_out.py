"""Scores without a sample or its group equal those of a solve without them."""

from __future__ import annotations

import torch

from cifnet_pl.statistics.ridge import half_products, left_out_together, shared_groups, solve_ridge
from tests.largest_tensor import LargestTensor


def test_equals_a_solve_without_the_group():
    """Of groups of fewer rows than features, and of one with more."""
    draw = torch.Generator().manual_seed(0)
    x, y = torch.randn(18, 4, generator=draw).double(), torch.randn(18, 3, generator=draw).double()
    groups = torch.tensor([0, 1, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9, 9, 9, 9, 9, 9])
    penalty = torch.full((4,), 0.3, dtype=torch.float64)
    weights = solve_ridge(x.T @ x, x.T @ y, penalty)
    half = half_products(x.T @ x, penalty, x)
    scores = left_out_together(x @ weights, half, torch.ones(18, dtype=torch.float64), y, groups)
    for group in groups.unique():
        rest = groups != group
        expected = x[~rest] @ solve_ridge(x[rest].T @ x[rest], x[rest].T @ y[rest], penalty)
        torch.testing.assert_close(scores[~rest], expected, rtol=0, atol=1e-10)
    assert [rows.tolist() for rows in shared_groups(groups)] == [[1, 2, 3], [6, 7], [*range(12, 18)]]


def test_a_sample_that_was_never_seen_keeps_its_score():
    x = torch.eye(3, dtype=torch.float64)
    half = half_products(x, torch.ones(3, dtype=torch.float64), x)
    scores = torch.tensor([[1.0], [2.0], [3.0]])
    weight = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    result = left_out_together(scores, half, weight, torch.zeros(3, 1, dtype=torch.float64), None)
    assert result[0].item() == 1.0
    torch.testing.assert_close(result[1:].flatten(), torch.tensor([4.0, 6.0], dtype=torch.float64), rtol=0, atol=1e-12)


def test_nothing_grows_with_the_square_of_a_group():
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(600, 4, generator=draw).double(), torch.randn(600, 3, generator=draw).double()
    groups = torch.arange(600).clamp_max(200)  # the last 400 are one
    penalty = torch.full((4,), 0.3, dtype=torch.float64)
    half, scores = half_products(x.T @ x, penalty, x), x @ solve_ridge(x.T @ x, x.T @ y, penalty)
    with LargestTensor() as made:
        result = left_out_together(scores, half, torch.ones(600, dtype=torch.float64), y, groups)
    expected = x[200:] @ solve_ridge(x[:200].T @ x[:200], x[:200].T @ y[:200], penalty)
    torch.testing.assert_close(result[200:], expected, rtol=0, atol=1e-9)
    assert made.elements <= x.numel()


def test_nothing_is_known_without_all_that_was_learned():
    x, y = torch.eye(2, dtype=torch.float64).repeat(3, 1), torch.ones(6, 1, dtype=torch.float64)
    penalty = torch.full((2,), 1e-12, dtype=torch.float64)
    half = half_products(x.T @ x, penalty, x)
    for groups in (torch.zeros(6, dtype=torch.int64), torch.tensor([0, 1, 0, 2, 0, 3])):  # of six rows, and of three
        result = left_out_together(y, half, torch.ones(6, dtype=torch.float64), y, groups)
        assert result[groups == 0].isnan().all()
        assert result[groups != 0].isfinite().all()
