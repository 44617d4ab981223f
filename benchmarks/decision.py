"""``python -m benchmarks.decision ROOT``: ridge regression, the discriminant and the choice between them, on photos.

First, by exact leave-one-out accuracy on training photos alone, with few photos of a class and with all, λ by GCV: each
decision with the embedding as it is, L2-normalised, and with its signed square root. Then, with ``--final true``, A_K
on validation photos of these and of heads to compare with: all on the same embeddings, differences from RidgeHead as it
is paired over the photos as in ``benchmarks.accuracy``. All of them are functions of sums over the photos, so that A_K
does not depend on tasks or order, and the classes are learned at once. Random features are as many for every head that
has them, and what else a head has to choose is left at its default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from benchmarks.accuracy import RICH, Make, interval
from benchmarks.embeddings import BACKBONE, Photos, learn, read_photos, study_parser
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import ACILHead, FeCAMHead, KLDAHead, RanPACHead, RidgeHead, SLDAHead

COUNTS = (5, 10, 25, 50, 100)
ORDER = 1
HEADS: dict[str, Make] = {
    f"{decision}, {transform}" if transform != "none" else decision: partial(
        RidgeHead, transform=transform, decision=decision
    )
    for transform in ("none", "l2", "sqrt_l2")
    for decision in ("ridge", "discriminant")
}


def compared(width: int) -> dict[str, Make]:
    """All heads of the last table, those with random features at ``width``."""
    return {
        **HEADS,
        "ridge, joined": partial(RidgeHead, transform="joined"),
        "SLDA": SLDAHead,
        "FeCAM": FeCAMHead,
        f"KLDA, width {width}": partial(KLDAHead, width=width),
        f"RanPAC's second phase, width {width}": partial(RanPACHead, width=width),
        f"ACIL, width {width}, GCV": partial(ACILHead, width=width, ridge="gcv"),
    }


def some(photos: Photos, count: int, seed: int) -> Photos:
    """At most ``count`` training photos of each class, drawn at random."""
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(photos.y), generator=draw)
    rows = torch.cat([order[photos.y[order] == label][:count] for label in range(photos.classes)])
    return replace(photos, z=photos.z[rows], y=photos.y[rows])


def left_out(make: Make, photos: Photos) -> float:
    """Leave-one-out accuracy in percent on all classes at once; a sample of which nothing is known is wrong."""
    head = make(photos.z.shape[1])
    learn(head, photos, list(range(photos.classes)))
    scores = head.leave_one_out(photos.z, photos.y).nan_to_num(-torch.inf)
    return 100 * (head.labels[scores.argmax(1)] == photos.y).double().mean().item()


def row(name: str, subsets: Sequence[Photos]) -> str:
    """Mean accuracy of each head over the ``subsets``."""
    cells = [sum(left_out(make, photos) for photos in subsets) / len(subsets) for make in HEADS.values()]
    return f"| {name} | " + " | ".join(f"{value:.2f}" for value in cells) + " |"


def decisions(photos: Photos) -> str:
    """What ``auto`` decides after each task in one order, by 2000 stored samples: r or d."""
    head, buffer, letters = RidgeHead(photos.z.shape[1], decision="auto"), CalibrationBuffer(2000), ""
    for classes in photos.tasks(ORDER, 10):
        learn(head, photos, classes, buffer)
        head.decide(*buffer.items())
        letters += "d" if head.discriminates else "r"
    return letters


def final(photos: Photos, width: int) -> None:
    """A row a head: A_K, its difference from the first, and the millions of numbers kept."""
    print("| head | A_K | difference | numbers, millions |\n|---|---|---|---|")
    first: torch.Tensor | None = None
    for name, make in compared(width).items():
        head = make(photos.z.shape[1])
        learn(head, photos, list(range(photos.classes)))
        accuracy = 100 * (head.predict(photos.val_z) == photos.val_y).double() / len(photos.val_y)
        first = accuracy if first is None else first
        gap = interval(accuracy, first) if accuracy is not first else ""
        state = sum(head.state_elements().values())
        print(f"| {name} | {accuracy.sum().item():.2f} | {gap} | {state / 1e6:.2f} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = study_parser(__doc__)
    parser.add_argument("--final", choices=("true", "false"), default="false", help="open the validation photos")
    parser.add_argument("--rich", choices=("true", "false"), default="false", help="+layers+mirror")
    parser.add_argument("--counts", type=int, nargs="*", default=COUNTS, help="photos of a class, besides all")
    parser.add_argument("--width", type=int, default=2048, help="of random features")
    args = parser.parse_args()
    network = RICH if args.rich == "true" else BACKBONE
    photos = read_photos(args.root, args.image_size, args.cache_folder, network)
    print("| photos of a class | " + " | ".join(HEADS) + " |\n" + "|---" * (len(HEADS) + 1) + "|")
    most = int(photos.y.bincount().max())
    for count in (count for count in args.counts if count < most):
        print(row(str(count), [some(photos, count, seed) for seed in range(3)]), flush=True)
    print(row("all", [photos]), flush=True)
    print("auto, a letter a task:", decisions(photos), flush=True)
    if args.final == "true":
        final(photos, args.width)


if __name__ == "__main__":
    main()
