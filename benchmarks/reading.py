"""(n): the reader against a DataLoader of processes, and its CPU time.

Photographs of 500 × 375 pixels become squares of 224, as ``fit`` reads them.
"""

from __future__ import annotations

import io
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

from benchmarks.measure import Row, ratio, side_by_side, spread
from cifnet_pl.images.image import EncodedImage, square
from cifnet_pl.images.reader import decode_images, decoding_cores

SIZE = 224
CROP_RATIO = 0.875


def photographs(count: int, seed: int = 0) -> Iterator[bytes]:
    """JPEG files of 500 × 375 pixels and about 30 kB, parts of two photographs."""
    draw = np.random.default_rng(seed)
    sources = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    for i in range(count):
        side = draw.uniform(0.6, 0.95)
        source = sources[i % 2]
        width, height = source.size
        left = draw.uniform(0, width * (1 - side))
        top = draw.uniform(0, height * (1 - side))
        box = (left, top, left + side * width, top + side * height)
        file = io.BytesIO()
        source.resize((500, 375), Image.Resampling.BICUBIC, box).save(
            file, "JPEG", quality=88
        )
        yield file.getvalue()


class Images(Dataset[torch.Tensor]):
    """The images as a user would read them: Pillow, and torchvision's transforms."""

    transform = v2.Compose([v2.Resize(256), v2.CenterCrop(SIZE), v2.PILToTensor()])

    def __init__(self, files: list[Path]):
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> torch.Tensor:
        with Image.open(self.files[index]) as image:
            pixels: torch.Tensor = self.transform(image.convert("RGB"))
        return pixels


def read_by_us(files: list[Path]) -> None:
    """Read all images with their hashes, by as many threads as cores."""
    look = EncodedImage.identify
    for batch in decode_images(files, SIZE, CROP_RATIO, look):
        assert all(reason is None for reason in batch.unreadable)


def cpu_seconds(contents: list[bytes], function: object) -> float:
    """CPU time of one call for each image, of this thread alone."""
    assert callable(function)
    start = time.thread_time()
    for content in contents:
        function(content)
    return time.thread_time() - start


def by_us(content: bytes) -> np.ndarray:
    """Decode an image as the reader does, with its hash."""
    image = EncodedImage(content)
    assert image.hash
    return image.square(SIZE, CROP_RATIO)


def by_pillow(content: bytes) -> np.ndarray:
    """Decode an image by Pillow alone, and resize it in the same way."""
    with Image.open(io.BytesIO(content)) as image:
        return square(image, SIZE, CROP_RATIO)


def rows(count: int = 1000, repeats: int = 5) -> list[Row]:
    """Measure the two rows."""
    cores = decoding_cores()
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for i, content in enumerate(photographs(count)):
            files.append(Path(folder, f"{i}.jpg"))
            files[-1].write_bytes(content)
        contents = [file.read_bytes() for file in files[:200]]
        loader = DataLoader(
            Images(files), 64, num_workers=cores, persistent_workers=True
        )
        reader, rival = side_by_side(
            lambda: read_by_us(files), lambda: list(loader), repeats
        )
        ours: list[float] = []
        pillow: list[float] = []
        for _ in range(repeats):
            ours.append(cpu_seconds(contents, by_us))
            pillow.append(cpu_seconds(contents, by_pillow))
    settings = f"{count} JPEGs of 500 × 375 pixels to {SIZE}, {cores} cores"
    an_image = 1000 / len(contents)
    return [
        Row(
            "(n) reader / DataLoader",
            spread([count / seconds for seconds in reader], unit="images/s"),
            spread([count / seconds for seconds in rival], unit="images/s"),
            ratio(rival, reader),
            "1.6",
            f"{settings}; as many processes with Pillow and torchvision's transforms",
        ),
        Row(
            "(n) CPU time of an image",
            spread(ours, an_image, "ms"),
            spread(pillow, an_image, "ms"),
            ratio(pillow, ours),
            "1.7",
            f"{settings}; one thread, ours with the hash; Pillow decodes and resizes alone",
        ),
    ]
