"""(b) and (e): the training pass of ``fit`` against a bare loop, and against decoding and backbone
alone, by task.

The rivals take turns with the run every few seconds: a shared machine is faster or slower for
minutes.
"""

from __future__ import annotations

import csv
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.measure import Row, jpegs, ratio, seconds, spread
from cifnet_pl.__main__ import main
from cifnet_pl.data.loading import ImageBatch, ImageLoader, cut_batches
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.learning.cifnet_module import CIFNetModule

HEADS = ("CIFNetHead", "RidgeHead")


@dataclass(frozen=True)
class Setup:
    """What is learned, and on what.

    ``network`` are the words of ``fit`` that choose backbone, device and precision; ``together`` is
    what decoding and the backbone take at least: their sum on the same cores, the slower of the two
    on different ones. ``turn`` is the number of batches after which the rivals have their turn.
    """

    classes: int
    per_class: int
    tasks: int
    side: int
    batch: int
    workers: int
    turn: int
    rounds: int
    about: str
    network: tuple[str, ...]
    together: Callable[[Sequence[float]], float] = sum


CPU = Setup(
    30,
    200,
    3,
    128,
    64,
    2,
    8,
    5,
    "EfficientNet-Lite0 on the CPU",
    ("--trainer.accelerator", "cpu"),
)
"""Images that the network embeds in a third of the time that those of its own size take."""

OWN_SIZE = replace(CPU, side=224, rounds=3)
"""The size of the network's weights, which ``fit`` uses unless told otherwise."""


def write_images(root: Path, setup: Setup, seed: int = 0) -> None:
    """JPEG files in class folders; no two are the same, nor those of seeds that are 1000 apart."""
    for first, split, count in (
        (seed, "train", setup.per_class),
        (seed + setup.classes, "val", 1),
    ):
        for c in range(setup.classes):
            folder = root / split / f"class_{c:03d}"
            folder.mkdir(parents=True)
            for i, content in enumerate(
                jpegs(count, (setup.side, setup.side), first + c)
            ):
                (folder / f"{i}.jpg").write_bytes(content)


@dataclass
class Seconds:
    """What as many images as each task has take without us: the bare loop, decoding alone, the
    backbone alone.

    ``paused`` is how long the run waited for the rivals within the training pass of the task.
    """

    loop: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    backbone: list[float] = field(default_factory=list)
    paused: list[float] = field(default_factory=list)


