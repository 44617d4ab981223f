"""Terminals of 80 columns: no line is wider, and the summary of ``fit`` is short."""

import os
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cifnet_pl.__main__ import main
from tests.terminal import seen_at_a_terminal

COLUMNS = 80
SMALL = "--model.backbone pixels:8 --data.image_size 8 --data.num_workers 0"
FIT = f"fit --config folder {SMALL} --energy.tracking_mode process --logs runs"

COMMANDS = {
    "fit": f"{FIT} --data.root images --experiment mine --data.classes_per_task 2",
    "fit of another site": f"{FIT} --data.root others --experiment others",
    "extend": "extend --model runs/mine --images new --output more --check fresh",
    "evaluate": "evaluate --model more --images images --output evaluated",
    "recalibrate": "evaluate --model more --images fresh --output better --recalibrate",
    "classify": "classify --model more --images new --output p.csv --unknown 0.05",
    "audit": "audit --model more --images images --output audit",
    "merge": "merge runs/mine runs/others --output merged",
    "forget": "forget --model more --class ant --output less",
    "exact forget": "forget --model more --class ant --images images --output lesser",
    "info": "info --model less",
    "export": "export --model more --output bundle",
    "report": "report runs --output report",
    "sweep": "sweep points.yaml --dry_run",
    "watch": "watch --model more --images new --output w.csv --once",
    "refusal": "extend --model runs/mine --images images --output never",
}
"""Screen → command line; they run in this order, in one folder."""

POINTS = """\
base: base.yaml
axes:
  head:
    - {label: ridge, model.head: RidgeHead}
    - {label: cifnet, model.head: CIFNetHead}
"""
BASE = "{data: {source: digits}, model: {backbone: 'pixels:8'}}\n"


def make_images(root: Path, classes: list[str], seed: int = 0) -> Path:
    """Class folders of 24 noisy images that are no near-duplicates of each other."""
    for name in classes:
        (root / name).mkdir(parents=True)
        pattern = np.random.default_rng([*name.encode()]).uniform(0, 255, (8, 8, 3))
        draw = np.random.default_rng([seed, *name.encode()])
        for i in range(24):
            pixels = np.clip(pattern + draw.normal(0, 70, pattern.shape), 0, 255)
            Image.fromarray(pixels.astype(np.uint8)).save(root / name / f"{i}.png")
    return root


def run_all(folder: Path) -> int:
    """Run the commands in a folder, and print the name of each before it."""
    os.chdir(folder)
    for name, line in COMMANDS.items():
        print(f"### {name}", flush=True)
        assert main(line.split()) == (2 if name == "refusal" else 0)
    return 0


@pytest.fixture(scope="module")
def screens(tmp_path_factory) -> dict[str, list[str]]:
    """The lines of each command; one image has a duplicate."""
    folder = tmp_path_factory.mktemp("screens")
    images = make_images(folder / "images", ["ant", "bee", "cat"])
    first = images / "ant" / "0.png"
    (images / "ant" / "copy of 0.png").write_bytes(first.read_bytes())
    make_images(folder / "fresh", ["ant", "bee", "cat"], seed=1)
    make_images(folder / "new", ["dog"])
    make_images(folder / "others", ["elk", "fox"])
    (folder / "points.yaml").write_text(POINTS, encoding="utf-8")
    (folder / "base.yaml").write_text(BASE, encoding="utf-8")
    text = seen_at_a_terminal(partial(run_all, folder), COLUMNS)
    parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    shown = zip(parts[1::2], parts[2::2], strict=True)
    return {
        name: [line for line in part.splitlines() if line.strip()]
        for name, part in shown
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_wider_than_the_terminal_or_said_twice(name, screens):
    lines = screens[name]
    assert [line for line in lines if len(line) > COLUMNS] == []
    assert len(lines) > 0
    sentences = [
        line for line in lines if re.match(r"[A-Za-z]", line) and "━" not in line
    ]
    assert len(sentences) == len(set(sentences))


def test_fit_prints_at_most_six_lines_after_its_table(screens):
    """One of them is the decision rule."""
    lines = screens["fit"]
    assert sum(line.startswith("┏") for line in lines) == 1
    end = next(i for i, line in enumerate(lines) if line.startswith("└"))
    folder = next(i for i, line in enumerate(lines) if line.startswith("Run folder"))
    assert 3 <= folder - end - 1 <= 6
    assert lines[-1].startswith("next: cifnet export ")
