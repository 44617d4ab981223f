"""Near-copies by their embeddings: the same in blocks as at once, within classes only."""

import pytest
import torch

from cifnet_pl.statistics import comparable, near_copies, near_groups, near_limit

LIMIT = 0.9


@pytest.fixture
def bursts() -> tuple[torch.Tensor, torch.Tensor]:
    """Twelve moments, in two classes, with five photos each."""
    draw = torch.Generator().manual_seed(0)
    moments = torch.randn(12, 64, generator=draw)
    z = moments.repeat_interleave(5, dim=0) + 0.05 * torch.randn(60, 64, generator=draw)
    return z, torch.arange(60) // 30


@pytest.mark.parametrize("block", [7, 1024])
def test_bursts_are_groups(bursts: tuple[torch.Tensor, torch.Tensor], block: int, monkeypatch: pytest.MonkeyPatch):
    z, y = bursts
    monkeypatch.setattr(near_copies, "BLOCK", block)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(1))
    groups = near_groups(comparable(z[order]), y[order], LIMIT)
    moment = order // 5
    assert ((groups[:, None] == groups) == (moment[:, None] == moment)).all()


def test_photos_of_two_classes_are_never_joined(bursts: tuple[torch.Tensor, torch.Tensor]):
    z, _ = bursts
    groups = near_groups(comparable(z), torch.arange(60), LIMIT)
    assert groups.unique().numel() == 60


def test_a_chain_of_near_copies_is_one_group():
    """The ends need not resemble each other."""
    angle = torch.tensor([0.0, 0.2, 0.4, 0.6, 1.4])
    u = torch.stack([angle.cos(), angle.sin()], dim=1)
    assert float(u[0] @ u[3]) < LIMIT
    assert near_groups(u, torch.zeros(5), LIMIT).bincount().tolist() == [4, 1]


def test_the_limit_does_not_see_what_all_embeddings_share(bursts: tuple[torch.Tensor, torch.Tensor]):
    """A large common part makes all cosines large; the same pairs are near-copies."""
    z, y = bursts
    for shift in (0.0, 2.0, 10.0):
        u = comparable(z + shift)
        limit = near_limit(u, y)
        assert limit is not None
        assert near_groups(u, y, limit).bincount().tolist() == [5] * 12
    assert near_limit(comparable(z), torch.zeros(60)) is None