class Rivals(Callback):
    """Decode and embed as many images as each task of a run has, in batches as large, and do
    nothing else.

    They are those of the task before, so that the rivals do not read files that the run has read a
    moment ago.
    """

    seconds: ClassVar[Seconds] = Seconds()
    setup_: ClassVar[Setup] = CPU

    def __init__(self, root: str):
        source = build_source("folder", SourceOptions(Path(root)))
        self.rows_of = source.train.rows_of
        self.images: Any = source.train

    def batches(self, task: int) -> Iterator[ImageBatch]:
        """The decoded images of the task before ``task``, or of the last one; the workers begin at
        once.
        """
        classes = np.arange(self.setup_.classes).reshape(self.setup_.tasks, -1)[
            task - 1
        ]
        rows = np.concatenate([self.rows_of[int(c)] for c in classes])
        return self.loader.decode(cut_batches(rows, self.setup_.batch))

    def embed(
        self, batches: Iterator[ImageBatch] | list[ImageBatch]
    ) -> list[ImageBatch]:
        """The run's own backbone, on its device, in its precision; returns what was embedded."""
        done = []
        with self.trainer.precision_plugin.forward_context():
            for batch in batches:
                self.backbone(batch.image.to(self.device, non_blocking=True))
                done.append(batch)
        self.wait()
        return done

    def wait(self) -> None:
        """For the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Start the workers, as the run has done; then bring the memory that a batch needs into the
        process.
        """
        assert isinstance(module, CIFNetModule)
        self.trainer = trainer
        self.backbone = module.backbone
        self.device = module.device
        self.loader = ImageLoader(
            self.images, self.setup_.side, 1.0, self.setup_.workers, self.device.type
        )
        self.embed(self.batches(0))

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        """A task begins, for the bare loop too."""
        for times in (self.seconds.loop, self.seconds.backbone, self.seconds.paused):
            times.append(0.0)

    def on_train_batch_end(
        self,
        trainer: Trainer,
        module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """The bare loop does as many batches as the run did since the last turn; then the backbone
        alone does.
        """
        if (batch_idx + 1) % self.setup_.turn and not trainer.is_last_batch:
            return
        self.wait()
        if batch_idx < self.setup_.turn:
            self.left = self.batches(
                trainer.current_epoch
            )  # right before the clock of a task starts, as the run does
        start = time.perf_counter()
        decoded = self.embed(islice(self.left, self.setup_.turn))
        between = time.perf_counter()
        self.seconds.loop[-1] += between - start
        self.seconds.backbone[-1] += seconds(lambda: self.embed(decoded))
        self.seconds.paused[-1] += time.perf_counter() - start

    def on_validation_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Decoding alone is quick: in one go."""
        self.seconds.decode.append(
            seconds(lambda: list(self.batches(trainer.current_epoch)))
        )


def fit(
    root: Path, logs: Path, head: str, setup: Setup
) -> tuple[list[float], list[float]]:
    """Seconds of learning each task of a run, and how many of them its solve took.

    The first include sums, solve, buffer and energy, not the evaluation; the turns of the rivals
    are within them.
    """
    code = main(
        [
            "fit",
            "--config",
            "heads/cifnet",
            "--data.root",
            str(root),
            "--data.image_size",
            str(setup.side),
            "--data.classes_per_task",
            str(setup.classes // setup.tasks),
            "--data.batch_size",
            str(setup.batch),
            "--data.num_workers",
            str(setup.workers),
            "--model.head",
            head,
            "--logs",
            str(logs),
            "--experiment",
            "bench",
            "--trainer.callbacks+=benchmarks.fit_overhead.Rivals",
            f"--trainer.callbacks.root={root}",
            *setup.network,
        ]
    )
    assert code == 0
    newest = max((logs / "bench").iterdir(), key=lambda path: path.stat().st_mtime)
    with (newest / "tasks.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [float(row["train_seconds"]) for row in rows], [
        float(row["solve_seconds"]) for row in rows
    ]


def measure(setup: Setup, root: Path, logs: Path, head: str) -> list[Row]:
    """One head against its rivals."""
    rival = Rivals.seconds = Seconds()
    Rivals.setup_ = setup
    rounds = [fit(root, logs, head, setup) for _ in range(setup.rounds)]
    learning, solving = (
        [s for times in round_times for s in times]
        for round_times in zip(*rounds, strict=True)
    )

    def runs(times: list[float]) -> list[float]:
        """All tasks of each run."""
        return [
            sum(times[i : i + setup.tasks]) for i in range(0, len(times), setup.tasks)
        ]

    ours = runs(
        [whole - paused for whole, paused in zip(learning, rival.paused, strict=True)]
    )
    unsolved = [whole - solve for whole, solve in zip(ours, runs(solving), strict=True)]
    loop = runs(rival.loop)
    decode = runs(rival.decode)
    backbone = runs(rival.backbone)
    both = [setup.together(parts) for parts in zip(decode, backbone, strict=True)]
    images = setup.classes // setup.tasks * setup.per_class
    about = (
        f"{setup.rounds} runs of {setup.tasks} tasks of {images} JPEGs, {setup.about}, {setup.side}"
        " px, batch "
    )
    about += (
        f"{setup.batch}, {setup.workers} workers, {torch.get_num_threads()} threads; energy"
        " measured in ours only"
    )
    rates = [
        f"{setup.tasks * images / median(times):.0f}"
        for times in (decode, backbone, ours)
    ]
    rated = "; images/s: decoding alone {}, backbone alone {}, fit {}".format(*rates)
    size = f"at {setup.side} px"
    return [
        Row(
            f"(b) fit / bare loop {size}, {head}",
            spread(ours),
            spread(loop),
            ratio(ours, loop),
            "≤ 1.05",
            about,
        ),
        Row(
            f"(e) decoding and backbone / fit {size}, {head}",
            spread(ours),
            spread(both),
            ratio(both, ours),
            "≥ 0.95",
            about + rated,
        ),
        Row(
            f"(e) decoding and backbone / fit {size} without the solve, {head}",
            spread(unsolved),
            spread(both),
            ratio(both, unsolved),
            "",
            about,
        ),
    ]


def rows(*setups: Setup) -> Iterator[Row]:
    """CIFNetHead and RidgeHead in each setup; on the CPU, with images of two sizes, where none is
    given.
    """
    for setup in setups or (OWN_SIZE, CPU):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder, "images")
            write_images(root, setup)
            for head in HEADS:
                yield from measure(setup, root, Path(folder, "logs"), head)
