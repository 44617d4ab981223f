"""Terminals of 80 columns: no line is wider or said twice, and ``fit`` says little at its end."""

import os
import re
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from cifnet_pl.__main__ import main
from tests.terminal import seen_at_a_terminal

COLUMNS = 80
FIT = "fit --config folder --model.backbone pixels:8 --data.image_size 8"
COMMANDS = [
    f"{FIT} --data.num_workers 0 --data.root images --energy.tracking_mode process",
    "extend --model lightning_logs/folder --images new --output more --check images",
    "evaluate --model more --images images --output evaluated",
    "audit --model more --images images --output audit",
    "info --model more",
    "classify --model more --images new --output p.csv --unknown 0.05",
    "forget --model more --class ant --output less",
    "forget --model more --class ant --images images --output lesser",
    "export --model more --output bundle",
    "report lightning_logs --output report",
]


def make_images(root: Path, classes: list[str]) -> None:
    """Class folders of 24 noisy images that are no near-duplicates of each other."""
    for name in classes:
        (root / name).mkdir(parents=True)
        draw = np.random.default_rng([*name.encode()])
        pattern = draw.uniform(0, 255, (8, 8, 3))
        for i in range(24):
            pixels = np.clip(pattern + draw.normal(0, 70, pattern.shape), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{i}.png")


def run_all(folder: Path) -> int:
    """Run the commands in a folder, and print a line of its own before each."""
    os.chdir(folder)
    for line in COMMANDS:
        print("###", flush=True)
        assert main(line.split()) == 0
    return 0


def test_screens(tmp_path: Path):
    make_images(tmp_path / "images", ["ant", "bee", "cat"])
    make_images(tmp_path / "new", ["dog"])
    shown = seen_at_a_terminal(partial(run_all, tmp_path), COLUMNS)
    assert [line for line in shown.splitlines() if len(line) > COLUMNS] == []
    screens = [part.splitlines() for part in shown.split("###\n")[1:]]
    for lines in screens:
        said = [line for line in lines if re.match(r"\w", line) and "━" not in line]
        assert len(said) == len(set(said)) > 0
    lines = screens[0]
    end = next(i for i, line in enumerate(lines) if line.startswith("└"))
    folder = next(i for i, line in enumerate(lines) if line.startswith("Run folder"))
    said = [line for line in lines[end + 1 : folder] if line]
    assert 3 <= len(said) <= 6
