"""``python -m benchmarks.studies.duplicates --images NAME TRAIN.npz VAL.npz …``: what do
near-duplicates that are not counted do to generalised cross-validation?

Twelve classes are learned at once, with 5 or 25 images of each, alone, with near-duplicates of each
image (5 % noise on the embedding, once or three times), and with bursts of ten near-duplicates of a
tenth of them. Accuracy on the validation images in percent, mean of three draws, of the default
head; in parentheses λ. The last column has the multiple of λ, of 1, 3, 10, 30, that is best on the
validation images.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.studies.images import (
    Images,
    pairs_parser,
    read_pair,
    show,
    show_columns,
)
from cifnet_pl.buffer import buffer_samples
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.probabilities import CalibrationSamples
from cifnet_pl.model.calibration import Calibration

CLASSES = 12
COUNTS = (5, 25)
SEEDS = range(3)
NOISE = 0.05
FACTORS = (1, 3, 10, 30)
ADDED = ("none", "near", "near, three times", "bursts")


def drawn(images: Images, per_class: int, seed: int) -> Images:
    """Some classes, and as many training images of each."""
    draw = np.random.default_rng(seed)
    known = torch.from_numpy(np.sort(draw.permutation(images.classes)[:CLASSES]))
    rows = [
        draw.permutation(np.flatnonzero(images.y == label))[:per_class]
        for label in known.tolist()
    ]
    kept = torch.from_numpy(np.concatenate(rows))
    val = torch.isin(images.val_y, known)
    return Images(
        images.z[kept],
        torch.searchsorted(known, images.y[kept]),
        images.val_z[val],
        torch.searchsorted(known, images.val_y[val]),
    )


def with_duplicates(images: Images, added: str, seed: int) -> Images:
    """The images and their near-duplicates."""
    draw = torch.Generator().manual_seed(seed)
    rows = torch.arange(len(images.y))
    if added == "none":
        rows = rows[:0]
    elif added == "near, three times":
        rows = rows.repeat(3)
    elif added == "bursts":
        chosen = torch.randperm(len(rows), generator=draw)[: len(rows) // 10]
        rows = chosen.repeat_interleave(10)
    noise = torch.nn.functional.normalize(
        torch.randn(len(rows), images.z.shape[1], generator=draw), dim=1
    )
    lengths = images.z[rows].norm(dim=1, keepdim=True)
    near = images.z[rows] + NOISE * lengths * noise
    return replace(
        images, z=torch.cat([images.z, near]), y=torch.cat([images.y, images.y[rows]])
    )


def accuracy(images: Images, ridge: float | str) -> Tensor:
    """(2,) percent of the validation images that the default head names right, and λ."""
    head = RidgeHead(images.z.shape[1], ridge=ridge, decision="auto")  # type: ignore[arg-type]
    head.begin_task(list(range(CLASSES)))
    head.observe(images.z, images.y)
    head.solve()
    samples = buffer_samples(images.z, images.y, torch.arange(len(images.y)))
    everything = torch.ones_like(samples.y, dtype=torch.bool)
    calibration = Calibration()
    in_groups = calibration.find_groups(
        head, samples, everything, everything, len(everything)
    )
    alone = CalibrationSamples(head, in_groups.z, in_groups.y)
    calibration.calibrate_by_buffer(alone, in_groups.group)
    right = (head.predict(images.val_z) == images.val_y).double().mean()
    return torch.stack([100 * right, head.ridge_used])


def main() -> None:
    """Print a row for each set, number of images and kind of duplicate."""
    show_columns(["classes × images", "added", "GCV, df ≤ n/2 (λ)", "best multiple"])
    for name, train, val in pairs_parser(__doc__).parse_args().images:
        images = read_pair(train, val)
        for count in COUNTS:
            for added in ADDED:
                found = list[Tensor]()
                for seed in SEEDS:
                    some = with_duplicates(drawn(images, count, seed), added, seed)
                    gcv = accuracy(some, "gcv")
                    ridges = [float(factor * gcv[1]) for factor in FACTORS]
                    others = [accuracy(some, ridge)[0] for ridge in ridges]
                    found.append(torch.stack([*gcv, *others]))
                mean = torch.stack(found).mean(dim=0)
                best = int(mean[2:].argmax())
                show(
                    [
                        f"{name}, {CLASSES} × {count}",
                        added,
                        f"{mean[0]:.1f} ({mean[1]:.0f})",
                        f"{mean[2 + best]:.1f} ({FACTORS[best]} λ)",
                    ]
                )


if __name__ == "__main__":
    main()
