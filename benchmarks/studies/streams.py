"""Figures of docs/studies/streams.md: every kind of stream on digits and on one set of images.

    python -m benchmarks.studies.streams --images IMAGES [--logs FOLDER] [--figures docs/figures]

IMAGES is a folder with one sub-folder per class; its embeddings (EfficientNet-Lite0, 128 px) are
cached. With ``--heads`` it prints a table of heads instead: Ā and A_K of every kind.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from sklearn.datasets import load_digits

from cifnet_pl.__main__ import main as cifnet
from cifnet_pl.report.figures import STYLE

KINDS: dict[str, list[str]] = {
    "Disjoint": [],
    "Returning": ["--data.stream", "Returning", "--data.stream.share", "0.5"],
    "Blurry": [
        "--data.stream",
        "Blurry",
        "--data.stream.disjoint",
        "50",
        "--data.stream.blurry",
        "10",
    ],
    "TaskFree": ["--data.stream", "TaskFree"],
    "LongTailed": ["--data.stream", "LongTailed", "--data.stream.ratio", "20"],
    "Domains": ["--data.stream", "Domains"],
}
EVERY = {"digits": "150", "images": "1500"}
BUFFER = ["--model.buffer", "CalibrationBuffer", "--model.buffer.capacity"]
HEADS: dict[str, dict[str, list[str]]] = {
    "RidgeHead": {"digits": [], "images": []},
    "CIFNetHead": {
        name: ["--model.head.ridge", "1.0", *BUFFER, capacity]
        for name, capacity in (("digits", "200"), ("images", "2000"))
    },
    "SLDAHead": {"digits": [], "images": []},
    "NCMHead": {"digits": [], "images": []},
}
ANGLES = (0, 20, 40, 60)


def rotated_digits(root: Path) -> Path:
    """Write scikit-learn's digits as four domains, a quarter of them turned by each of
    ``ANGLES``.
    """
    pixels, labels = load_digits(return_X_y=True)
    squares = (pixels.reshape(-1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    for i, (square, label) in enumerate(zip(squares, labels, strict=True)):
        angle = ANGLES[i % len(ANGLES)]
        home = root / f"{angle:02d} degrees" / str(label)
        home.mkdir(parents=True, exist_ok=True)
        large = Image.fromarray(square).resize((32, 32), Image.Resampling.BICUBIC)
        large.rotate(angle, Image.Resampling.BICUBIC).save(home / f"{i:04d}.png")
    return root


def run(name: str, logs: Path, *options: str) -> Path:
    """Run ``fit`` unless it was run before; returns the run's folder."""
    folder = logs / name / "version_0"
    if not (folder / "summary.json").is_file():
        line = [
            "fit",
            "--experiment",
            name,
            "--logs",
            str(logs),
            "--energy.enabled",
            "false",
            *options,
        ]
        if cifnet(line):
            raise SystemExit(1)
    return folder


def column(folder: Path, file: str, name: str) -> tuple[list[int], list[float]]:
    """Return tasks and values of a column, without the empty cells."""
    if not (folder / file).is_file():
        return [], []
    rows = pd.read_csv(folder / file)[["task", name]].dropna()
    return rows["task"].tolist(), rows[name].tolist()


def draw(axes: Axes, folder: Path, disjoint: Path | None, title: str) -> None:
    """Draw A_k and the prequential accuracy of one run; the end of the disjoint run as a line."""
    tasks, values = column(folder, "tasks.csv", "A_k")
    style = "o-" if len(tasks) < 25 else "-"
    axes.plot(
        tasks, values, style, color="black", label="$A_k$, test samples of classes seen"
    )
    before, online = column(folder, "prequential.csv", "accuracy")
    if before:
        axes.plot(
            before,
            online,
            "s--",
            ms=4,
            color="tab:orange",
            label="prequential, samples of the task before it",
        )
    if disjoint is not None:
        end = column(disjoint, "tasks.csv", "A_k")[1][-1]
        axes.axhline(
            end,
            color="tab:blue",
            lw=1,
            ls=":",
            label=f"end of the disjoint stream ({end:.1f} %)",
        )
    axes.set(xlabel="task", ylabel="accuracy (%)", title=title, ylim=(0, 102))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)


