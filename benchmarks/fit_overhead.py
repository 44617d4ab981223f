"""(b) The training pass of ``fit`` against a bare loop of the same loader and ``backbone(x)``, task by task."""

from __future__ import annotations

import csv
import tempfile
import time
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from PIL import Image

from benchmarks.measure import Row, ratio, spread
from cifnet_pl.__main__ import main
from cifnet_pl.backbones import Backbone, build_backbone
from cifnet_pl.data.image_sets import SourceOptions
from cifnet_pl.data.loading import ImageLoader, SquareDataset, shard_batches
from cifnet_pl.data.sources import build_source

CLASSES, PER_CLASS, SIDE, TASKS, BATCH, WORKERS, ROUNDS = 30, 200, 128, 3, 64, 2, 4


def write_photos(root: Path) -> None:
    """JPEG files of smoothed noise: as costly to decode and embed as photos of their size."""
    generator = np.random.default_rng(0)
    for part, count in (("train", PER_CLASS), ("val", 1)):
        for c in range(CLASSES):
            folder = root / part / f"class_{c:02d}"
            folder.mkdir(parents=True)
            for i in range(count):
                small = generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(folder / f"{i}.jpg")


class BareLoop(Callback):
    """After each task of a run: decode and embed its images again, in the same batches, and do nothing else."""

    seconds: ClassVar[list[float]] = []

    def __init__(self, root: str):
        source = build_source("folder", SourceOptions(Path(root)))
        self.rows_of = source.train.rows_of
        self.loader = ImageLoader(SquareDataset(source.train, source.class_names, SIDE, 1.0), WORKERS)
        self.backbone: Backbone = build_backbone("embedded:efficientnet_lite0")

    def run(self, task: int) -> float:
        """Seconds for the images of a task."""
        rows = np.concatenate([self.rows_of[int(c)] for c in np.arange(CLASSES).reshape(TASKS, -1)[task]])
        self.loader.set_batches(shard_batches(rows, BATCH, 0, 1))
        start = time.perf_counter()
        for batch in self.loader:
            self.backbone(batch.image)
        return time.perf_counter() - start

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Bring the memory that a batch needs into the process; the first task starts its workers, as in the run."""
        self.run(0)
        self.loader.close()

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Evaluation is over, the next task has not begun."""
        self.seconds.append(self.run(trainer.current_epoch))

    def on_fit_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Stop the workers."""
        self.loader.close()


def fit(root: Path, logs: Path, head: str) -> list[float]:
    """Seconds of the training pass of each task of a run: solve, buffer and energy included, evaluation apart."""
    code = main(
        ["fit", "--config", "configs/folder.yaml", "--data.root", str(root), "--data.image_size", str(SIDE),
         "--data.classes_per_task", str(CLASSES // TASKS), "--data.batch_size", str(BATCH),
         "--data.num_workers", str(WORKERS), "--model.head", head, "--logs", str(logs), "--experiment", "bench",
         "--trainer.callbacks+=benchmarks.fit_overhead.BareLoop", f"--trainer.callbacks.root={root}"]
    )  # fmt: skip
    assert code == 0
    newest = max((logs / "bench").iterdir(), key=lambda path: path.stat().st_mtime)
    with (newest / "tasks.csv").open() as file:
        return [float(row["train_seconds"]) for row in csv.DictReader(file)]


def rows() -> list[Row]:
    """CIFNetHead and RidgeHead, each against the bare loop, alternating with every task."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "photos")
        write_photos(root)
        for head in ("CIFNetHead", "RidgeHead"):
            BareLoop.seconds.clear()
            ours = [s for _ in range(ROUNDS) for s in fit(root, Path(folder, "logs"), head)]
            rival = list(BareLoop.seconds)
            about = f"{ROUNDS} runs of {TASKS} tasks of {CLASSES // TASKS * PER_CLASS} JPEGs, EfficientNet-Lite0, "
            about += f"{SIDE} px, batch {BATCH}, {WORKERS} workers, {torch.get_num_threads()} threads in both; "
            about += "energy measured in ours only"
            name = f"(b) fit / bare loop, {head}"
            found.append(Row(name, spread(ours), spread(rival), ratio(ours, rival), "≤ 1.05", about))
    return found
