"""Clusters: near-duplicates, and groups that are found where they cost errors, and nowhere else."""

import pytest
import torch
from torch import Tensor

from cifnet_pl.heads import RidgeHead
from cifnet_pl.statistics import Clusters, Evidence, group_evidence, near_duplicates
from tests.heads.suite import teach


def test_near_duplicates_are_of_one_class_and_one_moment() -> None:
    """Whatever the order, and whatever all embeddings have in common."""
    draw = torch.Generator().manual_seed(0)
    moments = torch.randn(12, 64, generator=draw)
    z = moments.repeat_interleave(5, dim=0) + 0.05 * torch.randn(60, 64, generator=draw)
    y = torch.arange(60) // 30
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    moment = order // 5
    for shift in (0.0, 10.0):
        groups = near_duplicates(z[order] + shift, y[order])
        assert ((groups[:, None] == groups) == (moment[:, None] == moment)).all()
    assert near_duplicates(z, torch.arange(60)).unique().numel() == 60


CLASSES = 5
DAYS = 6
EACH = 4
WIDTH = 24


def images(spread: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Images of classes of six days, ``spread`` away from what was there on their day; the days."""
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(CLASSES).repeat_interleave(DAYS * EACH)
    days = torch.arange(CLASSES * DAYS).repeat_interleave(EACH)
    classes = torch.randn(CLASSES, WIDTH, generator=draw)
    scenes = torch.randn(CLASSES * DAYS, WIDTH, generator=draw)
    noise = torch.randn(len(y), WIDTH, generator=draw)
    z = classes[y] + 1.5 * scenes[days] + spread * noise
    return z.double(), y, days


def evidence(z: Tensor, y: Tensor) -> Evidence:
    (rule,) = teach(RidgeHead(WIDTH, ridge=3.0), z, y).rules_left_out(z, y)
    counts = torch.ones(len(y), dtype=torch.float64)
    return group_evidence(Clusters(z, y).similar_sets(), y, rule, counts)


def test_days_are_found_in_any_order() -> None:
    z, y, days = images(spread=0.3)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    for rows in (torch.arange(len(y)), order):
        own = z[rows]
        labels = y[rows]
        assert evidence(own, labels).dependent
        groups = Clusters(own, labels).groups()
        together = groups[:, None] == groups
        assert together[days[rows, None] == days[rows]].all()
        assert 0.2 < together.sum(dim=1).double().mean() / (DAYS * EACH) < 0.3


@pytest.mark.parametrize("seed", range(2))
def test_independent_images_are_left_alone(seed: int) -> None:
    """As different within a day as between days; and each image of a day of its own."""
    z, y, _ = images(spread=3.0, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    classes = torch.randn(CLASSES, WIDTH, generator=draw).double()
    single = classes[y] + torch.randn(z.shape, generator=draw).double()
    for each in (z, single):
        assert not evidence(each, y).dependent


def test_a_class_of_one_day_is_one_group() -> None:
    z, y, days = images(spread=0.3)
    rows = (y > 0) | (days == 0)
    z = z[rows]
    y = y[rows]
    assert evidence(z, y).dependent
    groups = Clusters(z, y).groups()
    assert len(groups[y == 0].unique()) == 1
