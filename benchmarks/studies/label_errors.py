"""``python -m benchmarks.studies.label_errors ROOT``: of planted wrong labels, how many are found?

5 % of the labels of the training images are replaced by others, drawn at random. As many images as
were planted are named, by the leave-one-out probability of their own label, and the share of
planted ones among them is the precision. Beside it, cleanlab's label quality on the same
probabilities, by its two methods.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from cleanlab.rank import get_label_quality_scores

from benchmarks.studies.images import Images, learned, read_images, study_parser
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.probabilities import CalibrationSamples, calibrate
from cifnet_pl.model.audit import audit
from cifnet_pl.statistics import to_probabilities

SHARE = 0.05
SEEDS = (0, 1, 2)
RIVALS = ("self_confidence", "normalized_margin")


def plant(labels: np.ndarray, classes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) labels of which a share is wrong, and (n,) bool: which."""
    draw = np.random.default_rng(seed)
    rows = draw.choice(len(labels), round(SHARE * len(labels)), replace=False)
    planted = labels.copy()
    wrong = np.zeros(len(labels), dtype=bool)
    planted[rows] = (labels[rows] + draw.integers(1, classes, len(rows))) % classes
    wrong[rows] = True
    return planted, wrong


def precision(quality: np.ndarray, wrong: np.ndarray) -> float:
    """Share of planted images, in percent, among as many of the lowest quality."""
    return 100 * float(wrong[np.argsort(quality, kind="stable")[: wrong.sum()]].mean())


def leave_one_out(images: Images, labels: np.ndarray) -> np.ndarray:
    """(n, C) leave-one-out probabilities, for the rivals."""
    y = torch.from_numpy(labels)
    head = learned(RidgeHead, replace(images, y=y))
    calibrate(CalibrationSamples(head, images.z, y))
    scores = head.leave_one_out(images.z, y)
    return to_probabilities(scores, head.temperature, head.odds_power).numpy()


def main() -> None:
    arguments = study_parser(__doc__).parse_args()
    images = read_images(arguments.root, arguments)
    names = [str(c) for c in range(images.classes)]
    print(
        "seed  images  planted  ours %  also named  cleanlab self-confidence %  normalized margin %"
    )
    for seed in SEEDS:
        labels, wrong = plant(images.y.numpy(), images.classes, seed)
        result = audit(images.z.numpy(), labels, names)
        quality = result.images["probability_of_class"].to_numpy()
        p = leave_one_out(images, labels)
        rivals = [
            precision(get_label_quality_scores(labels, p, method=method), wrong)
            for method in RIVALS
        ]
        counts = f"{seed:4}  {len(labels):6}  {wrong.sum():7}"
        ours = f"{precision(quality, wrong):6.1f}  {len(result.label_errors()):10}"
        print(f"{counts}  {ours}  {rivals[0]:26.1f}  {rivals[1]:19.1f}")


if __name__ == "__main__":
    main()
