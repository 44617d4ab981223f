"""Near-duplicates are one group, whatever their size and brightness."""

from pathlib import Path

import numpy as np
from PIL import Image

from cifnet_pl.images.duplicates import similar_groups
from cifnet_pl.images.reader import look_at_images


def scene(seed: int) -> Image.Image:
    """A smooth picture."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((96, 72), Image.Resampling.BICUBIC)


def shelf(root: Path, moments: int, shots: int) -> list[Path]:
    """``moments`` scenes, each taken ``shots`` times: brighter, smaller, and saved anew."""
    root.mkdir(parents=True, exist_ok=True)
    files = []
    for moment in range(moments):
        for shot in range(shots):
            gain = 1 + 0.03 * shot
            brighter = [min(255, round(value * gain)) for value in range(256)]
            bright = scene(moment).point(brighter * 3)
            files.append(root / f"{moment}-{shot}.jpg")
            size = (96 - 8 * shot, 72 - 6 * shot)
            bright.resize(size).save(files[-1], quality=90 - 10 * shot)
    return files


def test_shots_of_one_scene_are_a_group(tmp_path: Path):
    """What is of one colour stands alone, and what cannot be read is in no group."""
    files = shelf(tmp_path, 6, 3)
    files[7].write_bytes(b"")
    for name in ("x.png", "y.png"):
        Image.new("RGB", (40, 30), "white").save(tmp_path / name)
        files.append(tmp_path / name)
    groups = similar_groups(look_at_images(files))
    expected = [*(np.arange(18) // 3), 6, 7]
    expected[7] = -1
    assert groups.tolist() == expected
