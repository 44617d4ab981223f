"""``python -m benchmarks.studies.decision ROOT``: ridge regression, the discriminant and the choice between them.

First, by exact leave-one-out accuracy on training photos alone, with few photos of a class and with all, λ by GCV: each
decision with the embedding as it is, L2-normalised, and with its signed square root. Then, with ``--final``, A_K on
validation photos of these and of heads to compare with: all on the same embeddings, differences from RidgeHead as it is
paired over the photos. All of them are functions of sums over the photos, so that A_K does not depend on tasks or
order, and the classes are learned at once. Random features are as many for every head that has them, and what else a
head has to choose is left at its default.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from benchmarks.studies.photos import (
    BACKBONE,
    RICH,
    Make,
    Photos,
    at_validation,
    interval,
    learn,
    learned,
    left_out,
    millions,
    read_photos,
    show,
    show_columns,
    stored,
    study_parser,
)
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import ACILHead, FeCAMHead, KLDAHead, RanPACHead, RidgeHead, SLDAHead

HEADS: dict[str, Make] = {
    f"{decision}, {transform}": partial(RidgeHead, transform=transform, decision=decision)
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
    order = torch.randperm(len(photos.y), generator=torch.Generator().manual_seed(seed))
    rows = torch.cat([order[photos.y[order] == label][:count] for label in range(photos.classes)])
    return replace(photos, z=photos.z[rows], y=photos.y[rows])


def decisions(photos: Photos) -> str:
    """What ``auto`` decides after each task in one order, by 2000 stored samples: d(iscriminant) or b(oth)."""
    head, buffer, letters = RidgeHead(photos.z.shape[1], decision="auto"), CalibrationBuffer(2000), ""
    for classes in photos.tasks(1, 10):
        learn(head, photos, classes, buffer)
        head.decide(*buffer.items(), stored(head, buffer).groups)
        letters += "b" if head.shares[0] else "d"
    return letters


def final(photos: Photos, width: int) -> None:
    """A row a head: A_K, its difference from the first, and the millions of numbers kept."""
    show_columns(["head", "A_K", "difference", "numbers, millions"])
    first: torch.Tensor | None = None
    for name, make in compared(width).items():
        head = learned(make, photos)
        right = at_validation(head, photos)
        gap = "" if first is None else interval(right, first)
        first = right if first is None else first
        show([name, f"{right.sum():.2f}", gap, millions(head)])


def main() -> None:
    """Print the tables."""
    parser = study_parser(__doc__)
    parser.add_argument("--final", action="store_true", help="open the validation photos")
    parser.add_argument("--rich", action="store_true", help="+layers+mirror")
    parser.add_argument("--counts", type=int, nargs="*", default=(5, 10, 25, 50, 100), help="photos of a class")
    parser.add_argument("--width", type=int, default=2048, help="of random features")
    options = parser.parse_args()
    photos = read_photos(options.root, options, RICH if options.rich else BACKBONE)
    most = int(photos.y.bincount().max())
    subsets = {str(n): [some(photos, n, seed) for seed in range(3)] for n in options.counts if n < most}
    show_columns(["photos of a class", *HEADS])
    for name, draws in {**subsets, "all": [photos]}.items():
        means = [sum(left_out(learned(make, d), d).sum() for d in draws) / len(draws) for make in HEADS.values()]
        show([name, *(f"{mean:.2f}" for mean in means)])
    print("auto, a letter a task:", decisions(photos), flush=True)
    if options.final:
        final(photos, options.width)


if __name__ == "__main__":
    main()
