"""AUROC and FPR95 against their definitions, pair by pair."""

from __future__ import annotations

import pytest
import torch

from cifnet_pl.model.open_set import detection


def by_counting(known: torch.Tensor, foreign: torch.Tensor) -> tuple[float, float]:
    pairs = (foreign[:, None] > known).double() + 0.5 * (foreign[:, None] == known).double()
    limits = [float(t) for t in torch.cat([known, foreign]) if (known <= t).double().mean() >= 0.95]
    return 100 * float(pairs.mean()), 100 * min(float((foreign <= t).double().mean()) for t in limits)


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_by_counting(scale: float) -> None:
    draw = torch.Generator().manual_seed(0)
    known = torch.randint(0, 40, (57,), generator=draw).double() * scale  # with ties
    foreign = (torch.randint(0, 40, (43,), generator=draw) + 9).double() * scale
    assert detection(known, foreign) == pytest.approx(by_counting(known, foreign), abs=1e-4)


def test_extremes() -> None:
    low, high = torch.arange(5.0), torch.arange(10.0, 14.0)
    assert detection(low, high) == (100.0, 0.0)
    assert detection(high, low) == (0.0, 100.0)
    assert detection(low[:1], low[:1]) == (50.0, 100.0)
