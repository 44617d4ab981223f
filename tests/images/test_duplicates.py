"""Near-duplicates are one group, whatever their size and brightness."""

from pathlib import Path

import numpy as np
from PIL import Image

from cifnet_pl.images.duplicates import similar_groups
from cifnet_pl.images.reader import look_at_image, look_at_images


def scene(seed: int) -> Image.Image:
    """A smooth picture."""
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize((96, 72), Image.Resampling.BICUBIC)


def shelf(root: Path, moments: int, shots: int) -> list[Path]:
    """``moments`` scenes, each taken ``shots`` times: brighter each time, smaller, and saved
    anew.
    """
    root.mkdir(parents=True, exist_ok=True)
    files = []
    for moment in range(moments):
        for shot in range(shots):
            bright = scene(moment).point(
                lambda value, shot=shot: min(255, round(value * (1 + 0.03 * shot)))
            )
            files.append(root / f"{moment}-{shot}.jpg")
            bright.resize((96 - 8 * shot, 72 - 6 * shot)).save(
                files[-1], quality=90 - 10 * shot
            )
    return files


def groups_of(files: list[Path]) -> np.ndarray:
    return similar_groups(look_at_images(files))


def test_shots_of_one_scene_are_a_group(tmp_path: Path):
    files = shelf(tmp_path, 6, 3)
    groups = groups_of(files)
    moment = np.arange(18) // 3
    assert ((groups[:, None] == groups) == (moment[:, None] == moment)).all()


def test_what_is_even_stands_alone_and_what_cannot_be_read_in_no_group(tmp_path: Path):
    (tmp_path / "a.jpg").write_bytes(b"")
    for name in "bc":
        Image.new("RGB", (40, 30), "white").save(tmp_path / f"{name}.png")
    assert look_at_image(tmp_path / "a.jpg").thumbnail is None
    assert groups_of(sorted(tmp_path.iterdir())).tolist() == [-1, 0, 1]
