"""(h) A stream of 50,000 images from the embedding cache against the same run without it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torchvision.models import resnet18

from benchmarks.measure import Row, ratio, seconds, spread
from cifnet_pl.__main__ import main
from cifnet_pl.data.sets import ArraySet, Source, SourceOptions
from cifnet_pl.data.sources import SOURCES

CLASSES, PER_CLASS, VAL_PER_CLASS, SIDE, EMBEDDED_SIDE, REPEATS = 100, 500, 20, 32, 96, 3


class Noise:
    """Reads image ``index``: noise that its index decides, at no cost worth mentioning."""

    def __init__(self, offset: int):
        self.offset = offset

    def __call__(self, index: int) -> Image.Image:
        draw = np.random.default_rng(self.offset + index)
        return Image.fromarray(draw.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))


def noise(options: SourceOptions) -> Source:
    """A data source of CIFAR-100's size for learning, smaller for testing."""
    names = [f"{c:03d}" for c in range(CLASSES)]
    train, val = (np.repeat(np.arange(CLASSES), count).tolist() for count in (PER_CLASS, VAL_PER_CLASS))
    return Source(names, ArraySet(Noise(0), train), ArraySet(Noise(10**6), val))


def rows() -> list[Row]:
    """One run without the cache, as it takes minutes; then one that fills it, then several from it."""
    SOURCES["noise"] = noise
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        torch.save(resnet18().state_dict(), Path(folder, "resnet18.pth"))
        arguments = [
            "fit", "--config", "heads/cifnet", "--data.source", "noise", "--data.image_size", str(EMBEDDED_SIDE),
            "--data.batch_size", "256", "--model.backbone", f"file:{folder}/resnet18.pth", "--model.architecture",
            "resnet18", "--data.classes_per_task", "10", "--logs", folder,
        ]  # fmt: skip
        cache = ["--data.cache", "true", "--data.cache_folder", str(Path(folder, "cache"))]

        def run(*more: str) -> None:
            assert main([*arguments, *more]) == 0

        without = [seconds(run)]
        run(*cache)
        ours = [seconds(lambda: run(*cache)) for _ in range(REPEATS)]
    about = f"{CLASSES * PER_CLASS:,} images, {CLASSES * VAL_PER_CLASS:,} for testing, ResNet-18, {EMBEDDED_SIDE} px, "
    about += "d=512, 10 tasks, CIFNetHead, buffer 2000, metrics, energy, checkpoints and picture; "
    about += "whole command in both, in a process that has started"
    name = "(h) without cache / from the cache"
    return [Row(name, spread(ours), spread(without), ratio(without * REPEATS, ours), "≥ 20", about)]
