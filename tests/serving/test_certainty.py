"""Which predictions are certain: those that an image of an unknown class would not get."""

import pytest
import torch

from cifnet_pl.serving.certainty import MIN_CLASSES, MIN_IMAGES, CertaintyRule


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


@pytest.mark.parametrize(
    ("classes", "count"),
    [
        (0, 1),
        (1, 50),
        (3, 50),
        (MIN_CLASSES - 1, MIN_IMAGES),
        (MIN_CLASSES, MIN_IMAGES - 1),
    ],
)
def test_nothing_is_certain_while_little_is_known(classes, count):
    rule = CertaintyRule(samples(classes, count))
    assert not rule.has_enough_images
    assert rule.certain_classes(torch.randn(5, 64)) == [None] * 5


def assert_hardly_wrong(rule: CertaintyRule, every: dict[str, torch.Tensor]) -> None:
    """Check that many images of a set are certain, and at most one in a hundred is wrong."""
    right = wrong = 0
    for name, z in every.items():
        for found in rule.certain_classes(z[20:]):
            right += found == name
            wrong += found not in (None, name)
    assert wrong <= 0.01 * (right + wrong)
    assert right > 50


def test_images_of_unknown_classes_are_not_certain_even_if_they_are_similar():
    every = samples(60, 40, noise=0.6)
    known = {name: z[:20] for name, z in list(every.items())[:40]}
    rule = CertaintyRule(known)
    assert_hardly_wrong(rule, every)


def test_spread_within_classes_does_not_hide_what_tells_them_apart():
    """Where light changes all images much more than classes differ, some are certain still."""
    draw = torch.Generator().manual_seed(1)
    light = torch.randn(64, generator=draw)
    every = {}
    for name, z in samples(60, 40, noise=0.2).items():
        every[name] = z + 2 * torch.randn(40, 1, generator=draw) * light
    rule = CertaintyRule({name: z[:20] for name, z in list(every.items())[:40]})
    assert_hardly_wrong(rule, every)


def test_known_classes_without_spread_are_compared_all_the_same():
    """Copies of one image a class."""
    one_each = {
        name: z[:1].expand(MIN_IMAGES, 64) for name, z in samples(30, 1).items()
    }
    rule = CertaintyRule(one_each)
    assert len(rule.certain_classes(torch.randn(3, 64))) == 3
