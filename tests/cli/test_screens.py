"""Terminals of 80 columns: no line is wider, and what ``fit`` says after its table is short."""

import os
from functools import partial
from pathlib import Path

from cifnet_pl.__main__ import main
from tests.command_line import make_images
from tests.terminal import seen_at_a_terminal

COLUMNS = 80
FIT = "fit --config folder --model.backbone pixels:8 --data.image_size 8"
COMMANDS = [
    f"{FIT} --data.num_workers 0 --data.root images --energy.tracking_mode process",
    "extend --model lightning_logs/folder --images new --output more --check images",
    "evaluate --model more --images images --output evaluated",
    "audit --model more --images images --output audit",
    "info --model more",
]


def run_all(folder: Path) -> int:
    """Run the commands in a folder; 0 if all went well."""
    os.chdir(folder)
    return max(main(line.split()) for line in COMMANDS)


def test_screens(tmp_path: Path):
    make_images(tmp_path / "images", ["ant", "bee", "cat"], 24)
    make_images(tmp_path / "new", ["dog"], 24)
    lines = seen_at_a_terminal(partial(run_all, tmp_path), COLUMNS).splitlines()
    assert [line for line in lines if len(line) > COLUMNS] == []
    end = next(i for i, line in enumerate(lines) if line.startswith("└"))
    folder = next(i for i, line in enumerate(lines) if line.startswith("Run folder"))
    said = [line for line in lines[end + 1 : folder] if line]
    assert 3 <= len(said) <= 6
