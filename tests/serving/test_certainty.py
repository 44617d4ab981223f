"""Which predictions are certain: those that an image of an unknown class would not get."""

import torch

from cifnet_pl.serving import certainty
from cifnet_pl.serving.certainty import CertaintyRule


def samples(classes: int, count: int, noise: float = 0.3) -> dict[str, torch.Tensor]:
    """Embeddings of classes with means of their own, three of which are alike."""
    draw = torch.Generator().manual_seed(0)
    found = {}
    base = torch.randn(64, generator=draw)
    for i in range(classes):
        mean = torch.randn(64, generator=draw)
        if i % 3 == 0:
            mean = base + 0.5 * mean
        found[f"class {i}"] = mean + noise * torch.randn(count, 64, generator=draw)
    return found


def test_nothing_is_certain_while_few_classes_are_known():
    for count in (0, 1, 3, certainty.MIN_CLASSES - 1):
        known = samples(count, 10)
        rule = CertaintyRule(known)
        assert rule.certain_classes(torch.randn(5, 64)) == [None] * 5


def test_images_of_unknown_classes_are_not_certain_even_if_they_are_similar():
    every = samples(60, 20)
    known = {name: z[:10] for name, z in list(every.items())[:40]}
    rule = CertaintyRule(known)
    right = wrong = 0
    for name, z in every.items():
        for found in rule.certain_classes(z[10:]):
            right += found == name
            wrong += found not in (None, name)
    assert wrong <= 0.01 * (right + wrong)
    assert right > 50
