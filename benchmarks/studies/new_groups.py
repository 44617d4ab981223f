"""``python -m benchmarks.studies.new_groups --row NAME CHECKOUT ROOT OPTIONS …``: do the estimates
hold on new groups?

Every row is what a user gets from the commands of a checkout of the package: ``fit`` with OPTIONS
(one word of the shell) learns ``ROOT/train``, of which it holds out a fifth; ``classify --coverage
0.95 --unknown 0.05`` asks about ``ROOT/val``. Instead of folders there may be ``train.npz`` and
``val.npz``, embeddings with ids ``class/number``. The draws (``--draws``) differ in the fifth that
is held out, in the order of the classes and in the buffer.

A row has the expected accuracy (the estimate for new groups, else that of the held-out images), the
accuracy on validation images, their ECE, coverage and size of their prediction sets, wrong
predictions of more than 95 %, in percent, and images called unknown. The other rows are compared
with the first one: differences with the 95 % interval of a bootstrap over the validation images,
which are the same for both.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.studies.images import show, show_columns
from cifnet_pl.model.metrics import calibration_error

COVERAGE = 0.95
UNKNOWN = 0.05
RESAMPLED = 500
COLUMNS = (
    "expected %",
    "true %",
    "ECE %",
    "covered %",
    "classes",
    "wrong > 95 %",
    "called unknown %",
)


def cifnet(checkout: Path, *arguments: str) -> None:
    """Run a command of the package in a checkout.

    Raises:
        RuntimeError: there is no such checkout (Python would take the installed package), or, with
            what it printed, the command fails.
    """
    if not (checkout / "cifnet_pl").is_dir():
        raise RuntimeError(
            f"{checkout} is no checkout of the package: it has no folder cifnet_pl"
        )
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    command = [sys.executable, "-m", "cifnet_pl", *arguments]
    # In its folder, as Python looks for modules where it runs before it looks anywhere else.
    done = subprocess.run(
        command,
        env=environment,
        cwd=checkout,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)


def part(root: Path, name: str) -> Path:
    """The folder or file of a part, "train" or "val"."""
    file = root / f"{name}.npz"
    if file.exists():
        return file
    return root / name


def predictions(
    checkout: Path, root: Path, options: str, seed: int
) -> tuple[float, np.ndarray]:
    """Learn and ask.

    Returns:
        The expected accuracy in percent, and (n, 5) of each validation image, in the order of their
        names: probability of the predicted class, whether it is correct, whether the prediction set
        holds the true class, the set's size, and whether the image is called unknown.
    """
    with TemporaryDirectory() as folder:
        learned = part(root, "train")
        given = [
            f"--data.root={learned}",
            *shlex.split(options),
            f"--logs={folder}",
            "--experiment=run",
        ]
        given += ["--data.source=embeddings"] if learned.suffix else []
        seeds = [
            f"--{name}={seed}"
            for name in ("seed_everything", "data.class_order", "data.split_seed")
        ]
        cifnet(checkout, "fit", *given, *seeds)
        run = Path(folder) / "run" / "version_0"
        table = f"{folder}/predictions.csv"
        asked = [
            f"--coverage={COVERAGE}",
            f"--unknown={UNKNOWN}",
            f"--output={table}",
            "--top=1",
        ]
        cifnet(
            checkout,
            "classify",
            f"--model={run}",
            f"--images={part(root, 'val')}",
            *asked,
        )
        summary = json.loads((run / "summary.json").read_text())
        with open(table, encoding="utf-8", newline="") as file:
            rows = sorted(csv.DictReader(file), key=lambda row: row["file"])
    found = []
    for row in rows:
        # FILE#class/number
        true = Path(row["file"]).parent.name.rpartition("#")[2]
        sets = row["prediction_set"].split("; ")
        found.append(
            [
                float(row["probability"]),
                row["class"] == true,
                true in sets,
                len(sets),
                row["known"] == "false",
            ]
        )
    return summary.get("new_group_accuracy") or summary["A_K"], np.array(
        found, dtype=np.float64
    )


def measured(draws: np.ndarray) -> np.ndarray:
    """The numbers of a row but the first, (6,), mean over draws (draws, n, 5)."""
    sure, right, covered, size, unknown = np.ascontiguousarray(np.moveaxis(draws, 2, 0))
    errors = []
    for p, r in zip(sure, right, strict=True):
        errors.append(calibration_error(p, r == 1) or 0.0)
    ece = np.mean(errors)
    wrong = (sure > COVERAGE) & (right == 0)
    shares = [100 * column.mean() for column in (right, covered, wrong, unknown)]
    return np.array([shares[0], ece, shares[1], size.mean(), shares[2], shares[3]])


def differences(ours: np.ndarray, theirs: np.ndarray) -> list[str]:
    """Cells with what ours have more than theirs, (draws, n, 5) each, and the 95 % interval."""
    gap = measured(ours) - measured(theirs)
    chance = np.random.default_rng(0)
    picked = [
        chance.integers(0, ours.shape[1], ours.shape[1]) for _ in range(RESAMPLED)
    ]
    low, high = np.quantile(
        [measured(ours[:, p]) - measured(theirs[:, p]) for p in picked],
        (0.025, 0.975),
        axis=0,
    )
    return [
        f"{g:+.1f} ({a:+.1f} … {b:+.1f})"
        for g, a, b in zip(gap, low, high, strict=True)
    ]


def main() -> None:
    """A row for each ``--row``, and below it the differences from the first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--row",
        nargs=4,
        action="append",
        required=True,
        metavar=("NAME", "CHECKOUT", "ROOT", "OPTIONS"),
    )
    parser.add_argument("--draws", type=int, default=3)
    asked = parser.parse_args()
    show_columns(("", *COLUMNS))
    first: np.ndarray | None = None
    for name, checkout, root, options in asked.row:
        drawn = [
            predictions(Path(checkout), Path(root).resolve(), options, seed)
            for seed in range(asked.draws)
        ]
        ours = np.stack([table for _, table in drawn])
        show(
            [
                name,
                *(
                    f"{cell:.1f}"
                    for cell in (
                        np.mean([expected for expected, _ in drawn]),
                        *measured(ours),
                    )
                ),
            ]
        )
        if first is None:
            first = ours
        else:
            show(["… less the first", "", *differences(ours, first)])


if __name__ == "__main__":
    main()
