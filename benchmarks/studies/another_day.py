"""``python -m benchmarks.studies.another_day ROOT [ROOT …]``: do promises hold on photos of another day?

For each folder with ``train`` and ``val``, the exact head learns all training photos at once, or a part of each class
(``--photos``), drawn three times (``--draws``), with a buffer of 2000 samples. A row says how the head was calibrated:
each stored photo judged without itself, without its near-copies, or without its occasion, as the product does. It has
the accuracy that is expected so, that on validation photos, their ECE, how many percent of their sets of 95 % hold the
right class and how large these are, wrong answers above 95 %, and known photos called unknown where 5 % was asked for.
The last row is a model that half of the validation photos recalibrated, on the other half.

``--network`` names the backbone, ``--decision`` is that of the exact head.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error

from benchmarks.studies.photos import BACKBONE, Photos, learn, read_photos, show, show_columns, study_parser
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head, RidgeHead
from cifnet_pl.heads.confidence import AnswerSets, CalibrationSamples, calibrate, near_copies, novelty_reference
from cifnet_pl.model.calibration import occasions

CAPACITY, COVERAGE, UNKNOWN = 2000, 0.95, 0.05
COLUMNS = ("photos", "expected %", "true %", "ECE %", "covered %", "classes", "wrong > 95 %", "called unknown %", "s")


def part_of(photos: Photos, count: int | None, seed: int) -> Photos:
    """The photos with ``count`` training photos of each class, drawn at random; None for all."""
    if count is None:
        return photos
    draw = torch.Generator().manual_seed(seed)
    rows = [(photos.y == c).nonzero().flatten() for c in range(photos.classes)]
    kept = torch.cat([own[torch.randperm(len(own), generator=draw)[:count]].sort().values for own in rows])
    return replace(photos, z=photos.z[kept], y=photos.y[kept])


def measured(samples: CalibrationSamples, z: Tensor, y: Tensor) -> list[float]:
    """The numbers of a row, for validation photos z, y."""
    head, expected = samples.head, samples.accuracy()
    calibrate(samples)
    probabilities = head.probabilities(z)
    sure, answer = probabilities.max(dim=1)
    ece = 100 * float(multiclass_calibration_error(probabilities, y, probabilities.shape[1], n_bins=15))
    sets = AnswerSets.of(samples, COVERAGE).of_probabilities(probabilities)
    covered = sets.gather(1, y[:, None]).double().mean().item()
    unknown = (novelty_reference(samples).p_values(head.novelty(z)) <= UNKNOWN).double().mean().item()
    right = answer == y
    wrong = int((~right & (sure > COVERAGE)).sum())
    true, size = 100 * right.double().mean().item(), sets.sum(dim=1).double().mean().item()
    return [expected or torch.nan, true, ece, 100 * covered, size, wrong, 100 * unknown]


def rows(photos: Photos, decision: str) -> dict[str, list[float]]:
    """Name of each row → its numbers."""
    head: Head = RidgeHead(photos.z.shape[1], decision=decision)  # type: ignore[arg-type]
    buffer = CalibrationBuffer(CAPACITY)
    learn(head, photos, list(range(photos.classes)), buffer)
    single = CalibrationSamples(head, *buffer.items())
    near = near_copies(*buffer.items())
    start = time.perf_counter()
    kind, groups = occasions(single)
    head.decide(*buffer.items(), groups)
    single = CalibrationSamples(head, *buffer.items())
    half = torch.arange(len(photos.val_y)) % 2 == 0
    z, y = photos.val_z[~half], photos.val_y[~half]
    new = CalibrationSamples(head, photos.val_z[half], photos.val_y[half], learned=False)
    result = {
        "without itself": measured(single, photos.val_z, photos.val_y),
        "without near-copies": measured(single.grouped(near), photos.val_z, photos.val_y),
        f"without occasions ({kind})": measured(single.grouped(groups), photos.val_z, photos.val_y),
        "by photos of the new place": measured(new, z, y),
    }
    return {name: [*cells, time.perf_counter() - start] for name, cells in result.items()}


def table(root: Path, options: argparse.Namespace) -> None:
    """Print the rows of a folder, the mean of its draws."""
    photos = read_photos(root, options, options.network)
    found: dict[str, list[list[float]]] = {}
    for seed in range(options.draws if options.photos else 1):
        drawn = part_of(photos, options.photos, seed)
        for name, cells in rows(drawn, options.decision).items():
            found.setdefault(name, []).append([len(drawn.y), *cells])
    for name, draws in found.items():
        show([f"{root.name}, {name}", *(f"{mean:.1f}" for mean in np.mean(draws, axis=0))])


if __name__ == "__main__":
    parser = study_parser(__doc__, "+")
    parser.add_argument("--photos", type=int, help="training photos of each class; all by default")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--network", default=BACKBONE)
    parser.add_argument("--decision", default="ridge")
    asked = parser.parse_args()
    show_columns(("calibrated", *COLUMNS))
    for folder in asked.root:
        table(folder, asked)
