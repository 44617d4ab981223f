"""(k): ``fit`` beside decoding and a bare ONNX Runtime loop over the same decoded images.

The loop takes its turns inside the run, every few batches: a shared machine is faster or slower for
minutes.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from benchmarks.engines import fit
from benchmarks.fit_overhead import CPU, Setup, write_images
from benchmarks.measure import Row, ratio, seconds, spread
from cifnet_pl.backbones.engines import Runtime
from cifnet_pl.data.loading import ImageLoader, cut_batches
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.data.sources import build_source
from cifnet_pl.images.reader import decoding_cores
from cifnet_pl.learning.cifnet_module import CIFNetModule

ROUNDS = {128: 4, 224: 2}
"""Side of the images → number of runs on 6000 images: one solve for each 2000."""

OWN = "by the runtime's own threads"
SPLIT = "each piece by one thread"
"""Who divides the work: ONNX Runtime, that of each layer; or the loop, the pieces."""

LoopVariant = tuple[str, int]
"""Who divides the work, and the images of a piece."""

LOOP_VARIANTS: tuple[LoopVariant, ...] = (
    (OWN, 64),
    (OWN, 8),
    (SPLIT, 8),
    (SPLIT, 4),
    (SPLIT, 2),
)
"""What the bare loop is tried with; 64 images are a batch as it is decoded."""


class BareLoop(Callback):
    """In a run: decode its images once more, and give its decoded batches to ONNX Runtime, and do
    nothing else.

    Args:
        root: folder of the images.
        output: file for the seconds of all tasks together: "decoding", each of ``LOOP_VARIANTS``
            for such a loop, and "paused" for how long the run waited.
    """

    def __init__(self, root: str, output: str):
        source = build_source("folder", SourceOptions(Path(root)))
        self.rows = np.arange(len(source.train))
        self.images: Any = source.train
        self.output = Path(output)
        self.decoded = list[np.ndarray]()
        self.seconds: dict[str, float] = defaultdict(float)
        self.turns = 0

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Start workers, and a session whose memory is there already."""
        assert isinstance(module, CIFNetModule)
        data: Any = module.data
        self.side = data.image_size
        self.batch = data.batch_size
        if data.num_workers is None:
            workers = decoding_cores()
        else:
            workers = data.num_workers
        self.loader = ImageLoader(self.images, self.side, 1.0, workers)
        module.backbone.engine()
        runtime: Any = module.backbone._runtime
        threads = torch.get_num_threads()
        own = Runtime(runtime._graph)
        self.sessions = {OWN: own._session(threads), SPLIT: own._session(1)}
        self.pool = ThreadPoolExecutor(threads)
        empty = np.zeros((self.batch, self.side, self.side, 3), dtype=np.uint8)
        for variant in LOOP_VARIANTS:
            self.loop([empty], variant)

    def loop(self, batches: list[np.ndarray], variant: LoopVariant) -> None:
        """Run the network."""
        threads, size = variant
        pieces = [
            batch[start : start + size]
            for batch in batches
            for start in range(0, len(batch), size)
        ]
        run = partial(self.embed, self.sessions[threads])
        for _ in map(run, pieces) if threads == OWN else self.pool.map(run, pieces):
            pass

    @staticmethod
    def embed(session: Any, images: np.ndarray) -> None:
        """Run the network once."""
        session.run(None, {"images": images})

    def on_train_batch_end(
        self,
        trainer: Trainer,
        module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """Every few batches, the loops have their turn, each time another one first."""
        self.decoded.append(batch.image.permute(0, 2, 3, 1).numpy())
        if (batch_idx + 1) % CPU.turn and not trainer.is_last_batch:
            return
        self.turns += 1
        first = self.turns % len(LOOP_VARIANTS)
        for variant in LOOP_VARIANTS[first:] + LOOP_VARIANTS[:first]:
            once = seconds(lambda variant=variant: self.loop(self.decoded, variant))  # type: ignore[misc]
            self.seconds[str(variant)] += once
            self.seconds["paused"] += once
        self.decoded.clear()

    def on_fit_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Decode all images, three times, and write the seconds."""
        batches = cut_batches(self.rows, self.batch)
        self.seconds["decoding"] = min(
            seconds(lambda: [None for _ in self.loader.decode(batches)])
            for _ in range(3)
        )
        self.output.write_text(json.dumps(self.seconds))


def rows_of_size(setup: Setup) -> Iterator[Row]:
    """``fit``, each run in a process of its own as users have it, and the loops in it."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "images")
        logs = Path(folder, "logs")
        output = Path(folder, "seconds.json")
        write_images(root, setup)
        ours = list[float]()
        loops = defaultdict[LoopVariant, list[float]](list)
        words = ["--trainer.callbacks+=benchmarks.bare_loop.BareLoop"]
        words += [
            f"--trainer.callbacks.root={root}",
            f"--trainer.callbacks.output={output}",
        ]
        for _ in range(setup.rounds):
            learning = fit(root, logs, setup, "auto", *words)
            taken = json.loads(output.read_text())
            ours.append(learning - taken["paused"])
            for variant in LOOP_VARIANTS:
                loops[variant].append(taken["decoding"] + taken[str(variant)])
    images = setup.classes * setup.per_class
    threads = torch.get_num_threads()
    about = (
        f"EfficientNet-Lite0, {images} JPEGs in {setup.tasks} tasks, {setup.rounds} runs, {threads}"
        " threads"
    )
    for variant in dict.fromkeys(
        [(OWN, setup.batch), best_of(OWN, loops), best_of(SPLIT, loops)]
    ):
        loop = (
            f"a bare ONNX Runtime loop over {variant[1]} images at once, {variant[0]}"
        )
        label = f"(k) decoding and {loop} / fit, {setup.side} px"
        yield Row(
            label,
            spread(ours),
            spread(loops[variant]),
            ratio(loops[variant], ours),
            "≥ 0.93",
            about,
        )


def best_of(threads: str, loops: Mapping[LoopVariant, list[float]]) -> LoopVariant:
    """Return the fastest of the loops in which ``threads`` divide the work."""
    return min(
        (variant for variant in LOOP_VARIANTS if variant[0] == threads),
        key=lambda variant: float(np.median(loops[variant])),
    )


def rows() -> Iterator[Row]:
    """At both sizes."""
    for side, count in ROUNDS.items():
        yield from rows_of_size(replace(CPU, side=side, rounds=count))
