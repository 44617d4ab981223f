"""(b) and (e): the training pass of ``fit`` against a bare loop, and against decoding and backbone alone, by task."""

from __future__ import annotations

import csv
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import ClassVar

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from PIL import Image

from benchmarks.measure import Row, ratio, seconds, spread
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


@dataclass
class Seconds:
    """What the images of each task take without us: the bare loop, decoding alone, the backbone alone."""

    loop: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    backbone: list[float] = field(default_factory=list)


class Rivals(Callback):
    """After each task of a run: decode and embed its images again, in the same batches, and do nothing else."""

    seconds: ClassVar[Seconds] = Seconds()

    def __init__(self, root: str):
        source = build_source("folder", SourceOptions(Path(root)))
        self.rows_of = source.train.rows_of
        self.loader = ImageLoader(SquareDataset(source.train, source.class_names, SIDE, 1.0), WORKERS)
        self.backbone: Backbone = build_backbone("embedded:efficientnet_lite0")

    def batches(self, task: int) -> ImageLoader:
        """Those of a task."""
        rows = np.concatenate([self.rows_of[int(c)] for c in np.arange(CLASSES).reshape(TASKS, -1)[task]])
        return self.loader.set_batches(shard_batches(rows, BATCH, 0, 1))

    def loop(self, task: int) -> None:
        """Decode in the workers, embed here."""
        for batch in self.batches(task):
            self.backbone(batch.image)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Bring the memory that a batch needs into the process; the first task starts its workers, as in the run."""
        self.loop(0)
        self.loader.close()

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Evaluation is over, the next task has not begun."""
        task = trainer.current_epoch
        self.seconds.loop.append(seconds(lambda: self.loop(task)))
        decoded: list[torch.Tensor] = []
        self.seconds.decode.append(seconds(lambda: decoded.extend(batch.image for batch in self.batches(task))))
        self.seconds.backbone.append(seconds(lambda: [self.backbone(image) for image in decoded]))

    def on_fit_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Stop the workers."""
        self.loader.close()


def fit(root: Path, logs: Path, head: str) -> list[float]:
    """Seconds of the training pass of each task of a run: solve, buffer and energy included, evaluation apart."""
    code = main(
        ["fit", "--config", "configs/folder.yaml", "--data.root", str(root), "--data.image_size", str(SIDE),
         "--data.classes_per_task", str(CLASSES // TASKS), "--data.batch_size", str(BATCH),
         "--data.num_workers", str(WORKERS), "--model.head", head, "--logs", str(logs), "--experiment", "bench",
         "--trainer.callbacks+=benchmarks.fit_overhead.Rivals", f"--trainer.callbacks.root={root}"]
    )  # fmt: skip
    assert code == 0
    newest = max((logs / "bench").iterdir(), key=lambda path: path.stat().st_mtime)
    with (newest / "tasks.csv").open() as file:
        return [float(row["train_seconds"]) for row in csv.DictReader(file)]


def rows() -> list[Row]:
    """CIFNetHead and RidgeHead, each against its rivals, alternating with every task."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "photos")
        write_photos(root)
        for head in ("CIFNetHead", "RidgeHead"):
            rival = Rivals.seconds = Seconds()
            ours = [s for _ in range(ROUNDS) for s in fit(root, Path(folder, "logs"), head)]
            images = CLASSES // TASKS * PER_CLASS
            about = f"{ROUNDS} runs of {TASKS} tasks of {images} JPEGs, EfficientNet-Lite0, {SIDE} px, batch {BATCH}, "
            about += f"{WORKERS} workers, {torch.get_num_threads()} threads in all; energy measured in ours only"
            name = f"(b) fit / bare loop, {head}"
            found.append(Row(name, spread(ours), spread(rival.loop), ratio(ours, rival.loop), "≤ 1.05", about))
            both = [d + b for d, b in zip(rival.decode, rival.backbone, strict=True)]
            rate = ", ".join(f"{images / median(t):.0f}" for t in (rival.decode, rival.backbone))
            about += (
                f"; images/s: decoding alone {rate.replace(', ', ', backbone alone ')}, fit {images / median(ours):.0f}"
            )
            name = f"(e) decoding + backbone / fit, {head}"
            found.append(Row(name, spread(ours), spread(both), ratio(both, ours), "≥ 0.95", about))
    return found
