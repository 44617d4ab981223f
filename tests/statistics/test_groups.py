"""Near-duplicates: the same in blocks as at once. FoundGroups: found where twins vouch for each
other, and nowhere else.
"""

import pytest
import torch
from torch import Tensor

from cifnet_pl.heads import RidgeHead
from cifnet_pl.statistics import comparable, find_groups, near_groups, near_limit
from cifnet_pl.statistics import groups as grouping
from tests.heads.suite import teach

LIMIT = 0.9


@pytest.fixture
def bursts() -> tuple[torch.Tensor, torch.Tensor]:
    """Twelve moments, in two classes, with five images each."""
    draw = torch.Generator().manual_seed(0)
    moments = torch.randn(12, 64, generator=draw)
    z = moments.repeat_interleave(5, dim=0) + 0.05 * torch.randn(60, 64, generator=draw)
    return z, torch.arange(60) // 30


@pytest.mark.parametrize("block", [7, 1024])
def test_bursts_are_groups(
    bursts: tuple[torch.Tensor, torch.Tensor],
    block: int,
    monkeypatch: pytest.MonkeyPatch,
):
    z, y = bursts
    monkeypatch.setattr(grouping, "BLOCK", block)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    groups = near_groups(comparable(z[order]), y[order], LIMIT)
    moment = order // 5
    assert ((groups[:, None] == groups) == (moment[:, None] == moment)).all()


def test_images_of_two_classes_are_never_joined(
    bursts: tuple[torch.Tensor, torch.Tensor],
):
    z, _ = bursts
    groups = near_groups(comparable(z), torch.arange(60), LIMIT)
    assert groups.unique().numel() == 60


def test_a_chain_of_near_copies_is_one_group():
    """The ends need not resemble each other."""
    angle = torch.tensor([0.0, 0.2, 0.4, 0.6, 1.4])
    u = torch.stack([angle.cos(), angle.sin()], dim=1)
    assert float(u[0] @ u[3]) < LIMIT
    assert near_groups(u, torch.zeros(5), LIMIT).bincount().tolist() == [4, 1]


def test_the_limit_does_not_see_what_all_embeddings_share(
    bursts: tuple[torch.Tensor, torch.Tensor],
):
    """A large common part makes all cosines large; the same pairs are near-duplicates."""
    z, y = bursts
    for shift in (0.0, 2.0, 10.0):
        u = comparable(z + shift)
        limit = near_limit(u, y)
        assert near_groups(u, y, limit).bincount().tolist() == [5] * 12
    assert near_limit(comparable(z), torch.zeros(60)) is None


CLASSES = 5
DAYS = 6
EACH = 4
WIDTH = 24
RIDGE = 3.0


def images(spread: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Images of five classes of six days each, that differ by ``spread`` from what was there on
    their day; the days.
    """
    draw = torch.Generator().manual_seed(seed)
    y = torch.arange(CLASSES).repeat_interleave(DAYS * EACH)
    days = torch.arange(CLASSES * DAYS).repeat_interleave(EACH)
    classes, scenes = (
        torch.randn(count, WIDTH, generator=draw).double()
        for count in (CLASSES, CLASSES * DAYS)
    )
    z = (
        classes[y]
        + 1.5 * scenes[days]
        + spread * torch.randn(len(y), WIDTH, generator=draw).double()
    )
    return z, y, days


def learned(z: Tensor, y: Tensor) -> RidgeHead:
    return teach(RidgeHead(WIDTH, ridge=RIDGE), z, y)


def test_days_are_found_in_any_order() -> None:
    z, y, days = images(spread=0.3)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(1))
    for rows in (torch.arange(len(y)), order):
        found = find_groups(
            z[rows], y[rows], learned(z, y).calibration_pass(z[rows], y[rows]).left_out
        )
        assert found.kind == "found"
        same_day = days[rows, None] == days[rows]
        likely = max(found.groupings, key=lambda each: each.weight).groups
        for groups in (likely, found.groups):
            together = groups[:, None] == groups
            assert together[same_day].all()
        assert torch.equal(likely[:, None] == likely, same_day)


def test_as_with_refits_instead_of_closed_forms() -> None:
    z, y, _ = images(spread=0.6)

    def refitted(groups: Tensor | None) -> Tensor:
        scores = torch.zeros(len(y), CLASSES, dtype=torch.float64)
        for group in groups.unique():
            scores[groups == group] = learned(z[groups != group], y[groups != group])(
                z[groups == group]
            )
        return scores

    expected = find_groups(z, y, refitted)
    found = find_groups(z, y, learned(z, y).calibration_pass(z, y).left_out)
    assert (found.kind, found.harm) == (expected.kind, expected.harm)
    weights = [grouping.weight for grouping in found.groupings]
    assert weights == pytest.approx([each.weight for each in expected.groupings])
    assert sum(weights) == pytest.approx(1)
    assert found.kind == "found"
    assert torch.equal(found.groups, expected.groups)


@pytest.mark.parametrize("seed", range(4))
def test_independent_images_are_left_alone(seed: int) -> None:
    """As different from each other within a day as between days; and where each image is of a day
    of its own.
    """
    z, y, _ = images(spread=3.0, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    single = (
        torch.randn(CLASSES, WIDTH, generator=draw).double()[y]
        + torch.randn(z.shape, generator=draw).double()
    )
    for each in (z, single):
        found = find_groups(
            each, y, learned(each, y).calibration_pass(each, y).left_out
        )
        assert (found.kind, found.groups, found.groupings) == ("independent", None, ())


def test_with_few_images_a_class_nothing_is_told() -> None:
    z, y, _ = images(spread=0.3)
    rows = torch.arange(len(y)) % (DAYS * EACH) < 9
    assert (
        find_groups(
            z[rows], y[rows], learned(z, y).calibration_pass(z[rows], y[rows]).left_out
        ).kind
        == "few"
    )


def test_images_whose_class_is_one_group_do_not_count() -> None:
    """Without their day nothing is known of the class: they are a group, but no evidence of
    harm.
    """
    z, y, days = images(spread=0.3)
    rows = (y > 0) | (days == 0)
    z = z[rows]
    y = y[rows]
    days = days[rows]
    found = find_groups(z, y, learned(z, y).calibration_pass(z, y).left_out)
    assert found.kind == "found"
    assert len(found.groups[y == 0].unique()) == 1


def test_a_group_is_a_small_part_of_its_class() -> None:
    """Two days a class, each of several bursts: without its day half of a class is gone."""
    draw = torch.Generator().manual_seed(4)
    y = torch.arange(CLASSES).repeat_interleave(DAYS * EACH)
    bursts = torch.arange(CLASSES * DAYS).repeat_interleave(EACH)
    days = bursts // (DAYS // 2)
    classes, scenes, shelves = (
        torch.randn(n, WIDTH, generator=draw).double()
        for n in (CLASSES, 2 * CLASSES, 30)
    )
    noise = 0.2 * torch.randn(len(y), WIDTH, generator=draw).double()
    z = classes[y] + 2.5 * scenes[days] + 1.5 * shelves[bursts] + noise
    found = find_groups(z, y, learned(z, y).calibration_pass(z, y).left_out)
    assert found.kind == "found"
    together = found.groups[:, None] == found.groups
    assert together[bursts[:, None] == bursts].all()
    part = together.sum(dim=1) / (DAYS * EACH)
    assert part.mean() < 0.35
