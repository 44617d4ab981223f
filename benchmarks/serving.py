"""(m) ``cifnet serve`` on this machine's loopback: 16 clients at once beside the same model called
directly.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Event, Thread

import numpy as np
import torch

import cifnet_pl
from benchmarks.http_load import Load, Process, ask, serving
from benchmarks.measure import Row, jpegs, ratio, seconds, spread
from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import RidgeHead

CLIENTS = 16


@dataclass(frozen=True)
class Setup:
    """What is served, and how much is asked: ``requests`` in all, in ``rounds`` turns with the
    rivals.
    """

    backbone: str = "embedded:efficientnet_lite0"
    side: int = 224
    crop_ratio: float = 0.875
    image: tuple[int, int] = (500, 375)
    classes: int = 20
    requests: int = 10_000
    rounds: int = 5
    update: int = 100


FULL = Setup()


def save_model(folder: Path, setup: Setup) -> None:
    """A bundle of a model that learned a few classes of noise; what it says takes as long as if it
    were right.
    """
    backbone = build_backbone(setup.backbone)
    model = cifnet_pl.Classifier(
        backbone,
        RidgeHead(backbone.features),
        CalibrationBuffer(400),
        [],
        setup.side,
        setup.crop_ratio,
    )
    names = [f"class {i}" for i in range(setup.classes)]
    count = 40
    model.begin_task(names, [count] * len(names))
    draw = torch.Generator().manual_seed(0)
    y = torch.arange(setup.classes).repeat_interleave(count)
    centres = torch.randn(setup.classes, backbone.features, generator=draw)
    z = centres[y] + torch.randn(len(y), backbone.features, generator=draw)
    model.observe(z, y, torch.arange(len(y)))
    model.finish_task()
    model.save(folder)


def served(bundle: Path, workspace: Path) -> tuple[str, ...]:
    """The command that serves a bundle."""
    return (
        "cifnet_pl",
        "serve",
        "--model",
        str(bundle),
        "--workspace",
        str(workspace),
        "--port",
        "0",
        "--keep_images",
        "false",
        "--keep_versions",
        "3",
    )


def rows(setup: Setup = FULL) -> Iterator[Row]:
    """Images/s, beside a direct call and beside a bare handler; the slowest responses, with and
    without an update.
    """
    images = jpegs(64, setup.image)
    about = (
        f"{setup.backbone} at {setup.side} px, JPEGs of {setup.image[0]} × {setup.image[1]} px, one"
        f" a request, {CLIENTS} clients, {setup.rounds} turns, {torch.get_num_threads()} threads"
    )
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder, "model")
        save_model(bundle, setup)
        model = cifnet_pl.load(bundle, "cpu")
        with (
            serving(*served(bundle, Path(folder, "work"))) as ours,
            serving("benchmarks.bare_service", str(bundle)) as bare,
        ):
            yield from _throughput(setup, model, images, ours, bare, about)
            yield from _updates(setup, images, ours, about)


def _throughput(
    setup: Setup,
    model: cifnet_pl.Classifier,
    images: list[bytes],
    ours: Process,
    bare: Process,
    about: str,
) -> Iterator[Row]:
    share = setup.requests // setup.rounds
    few = max(CLIENTS, share // 4)
    repeated = [images[i % len(images)] for i in range(few)]
    for process in (ours, bare):
        ask(process.url, images, 2 * CLIENTS, CLIENTS)
    list(model.classify(images))
    loads: list[tuple[Load, Load]] = []
    direct = []
    memory = [ours.megabytes()]
    cpu = [0.0, 0.0, 0.0]
    for _ in range(setup.rounds):
        before = time.process_time(), ours.cpu_seconds(), bare.cpu_seconds()
        direct.append(seconds(lambda: list(model.classify(repeated))) / few)
        between = time.process_time()
        loads.append(
            (ask(ours.url, images, share, CLIENTS), ask(bare.url, images, few, CLIENTS))
        )
        after = between, ours.cpu_seconds(), bare.cpu_seconds()
        cpu = [
            total + end - start
            for total, start, end in zip(cpu, before, after, strict=True)
        ]
        memory.append(ours.megabytes())
    own, rival = ([1 / pair[i].rate for pair in loads] for i in (0, 1))
    errors = sum(load.errors for load, _ in loads)
    count = sum(len(load.times) for load, _ in loads)
    p50, p99, bare99 = (
        1000 * median(values)
        for values in (
            [load.percentile(50) for load, _ in loads],
            [load.percentile(99) for load, _ in loads],
            [load.percentile(99) for _, load in loads],
        )
    )
    others = few * setup.rounds
    said = (
        f"{about}; {count} requests, {errors} errors; images/s: directly {1 / median(direct):.0f},"
        f" served {1 / median(own):.0f}, bare handler {1 / median(rival):.0f}; CPU time of an"
        f" image: directly {1000 * cpu[0] / others:.1f} ms, served {1000 * cpu[1] / count:.1f} ms,"
        f" bare handler {1000 * cpu[2] / others:.1f} ms; responses: median {p50:.0f} ms, p99"
        f" {p99:.0f} ms, of the bare handler {bare99:.0f} ms; memory {memory[0]:.0f} MB before,"
        f" after each turn {', '.join(f'{m:.0f}' for m in memory[1:])}"
    )
    yield Row(
        "(m) images/s of serve / of the model called directly",
        spread(own, 1000, "ms"),
        spread(direct, 1000, "ms"),
        ratio(direct, own),
        "≥ 0.8",
        said,
    )
    yield Row(
        "(m) images/s of serve / of a bare FastAPI handler",
        spread(own, 1000, "ms"),
        spread(rival, 1000, "ms"),
        ratio(rival, own),
        "> 1",
        said,
    )


def _updates(
    setup: Setup, images: list[bytes], ours: Process, about: str
) -> Iterator[Row]:
    """The slowest responses while a class is learning, beside those without an update in turn."""
    calm = []
    busy = []
    taking = []
    for number in range(setup.rounds):
        update = jpegs(setup.update, setup.image, seed=1 + number)
        calm.append(
            ask(
                ours.url,
                images,
                max(CLIENTS, setup.requests // setup.rounds // 4),
                CLIENTS,
            ).percentile(99)
        )
        begun = time.perf_counter()
        with learning(ours, update, f"new {number}") as over:
            busy.append(ask(ours.url, images, 10**6, CLIENTS, over).percentile(99))
        taking.append(time.perf_counter() - begun)
    details = (
        f"{about}; updates of {setup.update} images, {np.median(taking):.1f} s each"
    )
    yield Row(
        "(m) p99 of responses while a class is learning / otherwise",
        spread(busy, 1000, "ms"),
        spread(calm, 1000, "ms"),
        ratio(busy, calm),
        "≤ 3",
        details,
    )


@contextmanager
def learning(service: Process, images: list[bytes], name: str) -> Iterator[Event]:
    """Learn a class meanwhile; the event is set when it is learned."""
    over = Event()
    ends = []

    def learn() -> None:
        job = service.learn(images, name)
        while job["state"] in ("waiting", "at work"):
            time.sleep(0.5)
            job = service.get(f"/jobs/{job['job']}")
        ends.append(job["state"])
        over.set()

    thread = Thread(target=learn)
    thread.start()
    yield over
    thread.join()
    if ends != ["done"]:
        raise RuntimeError(f"the update was {ends}")
