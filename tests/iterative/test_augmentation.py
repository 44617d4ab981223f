"""Augmentation: drawn for each image from its identity, whatever it is learned with."""

import numpy as np
import pytest
import torch

from cifnet_pl.iterative.augmentation import Augmentation, uniform

KEYS = torch.arange(1000, 1200)
RANDOM = torch.Generator().manual_seed(0)
IMAGES = torch.randint(256, (200, 3, 6, 6), generator=RANDOM).byte()


def changed(images=IMAGES, **options):
    keys = KEYS[: len(images)]
    return Augmentation(**{"flip": False, **options})(images, keys, (0,))


def test_draws_are_uniform_and_independent():
    draws = uniform(np.arange(20000), (1, 2), 3)
    assert draws.shape == (20000, 3)
    assert 0 <= draws.min() < draws.max() < 1
    assert np.allclose(draws.mean(axis=0), 0.5, atol=0.01)
    assert np.allclose(np.histogram(draws[:, 0], 10)[0], 2000, atol=200)
    assert np.abs(np.corrcoef(draws.T) - np.eye(3)).max() < 0.03
    assert np.abs(np.corrcoef(draws[:-1, 0], draws[1:, 0])[0, 1]) < 0.03
    assert not np.array_equal(draws, uniform(np.arange(20000), (1, 3), 3))


@pytest.mark.parametrize(
    "given",
    [
        {"crop_padding": 2, "brightness": 0.3, "contrast": 0.2, "saturation": 0.1},
        {"resized_crop": True},
        {"autoaugment": "cifar10", "cutout": 0.5},
    ],
    ids=str,
)
def test_of_one_image_does_not_depend_on_the_others(given):
    change = Augmentation(**given)
    images = IMAGES[:30]
    keys = KEYS[:30]
    together = change(images, keys, (7, 1))
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    assert torch.equal(change(images[order], keys[order], (7, 1)), together[order])
    assert torch.equal(change(images[3:4], keys[3:4], (7, 1)), together[3:4])
    assert not torch.equal(change(images, keys, (7, 2)), together)
    assert (together.dtype, together.shape) == (torch.uint8, images.shape)


def test_flip():
    seen = changed(flip=True)
    mirrored = (seen != IMAGES).flatten(1).any(dim=1)
    assert 60 < mirrored.sum() < 140
    assert torch.equal(seen[mirrored], IMAGES[mirrored].flip(3))


def test_crop_is_a_square_of_the_padded_image():
    padded = torch.nn.functional.pad(IMAGES, [2] * 4)
    windows = padded.unfold(2, 6, 1).unfold(3, 6, 1)
    same = windows == changed(crop_padding=2)[:, :, None, None]
    is_here = same.all(dim=1).all(dim=(-1, -2))  # (200, 5, 5) corners
    assert is_here.flatten(1).any(dim=1).all()
    assert is_here.any(dim=0).all()


def test_colour():
    middle = IMAGES.clamp(10, 100)
    factors = (changed(middle, brightness=0.5).float() / middle).flatten(1)
    assert 0.45 < factors.min() < 0.6
    assert 1.4 < factors.max() < 1.55
    assert factors.std(dim=1).max() < 0.03  # one factor for each image, up to rounding
    grey = IMAGES[:, :1].expand(-1, 3, -1, -1)
    assert (changed(grey, saturation=0.9).int() - grey.int()).abs().max() <= 1
    assert not torch.equal(changed(saturation=0.9), IMAGES)
    flat = torch.full_like(IMAGES, 77)
    assert torch.equal(changed(flat, contrast=0.9), flat)
    assert not torch.equal(changed(contrast=0.9), IMAGES)


def test_cutout_is_a_black_square_that_may_reach_over_the_edge():
    bright = IMAGES.clamp_min(1)
    seen = changed(bright, cutout=0.5)
    black = (seen == 0).all(dim=1)
    assert torch.equal(seen, bright * ~black[:, None])
    rows = black.any(dim=2).sum(dim=1)
    columns = black.any(dim=1).sum(dim=1)
    assert torch.equal(black.flatten(1).sum(dim=1), rows * columns)
    assert set(rows.tolist()) == {1, 2}
    assert (rows == 2).float().mean() > 0.7
