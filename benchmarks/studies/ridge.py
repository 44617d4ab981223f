"""``python -m benchmarks.studies.ridge ROOT``: a fixed small ridge against GCV along the stream.

Prints a table and draws a figure.
ACIL's random projection learns 10 tasks at width 4096 and as many tasks of two classes as there are
at width 2048; the exact head with GCV is drawn beside it. A dip is a task whose accuracy lies more
than 2 points below both of its neighbours'. First, leave-one-out accuracy on all training images
with GCV's ridge, and with multiples of it. ROOT may be a file that ``cifnet embed`` made of images.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch

from benchmarks.studies.images import (
    Images,
    accuracy,
    learn,
    learned,
    left_out,
    mean_eigenvalue,
    read_images,
    show,
    show_columns,
    study_parser,
)
from cifnet_pl.heads import ACILHead, Head, RidgeHead
from cifnet_pl.model.metrics import average_accuracy
from cifnet_pl.report.figures import STYLE
from cifnet_pl.statistics import Ridge

FACTORS = (0.03, 0.1, 0.3, 1, 3, 10)
"""Of GCV's ridge."""

SMALL = 1e-4
"""The fixed ridge, as a share of the mean eigenvalue of the Gram matrix when as many samples as
features were seen.
"""


def trajectory(head: Head, images: Images, tasks: list[list[int]]) -> list[float]:
    """A_k after each task."""
    accuracies = []
    for classes in tasks:
        learn(head, images, classes)
        accuracies.append(accuracy(head, images))
    return accuracies


def dips(values: list[float]) -> list[tuple[int, float]]:
    """(task, points below the lower of its neighbours) where that is more than 2; tasks count from
    1.
    """
    depth = [
        (k + 1, min(values[k - 1], values[k + 1]) - values[k])
        for k in range(1, len(values) - 1)
    ]
    return [(task, points) for task, points in depth if points > 2]


def multiples(images: Images) -> None:
    """Print leave-one-out accuracy by the multiple of GCV's ridge, and GCV's share of degrees of
    freedom.
    """
    head = learned(RidgeHead, images)
    chosen = head.ridge_used.item()
    found = []
    for factor in FACTORS:
        head.ridge = factor * chosen
        head.solved.fill_(False)
        head.solve()
        found.append(f"{left_out(head, images).sum():.2f}")
    show_columns(["GCV's ridge, times", *(f"{factor:g}" for factor in FACTORS)])
    show([f"{chosen:.3g}", *found])


def main() -> None:
    """Learn, print the tables, draw the figure."""
    parser = study_parser(__doc__)
    parser.add_argument("--order", type=int, default=1, help="seed of the class order")
    parser.add_argument(
        "--widths",
        type=int,
        nargs="*",
        default=(4096, 2048),
        choices=(4096, 2048),
        help="of ACIL",
    )
    parser.add_argument("--output", type=Path, default=Path("ridge.png"))
    options = parser.parse_args()
    images = read_images(options.root, options)
    multiples(images)
    if not options.widths:
        return
    plt.rcParams.update(STYLE)
    panels = len(options.widths)
    figure, axes = plt.subplots(
        1, panels, figsize=(10, 4), sharey=True, squeeze=False, layout="constrained"
    )
    of_width = {4096: -(-images.classes // 10), 2048: 2}
    show_columns(
        [
            "tasks",
            "head",
            "ridge",
            "Ā",
            "A_K",
            "lowest A_k",
            "dips of more than 2 points: task (points)",
        ]
    )
    for axis, width in zip(axes[0], options.widths, strict=True):
        tasks = images.tasks(options.order, of_width[width])
        d = images.z.shape[1]
        choices: list[tuple[str, Ridge, str]] = [
            ("fixed", SMALL * mean_eigenvalue(images.z[:width], width), "o-"),
            ("GCV", "gcv", "s-"),
        ]
        for name, ridge, style in [*choices, ("GCV", "gcv", "^--")]:
            exact = style == "^--"
            if exact:
                head = RidgeHead(d)
            else:
                head = ACILHead(d, width=width, ridge=ridge)
            values = trajectory(head, images, tasks)
            label = "RidgeHead" if exact else f"ACIL, width {width}"
            shown = f"{ridge:.2g}" if isinstance(ridge, float) else "GCV"
            listed = (
                ", ".join(f"{task} ({points:.1f})" for task, points in dips(values))
                or "none"
            )
            figures = (average_accuracy(values), values[-1], min(values))
            show(
                [
                    str(len(tasks)),
                    label,
                    shown,
                    *(f"{value:.1f}" for value in figures),
                    listed,
                ]
            )
            axis.plot(
                range(1, len(tasks) + 1),
                values,
                style,
                ms=4,
                label=f"{label}, {name} ridge",
            )
        sizes = [
            int(torch.isin(images.y, torch.tensor(classes)).sum()) for classes in tasks
        ]
        samples = np.cumsum([0, *sizes])
        if samples[-1] >= width:
            crossing = float(np.interp(width, samples, range(len(samples))))
            axis.axvline(crossing, color="0.6", ls=":", lw=1, label=f"{width} samples")
        axis.set(xlabel="tasks learned", title=f"{len(tasks)} tasks", ylim=(0, 100))
        axis.legend(loc="upper right", frameon=False)
    axes[0, 0].set_ylabel("$A_k$ (%)")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(options.output, dpi=150)


if __name__ == "__main__":
    main()
