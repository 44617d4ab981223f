"""``python -m benchmarks.studies.bursts ROOT OUTPUT``: make images that come in bursts of images
that do not.

Six training images of each class of ROOT become five images each (``--images``, ``--shots``):
turned by up to 8 degrees, cut to 60 % or more, with other light and colour. The validation images
stay as they are. So OUTPUT shows what a model promises that has seen few groups.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import torch
from PIL import Image
from torchvision.transforms import InterpolationMode, v2

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--images", type=int, default=6)
    parser.add_argument("--shots", type=int, default=5)
    asked = parser.parse_args()
    torch.manual_seed(0)
    random.seed(0)
    change = v2.Compose(
        [
            v2.RandomRotation(8, interpolation=InterpolationMode.BILINEAR),
            v2.RandomResizedCrop(160, scale=(0.6, 1.0), ratio=(0.85, 1.18)),
            v2.ColorJitter(0.25, 0.25, 0.15, 0.02),
        ]
    )
    for folder in sorted(
        path for path in (asked.root / "train").iterdir() if path.is_dir()
    ):
        files = sorted(folder.iterdir())
        random.shuffle(files)
        (asked.output / "train" / folder.name).mkdir(parents=True)
        for i, file in enumerate(files[: asked.images]):
            with Image.open(file) as opened:
                image = opened.convert("RGB")
            for k in range(asked.shots):
                change(image).save(
                    asked.output / "train" / folder.name / f"{i}{k}.jpg", quality=92
                )
    (asked.output / "val").symlink_to((asked.root / "val").resolve())
