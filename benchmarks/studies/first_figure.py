"""``python -m benchmarks.studies.first_figure NAME=RUNS …``: the first figure of README and docs.

A line of A_k for each name, in the order given, with the standard deviation over the seeds of its
runs; the axis ends at 100 %, and the paper's A_K of CIFNet is a mark.

    DATA="--data.source embeddings --logs runs --data.classes_per_task 10"
    for s in 1 2 3; do
        SEED="--seed_everything $s --data.class_order $s"
        cifnet fit --config folder $DATA $SEED --data.root cifar100_default.npz \\
            --model.backbone none:1584 --experiment default
        for head in CIFNet Ridge; do
            cifnet fit --config cifar100 $DATA $SEED --data.root cifar100_plain.npz \\
                --model.backbone none:1280 --model.head ${head}Head --experiment $head
        done
    done
    python -m benchmarks.studies.first_figure "default of fit"=runs/default \\
        "Exact ridge"=runs/Ridge CIFNet=runs/CIFNet
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib
import pandas as pd

from cifnet_pl.report.external_results import published_numbers
from cifnet_pl.report.figures import STYLE, draw_lines, render
from cifnet_pl.report.runs import read_runs


def curves(name: str, runs: str) -> pd.DataFrame:
    """Mean and deviation of A_k over the runs, by name and classes seen; prints Ā and A_K."""
    complete, _ = read_runs([Path(runs)])
    tasks = pd.concat([run.tasks for run in complete])
    finals = pd.DataFrame([run.summary for run in complete])[["A_bar", "A_K", "ece"]]
    print(name, len(complete), "runs", finals.agg(["mean", "std"]).round(2).to_dict())
    stats = tasks.groupby("classes_seen")["A_k"].agg(["mean", "std"])
    return pd.concat({name: stats})


def published() -> float:
    """A_K of CIFNet in the paper, 10 classes a task."""
    rows = published_numbers().set_index(
        ["table", "dataset", "classes_per_task", "method"]
    )
    own = rows.loc[("tab:accuracy-results", "CIFAR-100", "10", "CIFNet")]
    return float(own.set_index("quantity")["value"]["A_K"])


def main() -> None:
    """Draw the figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", nargs="+", help="NAME=RUNS")
    parser.add_argument("--output", type=Path, default=Path("cifar100_heads.png"))
    options = parser.parse_args()
    parts = [curves(*line.split("=", 1)) for line in options.lines]
    with matplotlib.rc_context(STYLE):
        figure, axes = draw_lines(pd.concat(parts), "CIFAR-100, 10 classes a task")
        axes.plot(100, published(), "*", color="#D55E00", markersize=14)
        axes.annotate("$A_K$ of CIFNet in the paper", (98, published() - 6), ha="right")
        axes.set(xlabel="classes seen", ylabel="accuracy $A_k$ (%)", ylim=(0, 100))
    options.output.write_bytes(render(figure, "png"))


if __name__ == "__main__":
    main()
