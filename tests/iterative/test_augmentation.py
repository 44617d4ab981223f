"""Augmentation: drawn for each image from its identity, whatever it is learned with."""

import numpy as np
import pytest
import torch

from cifnet_pl.iterative.augmentation import Augmentation, uniform

KEYS = torch.arange(1000, 1200)


@pytest.fixture
def images():
    draw = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (200, 3, 6, 6), dtype=torch.uint8, generator=draw)


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
        {},
        {"crop_padding": 2},
        {"brightness": 0.3, "contrast": 0.2, "saturation": 0.1},
        {"resized_crop": True},
        {"autoaugment": "cifar10", "cutout": 0.5},
    ],
    ids=str,
)
def test_of_one_image_does_not_depend_on_the_others(given, images):
    change = Augmentation(**given)
    together = change(images, KEYS, (7, 1))
    order = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    assert torch.equal(change(images[order], KEYS[order], (7, 1)), together[order])
    assert torch.equal(change(images[3:4], KEYS[3:4], (7, 1)), together[3:4])
    assert not torch.equal(change(images, KEYS, (7, 2)), together)
    assert together.dtype == torch.uint8
    assert together.shape == images.shape


def test_flip(images):
    seen = Augmentation()(images, KEYS, (0,))
    mirrored = (seen != images).flatten(1).any(dim=1)
    assert 60 < mirrored.sum() < 140
    assert torch.equal(seen[mirrored], images[mirrored].flip(3))


def test_crop_is_a_square_of_the_padded_image(images):
    seen = Augmentation(flip=False, crop_padding=2)(images, KEYS, (0,))
    padded = torch.nn.functional.pad(images, [2] * 4)
    places = set()
    for image, original in zip(seen, padded, strict=True):
        result = [
            (i, j)
            for i in range(5)
            for j in range(5)
            if torch.equal(original[:, i : i + 6, j : j + 6], image)
        ]
        assert result
        places.update(result)
    assert len(places) == 25


def test_brightness(images):
    seen = Augmentation(flip=False, brightness=0.5)(
        images.clamp(10, 100), KEYS, (0,)
    ).float()
    factors = (seen / images.clamp(10, 100)).flatten(1)
    assert 0.45 < factors.min() < 0.6
    assert 1.4 < factors.max() < 1.55
    assert factors.std(dim=1).max() < 0.03  # one factor for each image, up to rounding


def test_contrast_and_saturation_keep_what_they_should(images):
    grey = images[:, :1].expand(-1, 3, -1, -1)
    assert (
        Augmentation(flip=False, saturation=0.9)(grey, KEYS, (0,)).int() - grey.int()
    ).abs().max() <= 1
    flat = torch.full_like(images, 77)
    assert torch.equal(Augmentation(flip=False, contrast=0.9)(flat, KEYS, (0,)), flat)
    assert not torch.equal(
        Augmentation(flip=False, contrast=0.9)(images, KEYS, (0,)), images
    )


def test_cutout_is_a_black_square_that_may_reach_over_the_edge(images):
    seen = Augmentation(flip=False, cutout=0.5)(images.clamp_min(1), KEYS, (0,))
    black = (seen == 0).all(dim=1)
    assert torch.equal(
        seen[~black[:, None].expand_as(seen)],
        images.clamp_min(1)[~black[:, None].expand_as(seen)],
    )
    rows = black.any(dim=2).sum(dim=1)
    columns = black.any(dim=1).sum(dim=1)
    assert torch.equal(black.flatten(1).sum(dim=1), rows * columns)
    assert set(rows.tolist()) == {1, 2}
    assert (rows == 2).float().mean() > 0.7


def test_resized_crop_is_a_part_of_the_image():
    ramp = torch.arange(64, dtype=torch.uint8).expand(200, 3, 64, 64)
    seen = Augmentation(flip=False, resized_crop=True)(ramp, KEYS, (0,)).float()
    assert (seen[..., 1:] >= seen[..., :-1]).all()
    widths = seen[:, 0, 0, -1] - seen[:, 0, 0, 0]
    assert widths.min() < 25
    assert widths.max() > 50
