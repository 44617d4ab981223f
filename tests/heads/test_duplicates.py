"""Heads that choose their ridge by the number of samples, where some of these are copies."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from cifnet_pl.heads import ACILHead, CIFNetHead, DSALHead, Head, RidgeHead, SLDAHead

D = 48
CLASSES = 4
PER_CLASS = 20
HEADS: dict[str, Callable[[], Head]] = {
    "RidgeHead": lambda: RidgeHead(D),
    "CIFNetHead": lambda: CIFNetHead(D, ridge="gcv"),
    "CIFNetHead, released": lambda: CIFNetHead(D, ridge="gcv", weighting="released"),
    "ACILHead": lambda: ACILHead(D, width=64, ridge="gcv"),
    "DSALHead": lambda: DSALHead(D, width=64, ridge="gcv"),
    "SLDAHead": lambda: SLDAHead(D),
}
POOLED = ("RidgeHead", "ACILHead", "SLDAHead")
heads = pytest.mark.parametrize("make", HEADS.values(), ids=HEADS)


def samples(task: int) -> tuple[Tensor, Tensor]:
    """Embeddings of two overlapping classes."""
    generator = torch.Generator().manual_seed(task)
    y = 2 * task + torch.arange(2 * PER_CLASS) % 2
    centres = torch.randn(
        CLASSES, D, generator=torch.Generator().manual_seed(9), dtype=torch.float64
    )
    return 0.5 * centres[y] + torch.randn(
        len(y), D, generator=generator, dtype=torch.float64
    ), y


TEST = torch.cat([samples(task)[0] for task in (0, 1)]) + 0.1


def learn(
    head: Head, copied: bool, noted: bool = True, tasks: tuple[int, ...] = (0, 1)
) -> Head:
    for task in tasks:
        z, y = samples(task)
        head.begin_task([2 * task, 2 * task + 1])
        head.observe(z, y)
        if copied:
            head.observe(z, y)
            head.count_duplicates(len(z) * noted)
        head.solve()
    return head


@heads
def test_every_sample_twice_is_every_sample_once(make: Callable[[], Head]) -> None:
    once = learn(make(), copied=False)
    twice = learn(make(), copied=True)
    torch.testing.assert_close(twice(TEST), once(TEST), rtol=1e-6, atol=1e-7)
    assert set(twice.class_counts().values()) == {2 * PER_CLASS}


@pytest.mark.parametrize("name", POOLED)
def test_copies_that_were_noted_merge_and_are_subtracted(name: str) -> None:
    whole = learn(HEADS[name](), copied=True)
    parts = [learn(HEADS[name](), True, tasks=(task,)) for task in (0, 1)]
    first = copy.deepcopy(parts[0])
    parts[0].merge_(parts[1])
    parts[0].solve()
    torch.testing.assert_close(parts[0](TEST), whole(TEST), rtol=1e-8, atol=1e-9)
    whole.subtract_(parts[1])
    whole.remove_classes([2, 3])
    whole.solve()
    torch.testing.assert_close(whole(TEST), first(TEST), rtol=1e-6, atol=1e-7)
