"""(b) The training pass of ``fit``, all tasks, against a bare loop of the same loader and ``backbone(x)``."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from benchmarks.measure import Row, ratio, spread
from cifnet_pl.__main__ import main
from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.data.image_sets import SourceOptions
from cifnet_pl.data.loading import ImageLoader, SquareDataset, shard_batches
from cifnet_pl.data.sources import build_source

CLASSES, PER_CLASS, SIDE, TASKS, BATCH, WORKERS, ROUNDS = 10, 80, 128, 5, 64, 2, 7


def write_photos(root: Path) -> None:
    """JPEG files of smoothed noise: as costly to decode and embed as photos of their size."""
    generator = np.random.default_rng(0)
    for c in range(CLASSES):
        folder = root / f"class_{c:02d}"
        folder.mkdir(parents=True)
        for i in range(PER_CLASS):
            small = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / f"{i}.jpg")


def bare_loop(root: Path, backbone: Backbone) -> float:
    """Seconds of decoding and embedding the same images in the same batches, and nothing else."""
    source = build_source("folder", SourceOptions(root))
    dataset = SquareDataset(source.train, source.class_names, SIDE, 1.0)
    loader = ImageLoader(dataset, WORKERS)
    rows_of = source.train.rows_of
    total = 0.0
    for task in np.arange(CLASSES).reshape(TASKS, -1):
        rows = np.concatenate([rows_of[int(c)] for c in task])
        loader.set_batches(shard_batches(rows, BATCH, 0, 1))
        start = time.perf_counter()
        for batch in loader:
            backbone(batch.image)
        total += time.perf_counter() - start
    return total


def fit(root: Path, logs: Path, head: str) -> float:
    """Seconds of the training passes of a run, solves included, evaluation apart."""
    code = main(
        ["fit", "--config", "configs/folder.yaml", "--data.root", str(root), "--data.image_size", str(SIDE),
         "--data.classes_per_task", str(CLASSES // TASKS), "--data.batch_size", str(BATCH),
         "--data.num_workers", str(WORKERS), "--model.head", head, "--logs", str(logs), "--experiment", "bench"]
    )  # fmt: skip
    assert code == 0
    newest = max((logs / "bench").iterdir(), key=lambda path: path.stat().st_mtime)
    return float(json.loads((newest / "summary.json").read_text())["train_seconds"])


def rows() -> list[Row]:
    """CIFNetHead and RidgeHead, each against the bare loop, alternating."""
    backbone = build_backbone("embedded:efficientnet_lite0")
    found = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "photos")
        write_photos(root)
        bare_loop(root, backbone)  # warm-up
        for head in ("CIFNetHead", "RidgeHead"):
            ours, rival = [], []
            for _ in range(ROUNDS):
                ours.append(fit(root, Path(folder, "logs"), head))
                rival.append(bare_loop(root, backbone))
            about = f"{CLASSES * PER_CLASS} JPEGs, {TASKS} tasks, EfficientNet-Lite0, {SIDE} px, batch {BATCH}, "
            about += f"{WORKERS} workers, {torch.get_num_threads()} threads in both; energy measured in ours only"
            name = f"(b) fit / bare loop, {head}"
            found.append(Row(name, spread(ours), spread(rival), ratio(ours, rival), "≤ 1.05", about))
    return found
