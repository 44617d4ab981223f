"""(k), (l): ONNX Runtime beside torch in fit, extend and classify, the network alone by each
engine, images as phones make them, and start-up times.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import cifnet_pl
from benchmarks.fit_overhead import CPU, Setup, write_images
from benchmarks.measure import Row, ratio, seconds, spread
from cifnet_pl.backbones import build_backbone
from cifnet_pl.heads import RidgeHead
from cifnet_pl.images.reader import decode_images

BACKBONE = "embedded:efficientnet_lite0"
ENGINES = ("auto", "torch")
SMALL = replace(CPU, classes=12, per_class=150, tasks=2)
ROUNDS = {128: 3, 224: 2}
"""Side of the images → how often both engines are measured, on 1800 images."""
FILES = {"64 px": (64, 64), "500 px": (500, 375), "12 MP": (4000, 3000)}
"""Images of three sizes: width and height in pixels."""


def fit(
    root: Path,
    logs: Path,
    setup: Setup,
    engine: str,
    *more: str,
    config: str = "heads/ridge",
) -> float:
    """Seconds of learning all tasks, the evaluation apart, in a process of its own, as users have
    it.

    ``more`` are further words of the command.
    """
    arguments = [
        "fit",
        "--config",
        config,
        "--data.root",
        str(root),
        "--data.image_size",
        str(setup.side),
    ]
    arguments += [
        "--data.classes_per_task",
        str(setup.classes // setup.tasks),
        "--data.batch_size",
        str(setup.batch),
    ]
    arguments += [
        "--logs",
        str(logs),
        "--experiment",
        engine,
        "--model.engine",
        engine,
        "--trainer.accelerator",
        "cpu",
    ]
    arguments += more
    subprocess.run([sys.executable, "-m", "cifnet_pl", *arguments], check=True)
    newest = max(
        (logs / engine).glob("version_*"), key=lambda path: path.stat().st_mtime
    )
    with (newest / "tasks.csv").open() as file:
        return sum(float(row["train_seconds"]) for row in csv.DictReader(file))


def engine_rows(setup: Setup) -> Iterator[Row]:
    """Alternating, so that a busy machine slows both engines alike."""
    assert build_backbone(BACKBONE).engine() == "onnxruntime", (
        "there is nothing to compare on this machine"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "images")
        logs = Path(folder, "logs")
        write_images(root, setup)
        write_images(Path(folder, "more"), setup, seed=1000)
        new = Path(folder, "more", "train")
        files = sorted((root / "train").rglob("*.jpg"))
        # For extend, to which other names are other classes.
        for entry in sorted(new.iterdir()):
            entry.rename(entry.with_name(f"new_{entry.name}"))
        times: dict[str, list[list[float]]] = {
            "fit": [[], []],
            "extend": [[], []],
            "classify": [[], []],
        }
        for _ in range(setup.rounds):
            for which, engine in enumerate(ENGINES):
                times["fit"][which].append(fit(root, logs, setup, engine))
                model = cifnet_pl.load(logs / engine, "cpu", engine=engine)
                times["extend"][which].append(cifnet_pl.extend(model, new).seconds)
                times["classify"][which].append(
                    seconds(lambda model=model: list(model.classify(files)))
                )  # type: ignore[misc]
        images = setup.classes * setup.per_class
        for name, (ours, slower) in times.items():
            rates = (
                f"; images/s: auto {images / np.median(ours):.0f}, torch"
                f" {images / np.median(slower):.0f}"
            )
            label = f"(k) {name} with engine auto, torch / auto, {setup.side} px"
            yield Row(
                label,
                spread(ours),
                spread(slower),
                ratio(slower, ours),
                "≥ 1.8",
                about(setup) + rates,
            )


def default_rows(setup: Setup) -> Iterator[Row]:
    """What ``fit`` uses without a configuration: late layers, mirror image, product features."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "images")
        logs = Path(folder, "logs")
        write_images(root, setup)
        times: dict[str, list[float]] = {engine: [] for engine in ENGINES}
        for _ in range(setup.rounds):
            for engine in ENGINES:
                learned = fit(root, logs, setup, engine, config="folder")
                times[engine].append(learned)
        ours, slower = times.values()
        yield Row(
            f"(k) fit by default with engine auto, torch / auto, {setup.side} px",
            spread(ours),
            spread(slower),
            ratio(slower, ours),
            "≥ 2.2",
            about(setup),
        )


def about(setup: Setup) -> str:
    """What was learned, how often, on how many threads."""
    images = setup.classes * setup.per_class
    threads = torch.get_num_threads()
    return (
        f"EfficientNet-Lite0, {images} JPEGs, {setup.rounds} rounds, {threads} threads"
    )


