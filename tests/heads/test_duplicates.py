"""Heads that choose their ridge by the number of samples, where some of these are copies."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cifnet_pl.heads import ACILHead, CIFNetHead, DSALHead, Head, RidgeHead, SLDAHead

D = 48
PER_CLASS = 20
HEADS: dict[str, Callable[[], Head]] = {
    "RidgeHead": lambda: RidgeHead(D),
    "CIFNetHead": lambda: CIFNetHead(D, ridge="gcv"),
    "CIFNetHead, released": lambda: CIFNetHead(D, ridge="gcv", weighting="released"),
    "ACILHead": lambda: ACILHead(D, width=64, ridge="gcv"),
    "DSALHead": lambda: DSALHead(D, width=64, ridge="gcv"),
    "SLDAHead": lambda: SLDAHead(D),
}


def samples(task: int) -> tuple[Tensor, Tensor]:
    """Embeddings of two overlapping classes."""
    draw = torch.Generator().manual_seed(task)
    y = 2 * task + torch.arange(2 * PER_CLASS) % 2
    noise = torch.randn(len(y), D, generator=draw, dtype=torch.float64)
    centre = torch.linspace(-1, 1, D, dtype=torch.float64)
    return torch.outer(y - 1.5, centre) / 2 + noise, y


TEST = torch.cat([samples(task)[0] for task in (0, 1)]) + 0.1


def learn(head: Head, copied: bool) -> Head:
    for task in (0, 1):
        z, y = samples(task)
        head.begin_task([2 * task, 2 * task + 1])
        head.observe(z, y)
        if copied:
            head.observe(z, y)
            head.count_duplicates(len(z))
        head.solve()
    return head


@pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)
def test_every_sample_twice_is_every_sample_once(make: Callable[[], Head]) -> None:
    once = learn(make(), copied=False)
    twice = learn(make(), copied=True)
    torch.testing.assert_close(twice(TEST), once(TEST), rtol=1e-6, atol=1e-7)
    assert set(twice.class_counts().values()) == {2 * PER_CLASS}
