"""Runs of the command line in this process and in another one, with data that takes no time."""

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from cifnet_pl.__main__ import main
from cifnet_pl.cli.lightning_cli import CIFNetCLI
from cifnet_pl.cli.parsing import with_clean_heads, with_recommended

LINE = "--model.backbone pixels:8 --data.source digits --data.image_size 8"
LINE += " --data.num_workers 0 --data.classes_per_task 2 --energy.enabled false"
DATA = LINE.split()
FAST = [*DATA, "--model.head", "CIFNetHead"]
BUFFER = ["--model.buffer", "CalibrationBuffer", "--model.buffer.capacity", "300"]


def fit(logs: Path, *options: str) -> int:
    """Learn digits from their pixels by the paper's head: experiment "default" in ``logs``, unless
    ``options`` say otherwise.
    """
    return main(["fit", *FAST, "--logs", str(logs), *options])


def of_folder(images: Path, classes_per_task: int = 1) -> list[str]:
    """Options of a run that learns class folders."""
    options = f"--data.source folder --data.root {images}"
    return f"{options} --data.classes_per_task {classes_per_task}".split()


class Prepared(CIFNetCLI):
    """Parses the options of a run, and makes nothing of them."""

    def before_instantiate_classes(self) -> None:
        pass

    instantiate_classes = before_instantiate_classes


def prepared(*words: str) -> Prepared:
    """The options of ``fit`` as a run takes them."""
    options = with_clean_heads(with_recommended(words))
    return Prepared("fit", options)


def run_cifnet(command: str, *words: str, **options: object) -> int:
    """Run a command in this process; a list is an option with several values, words come last."""
    given = [command]
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        texts = [str(each).lower() if each is True else str(each) for each in values]
        given += [f"--{name.rstrip('_')}", *texts]
    return main([*given, *words])


def learned(logs: Path, *options: str, version: int = 0) -> Path:
    """The folder of a run that went well."""
    assert fit(logs, *options) == 0
    return logs / "default" / f"version_{version}"


def assert_ends(code: int, expected: int, sentence: str, capsys) -> None:
    """A command line in this process ended with the exit code ``expected`` and said so: errors
    apart from results.
    """
    shown = capsys.readouterr()
    assert code == expected, shown.err
    assert sentence in (shown.err if expected else shown.out), shown


def command(*args: str) -> list[str]:
    """A command line in a process of its own."""
    return [sys.executable, "-m", "cifnet_pl", *args]


def environment(**more: str) -> dict[str, str]:
    """Of that process: one thread, and nothing that a run in this process left behind."""
    of_a_rank = ("LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "MASTER_PORT")
    inherited = {
        key: value for key, value in os.environ.items() if key not in of_a_rank
    }
    return {**inherited, "OMP_NUM_THREADS": "1", "COLUMNS": "100", **more}


def call(*args: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command line in a process of its own, to its end."""
    options = {"env": environment(**more), "capture_output": True}
    return subprocess.run(command(*args), encoding="utf-8", **options)


IN_TURN = """
import json, sys
from cifnet_pl.__main__ import main
for args in json.loads(sys.argv[1]):
    code = main(args)
    for stream in (sys.stdout, sys.stderr):
        print(f"### {code}", file=stream, flush=True)
"""


def call_in_turn(
    *commands: list[str], before: str = "", **more: str
) -> list[subprocess.CompletedProcess[str]]:
    """Run command lines one after the other in one process of their own, which imports the package
    once, after the program ``before``.
    """
    encoding = more.get("PYTHONIOENCODING", "utf-8")
    args = [sys.executable, "-c", before + IN_TURN, json.dumps(commands)]
    options = {"env": environment(**more), "capture_output": True}
    done = subprocess.run(args, encoding=encoding, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    outputs, errors = (
        re.split(r"### (\d+)\n", text) for text in (done.stdout, done.stderr)
    )
    assert outputs[1::2] == errors[1::2]
    assert len(outputs) == 2 * len(commands) + 1
    ends = zip(
        commands, map(int, outputs[1::2]), outputs[0::2], errors[0::2], strict=False
    )
    return [subprocess.CompletedProcess(*end) for end in ends]


def rows(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file."""
    with path.open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.DictReader(file))


def checkpoint(run: Path) -> dict:
    """The content of a run's last checkpoint."""
    return torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)


def summary_of(run: Path) -> dict:
    """What a run has measured in all."""
    return json.loads((run / "summary.json").read_text())


def description(content: dict) -> dict:
    """What a checkpoint says of its run and model, without history and record, which have dates and
    times.
    """
    return {
        **content["cifnet"],
        "model": {**content["cifnet"].get("model", {}), "history": None},
        "record": None,
    }


def assert_same_model(run: Path, other: Path) -> None:
    """Both runs ended with bit-identical weights, sums and buffer, and the same classes."""
    ours = checkpoint(run)
    theirs = checkpoint(other)
    assert description(ours) == description(theirs)
    states = ours["state_dict"], theirs["state_dict"]
    torch.testing.assert_close(*states, rtol=0, atol=0)


def measurements(run: Path) -> list[list[str]]:
    """The rows of ``tasks.csv`` without the columns of time and energy, and without what these
    depend on.
    """
    lines = [line.split(",") for line in (run / "tasks.csv").read_text().splitlines()]
    costs = ("seconds", "energy", "cached")
    kept = [
        i for i, name in enumerate(lines[0]) if not any(cost in name for cost in costs)
    ]
    return [[line[i] for i in kept] for line in lines]


def make_images(
    root: Path, classes: Sequence[str], per_class: int = 10, noise: float = 10
) -> Path:
    """Class folders of small PNG files: a little noise on a pattern that the class's name
    decides.
    """
    for name in classes:
        draw = np.random.default_rng([*os.fsencode(name)])
        pattern = draw.integers(0, 256, (12, 10, 3))
        (root / name).mkdir(parents=True)
        for i in range(per_class):
            noisy = pattern + draw.normal(0, noise, (12, 10, 3))
            pixels = np.clip(noisy, 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(root / name / f"{i}.png")
    return root