def alone_rows(side: int, rounds: int = 6) -> Iterator[Row]:
    """The network alone by each engine in turn."""
    draw = torch.Generator().manual_seed(side)
    shape = (128, 3, side, side)
    images = torch.randint(0, 256, shape, generator=draw, dtype=torch.uint8)
    networks = {
        name: build_backbone(BACKBONE, engine=name) for name in ("torch", "onnxruntime")
    }
    first = {
        name: seconds(partial(network, images)) for name, network in networks.items()
    }
    times: dict[str, list[float]] = {name: [] for name in networks}
    for _ in range(rounds):
        for name, network in networks.items():
            times[name].append(seconds(partial(network, images)))
    torchs = times.pop("torch")
    for name, ours in times.items():
        rates = [len(images) / np.median(values) for values in (ours, torchs)]
        yield Row(
            f"(k) network alone, engine {name}, torch / {name}, {side} px",
            spread(ours),
            spread(torchs),
            ratio(torchs, ours),
            "",
            f"EfficientNet-Lite0, {torch.get_num_threads()} threads, {rounds} rounds;"
            f" images/s: {name} {rates[0]:.0f}, torch {rates[1]:.0f};"
            f" the first batches took {first[name]:.0f} s",
        )


def file_rows() -> Iterator[Row]:
    """What classify takes for images of three sizes, beside decoding them alone."""
    model = _learned()
    with tempfile.TemporaryDirectory() as folder:
        noise = np.random.default_rng(0)
        for name, shape in FILES.items():
            small = Image.fromarray(noise.integers(0, 256, (64, 64, 3), dtype=np.uint8))
            files = [Path(folder, f"{name}_{i}.jpg") for i in range(64)]
            for file in files:
                small.resize(shape, Image.Resampling.BICUBIC).save(file)
            ours = []
            decode = []
            for _ in range(3):
                ours.append(seconds(lambda files=files: list(model.classify(files))))  # type: ignore[misc]
                decode.append(
                    seconds(lambda files=files: list(decode_images(files, 224, 0.875)))
                )  # type: ignore[misc]
            rates = [f"{64 / np.median(times):.0f}" for times in (ours, decode)]
            rate = "64 JPEGs at 224 px; images/s: {}, decoding alone {}".format(*rates)
            yield Row(
                f"(k) classify / decoding alone, images of {name}",
                spread(ours),
                spread(decode),
                ratio(ours, decode),
                "",
                rate,
            )


def _learned() -> cifnet_pl.Classifier:
    backbone = build_backbone(BACKBONE)
    head = RidgeHead(backbone.features)
    head.begin_task([0, 1])
    head.observe(torch.randn(20, backbone.features), torch.arange(20) % 2)
    head.solve()
    return cifnet_pl.Classifier(backbone, head, None, ["a", "b"], 224, 0.875)


def start_rows(rounds: int = 5) -> Iterator[Row]:
    """Whole commands, each a process of its own, beside ``python -c "import torch"``."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder, "model")
        image = Path(folder, "image.jpg")
        _learned().save(model)
        Image.new("RGB", (500, 375), "olive").save(image)
        classify = [
            "classify",
            "--model",
            str(model),
            "--images",
            str(image),
            "--output",
            f"{folder}/out.csv",
        ]
        commands = {
            "--help": ["--help"],
            "info --help": ["info", "--help"],
            "an error in an option": ["classify", "--modle", "x"],
            "classify of one image": [*classify, "--overwrite"],
        }
        for name, arguments in commands.items():
            pairs = [
                (
                    seconds(_process("-m", "cifnet_pl", *arguments)),
                    seconds(_process("-c", "import torch")),
                )
                for _ in range(rounds)
            ]
            ours, rival = ([pair[i] for pair in pairs] for i in (0, 1))
            yield Row(
                f"(l) cifnet {name} / import torch",
                spread(ours),
                spread(rival),
                ratio(ours, rival),
                "",
                f"{rounds} pairs of processes",
            )


def _process(*arguments: str) -> Callable[[], object]:
    return lambda: subprocess.run(
        [sys.executable, *arguments], capture_output=True, check=False
    )


def network_rows(rounds: Mapping[int, int] = ROUNDS) -> Iterator[Row]:
    """Images of three sizes, then the engines in turn."""
    yield from file_rows()
    for side, count in rounds.items():
        yield from engine_rows(replace(SMALL, side=side, rounds=count))
        yield from default_rows(replace(SMALL, side=side, rounds=count))
        yield from alone_rows(side)