def compare(logs: Path, commands: dict[tuple[str, str], list[str]]) -> None:
    """Print Ā and A_K in percent of every head for every kind of stream; "refused" where a head
    cannot learn it.
    """
    print("| | stream | " + " | ".join(HEADS) + " |\n|---|---|" + "---|" * len(HEADS))
    for (kind, name), options in commands.items():
        cells = []
        for head, own in HEADS.items():
            if head == "CIFNetHead" and kind not in ("Disjoint", "LongTailed"):
                cells.append("refused")
                continue
            words = [head if word == "RidgeHead" else word for word in options]
            summary = json.loads(
                (
                    run(f"{kind}-{name}-{head}", logs, *words, *own[name])
                    / "summary.json"
                ).read_text()
            )
            cells.append(f"{summary['A_bar']:.1f} / {summary['A_K']:.1f}")
        print(f"| {name} | {kind} | " + " | ".join(cells) + " |", flush=True)


def commands_of(root: str, logs: Path) -> dict[tuple[str, str], list[str]]:
    """Options of ``fit`` for every kind of stream on digits and on the images of a folder."""
    exact = [
        "--model.head",
        "RidgeHead",
        "--data.class_order",
        "1",
        "--data.num_workers",
        "0",
    ]
    digits = [
        *exact,
        "--model.backbone",
        "pixels:8",
        "--data.image_size",
        "8",
        "--data.classes_per_task",
        "2",
    ]
    images = [
        *exact,
        "--data.source",
        "folder",
        "--data.root",
        root,
        "--data.cache",
        "true",
    ]
    images += ["--data.image_size", "128", "--data.classes_per_task", "10"]
    commands: dict[tuple[str, str], list[str]] = {}
    for kind, options in KINDS.items():
        if kind == "Domains":
            domains = [
                "--data.source",
                "domains",
                "--data.root",
                str(rotated_digits(logs / "rotated")),
            ]
            commands[kind, "digits"] = [*digits, *domains, *options]
            continue
        for name, own in (
            ("digits", [*digits, "--data.source", "digits"]),
            ("images", images),
        ):
            if kind == "TaskFree":
                every = ["--data.stream.every", EVERY[name]]
            else:
                every = []
            commands[kind, name] = [*own, *options, *every]
    return commands


def main() -> None:
    """Draw the figures, or print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", required=True)
    parser.add_argument("--logs", type=Path, default=Path("lightning_logs/streams"))
    parser.add_argument("--figures", type=Path, default=Path("docs/figures"))
    parser.add_argument(
        "--heads", action="store_true", help="compare heads instead of drawing"
    )
    options = parser.parse_args()
    commands = commands_of(options.images, options.logs)
    if options.heads:
        compare(options.logs, commands)
    else:
        with matplotlib.rc_context(STYLE):
            draw_all(options.logs, commands, options.figures)


def draw_all(
    logs: Path, commands: dict[tuple[str, str], list[str]], figures: Path
) -> None:
    """Run every kind of stream, and draw one figure of each."""
    runs = {
        (kind, name): run(f"{kind}-{name}", logs, *options)
        for (kind, name), options in commands.items()
    }
    for (kind, name), folder in runs.items():
        print(
            kind,
            name,
            *(f"{value:.1f}" for value in column(folder, "tasks.csv", "A_k")[1]),
        )
    for kind in KINDS:
        names = [name for name in EVERY if (kind, name) in runs]
        figure = Figure(figsize=(4.6 * len(names), 4.0), dpi=110, layout="constrained")
        for axes, name in zip(
            np.atleast_1d(figure.subplots(1, len(names))), names, strict=True
        ):
            compared = (
                None if kind in ("Disjoint", "Domains") else runs["Disjoint", name]
            )
            draw(axes, runs[kind, name], compared, f"{kind}: {name}")
        # Below each panel, so that it hides no line.
        for axes in figure.axes:
            axes.legend(
                loc="upper center",
                bbox_to_anchor=(0.5, -0.18),
                fontsize=8,
                frameon=False,
            )
        figure.savefig(figures / f"stream_{kind.lower()}.png")


if __name__ == "__main__":
    main()
