"""Random augmentation of training images, the same for an image in any batch or process."""

from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import BaseModel, Field, NonNegativeInt
from torch import Tensor
from torch.nn import functional
from torchvision.transforms import AutoAugment, AutoAugmentPolicy, RandomResizedCrop

from cifnet_pl.buffer import GOLDEN, split_mix

DRAWS = 8
"""Random numbers of an image: flip, crop (row, column), brightness, contrast, saturation, cutout
(row, column).
"""

Policy = Literal["cifar10", "imagenet"]
Share = Annotated[float, Field(ge=0, le=1)]

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in grey (ITU-R 601, as in Pillow)."""


def uniform(keys: np.ndarray, seed: Sequence[int], count: int) -> np.ndarray:
    """Draw uniform numbers from keys and a seed alone, by the SplitMix64 hash.

    Args:
        keys: (n,) int64.
        seed: any number of integers.
        count: numbers for each key.

    Returns:
        (n, count) float64 in [0, 1).
    """
    state = np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)
    start = split_mix(keys.astype(np.uint64) ^ state)
    steps = np.arange(1, count + 1, dtype=np.uint64)
    hashes = split_mix(start[:, None] + steps * GOLDEN)
    leading = hashes >> np.uint64(11)
    return leading.astype(np.float64) / 2**53


def _one_by_one(
    transform: Callable[[Tensor], Tensor],
    images: Tensor,
    keys: np.ndarray,
    seed: Sequence[int],
) -> Tensor:
    """Apply a transform of torchvision to each image, with random numbers from its key and a seed.

    Args:
        transform: uses torch's random numbers.
        images: (n, 3, s, s) uint8.
        keys: (n,) int64.
        seed: any number of integers.
    """
    numbers = (uniform(keys, seed, 1)[:, 0] * 2**53).astype(np.int64)
    changed = torch.empty_like(images)
    with torch.random.fork_rng(devices=[]):
        for i, number in enumerate(numbers.tolist()):
            torch.manual_seed(number)
            changed[i] = transform(images[i])
    return changed


class Augmentation(BaseModel):
    """Random augmentation of images.

    The order is: resized crop, flip, padded crop, colour jitter, a learned policy (AutoAugment,
    Cubuk et al., CVPR 2019), and a black square (Cutout, DeVries & Taylor, 2017).

    Attributes:
        flip: whether half of the images are mirrored left to right.
        crop_padding: pixels of zeros around the image, from which a square of the old size is
            cropped.
        brightness, contrast, saturation: jitter; each factor is uniform in [1 − value, 1 + value].
        resized_crop: whether 8 to 100 % of the area, with sides of 3:4 to 4:3, are scaled to the
            image's size.
        autoaugment: data set whose policy is used, or None.
        cutout: side of the black square as a share of the image's side; it may reach over the edge.
    """

    flip: bool = True
    crop_padding: NonNegativeInt = 0
    brightness: Share = 0.0
    contrast: Share = 0.0
    saturation: Share = 0.0
    resized_crop: bool = False
    autoaugment: Policy | None = None
    cutout: Share = 0.0

    def __call__(self, images: Tensor, keys: Tensor, seed: Sequence[int]) -> Tensor:
        """Return augmented images.

        Args:
            images: (n, 3, s, s) uint8.
            keys: (n,) int64, the identity of each image.
            seed: integers that the draw depends on, such as the seed of the run, the task, the pass
                and the view.
        """
        identity = keys.cpu().numpy()
        numbers = uniform(identity, seed, DRAWS)
        draws = torch.from_numpy(numbers).to(images.device)
        if self.resized_crop:
            crop = RandomResizedCrop(images.shape[2], antialias=True)
            images = _one_by_one(crop, images, identity, (*seed, 1))
        if self.flip:
            mirrored = draws[:, 0] < 0.5
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
        if self.crop_padding:
            images = self._crop(images, draws[:, 1:3])
        if self.brightness or self.contrast or self.saturation:
            images = self._jitter(images, draws[:, 3:6])
        if self.autoaugment is not None:
            policy = AutoAugment(AutoAugmentPolicy(self.autoaugment), fill=[128.0] * 3)
            images = _one_by_one(policy, images, identity, (*seed, 2))
        if self.cutout:
            images = self._cut_out(images, draws[:, 6:])
        return images

    def _crop(self, images: Tensor, draws: Tensor) -> Tensor:
        side = images.shape[2]
        places = 2 * self.crop_padding + 1
        top, left = (draws * places).long().unbind(1)
        # All windows of a padded image, at each corner that they may have.
        padded = functional.pad(images, [self.crop_padding] * 4)
        windows = padded.unfold(2, side, 1).unfold(3, side, 1)
        each = torch.arange(len(images))
        return windows[each, :, top, left]

    def _cut_out(self, images: Tensor, draws: Tensor) -> Tensor:
        side = images.shape[2]
        half = round(self.cutout * side) // 2
        centre = (draws * side).long()
        distance = torch.arange(side, device=images.device) - centre[:, :, None]
        inside = (distance >= -half) & (distance < half)
        rows, columns = inside.unbind(1)
        square = rows[:, None, :, None] & columns[:, None, None, :]
        return images.masked_fill(square, 0)

    def _jitter(self, images: Tensor, draws: Tensor) -> Tensor:
        strength = draws.new_tensor([self.brightness, self.contrast, self.saturation])
        change = strength * (2 * draws - 1)
        factors = (1 + change).clamp_min(0).float()
        brightness, contrast, saturation = factors[:, :, None, None, None].unbind(1)
        luma = factors.new_tensor(LUMA)[:, None, None]
        bright = (images.float() * brightness).clamp(0, 255)
        grey = (bright * luma).sum(1, keepdim=True)
        mean = grey.mean((2, 3), keepdim=True)
        contrasted = (mean + (bright - mean) * contrast).clamp(0, 255)
        grey = (contrasted * luma).sum(1, keepdim=True)
        saturated = grey + (contrasted - grey) * saturation
        return saturated.clamp(0, 255).round().to(torch.uint8)
