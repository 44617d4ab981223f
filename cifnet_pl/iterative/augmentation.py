"""Random changes of training images, which depend on the image's identity only: the same in any
batch or process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torchvision.transforms import AutoAugment, AutoAugmentPolicy, RandomResizedCrop

from cifnet_pl.buffer import GOLDEN, split_mix

DRAWS = 8
"""Random numbers for each image: flip, row, column, brightness, contrast, saturation, and the
hole's row and column.
"""

Policy = Literal["cifar10", "imagenet"]

_WEIGHTS = (0.299, 0.587, 0.114)  # ITU-R 601 luma, as Pillow's grey


def uniform(keys: np.ndarray, seed: Sequence[int], count: int) -> np.ndarray:
    """Draw uniform numbers from keys and a seed alone, by the SplitMix64 hash.

    Args:
        keys: (n,) int64.
        seed: any number of integers.
        count: numbers for each key.

    Returns:
        (n, count) float64 in [0, 1).
    """
    state = np.uint64(
        int(np.random.SeedSequence(list(seed)).generate_state(1, np.uint64)[0])
    )
    with np.errstate(over="ignore"):
        x = (
            split_mix(keys.astype(np.uint64) ^ state)[:, None]
            + np.arange(1, count + 1, dtype=np.uint64) * GOLDEN
        )
    return (split_mix(x) >> np.uint64(11)).astype(np.float64) / 2**53


def _one_by_one(
    change: Callable[[Tensor], Tensor],
    images: Tensor,
    identity: np.ndarray,
    seed: Sequence[int],
) -> Tensor:
    """Apply a transform of torchvision to each image, with torch's random numbers from its identity
    and a seed.
    """
    numbers = (uniform(identity, seed, 1)[:, 0] * 2**53).astype(np.int64).tolist()
    changed = []
    with torch.random.fork_rng(devices=[]):
        for image, number in zip(images, numbers, strict=True):
            torch.manual_seed(number)
            changed.append(change(image))
    if changed:
        return torch.stack(changed)
    return images


@dataclass(frozen=True)
class Augmentation:
    """Random changes of images, in this order where they are wanted.

    A part of the image scaled to its size, mirror image, crop of the image padded with zeros,
    colour jitter, a learned policy (AutoAugment, Cubuk et al., CVPR 2019), and a black square
    (Cutout, DeVries & Taylor, 2017).

    Attributes:
        flip: whether half of the images are mirrored left to right.
        crop_padding: pixels of zeros around the image, of which a square of the old size is
            cropped.
        brightness, contrast, saturation: jitter; each factor is uniform in [1 − value, 1 + value].
        resized_crop: whether a part is taken: 8 to 100 % of the area, sides of 3:4 to 4:3.
        autoaugment: the set whose policy is used, or None.
        cutout: side of the black square as a share of the image's; it may reach over the edge.
    """

    flip: bool = True
    crop_padding: int = 0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    resized_crop: bool = False
    autoaugment: Policy | None = None
    cutout: float = 0.0

    def __call__(self, images: Tensor, keys: Tensor, seed: Sequence[int]) -> Tensor:
        """Return changed copies of images.

        Args:
            images: (n, 3, s, s) uint8.
            keys: (n,) int64, the identity of each image.
            seed: further numbers that the draw depends on, such as the seed of the run, the task,
                the pass and the view.
        """
        identity = keys.cpu().numpy()
        draws = torch.from_numpy(uniform(identity, seed, DRAWS)).to(images.device)
        if self.resized_crop:
            images = _one_by_one(
                RandomResizedCrop(images.shape[2], antialias=True),
                images,
                identity,
                (*seed, 1),
            )
        if self.flip:
            images = torch.where(
                (draws[:, 0] < 0.5)[:, None, None, None], images.flip(3), images
            )
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
        n, channels, height, width = images.shape
        padded = functional.pad(images, [self.crop_padding] * 4)
        top, left = (draws * (2 * self.crop_padding + 1)).long().unbind(1)
        rows = top[:, None] + torch.arange(height, device=images.device)
        columns = left[:, None] + torch.arange(width, device=images.device)
        sample = torch.arange(n, device=images.device)[:, None, None, None]
        channel = torch.arange(channels, device=images.device)[None, :, None, None]
        return padded[
            sample, channel, rows[:, None, :, None], columns[:, None, None, :]
        ]

    def _cut_out(self, images: Tensor, draws: Tensor) -> Tensor:
        side = images.shape[2]
        half = round(self.cutout * side) // 2
        centre = (draws * side).long()[:, :, None]
        place = torch.arange(side, device=images.device)
        inside = (place >= centre - half) & (
            place < centre + half
        )  # (n, 2, s): rows, and columns
        return images.masked_fill(
            (inside[:, 0, :, None] & inside[:, 1, None, :])[:, None], 0
        )

    def _jitter(self, images: Tensor, draws: Tensor) -> Tensor:
        strength = draws.new_tensor([self.brightness, self.contrast, self.saturation])
        factors = (1 + strength * (2 * draws - 1)).clamp_min(0).float()
        brightness, contrast, saturation = (
            f[:, None, None, None] for f in factors.unbind(1)
        )
        x = (images.float() * brightness).clamp(0, 255)
        luma = x.new_tensor(_WEIGHTS)[None, :, None, None]
        mean = (x * luma).sum(1, keepdim=True).mean((2, 3), keepdim=True)
        x = (mean + (x - mean) * contrast).clamp(0, 255)
        grey = (x * luma).sum(1, keepdim=True)
        x = (grey + (x - grey) * saturation).clamp(0, 255)
        return x.round().to(torch.uint8)
