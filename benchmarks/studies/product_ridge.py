"""``python -m benchmarks.studies.product_ridge IMAGES.npz``: λ with product features.

A head with product features learns some images of some classes. For multiples of the λ of
generalised cross-validation: the negative log likelihood of left-out buffer samples, by which a
head chooses, and the accuracy on validation images. IMAGES.npz is a file that ``cifnet embed``
made.
"""

from __future__ import annotations

import torch

from benchmarks.studies.images import (
    accuracy,
    read_images,
    show,
    show_columns,
    study_parser,
)
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.ridge import RIDGE_SCALES, RidgePass
from cifnet_pl.statistics import RidgeFactor

SCALES = (0.03, *sorted(RIDGE_SCALES), 3.0)
BUFFER_SAMPLES = 2000


def main() -> None:
    """A row for each multiple of λ."""
    parser = study_parser(__doc__)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--images", type=int, default=200, help="of each class")
    parser.add_argument("--product_features", type=float, default=1.5)
    asked = parser.parse_args()
    images = read_images(asked.root, asked)
    classes = range(asked.classes)
    order = torch.randperm(len(images.y), generator=torch.Generator().manual_seed(1))
    of_class = [order[images.y[order] == label] for label in classes]
    rows = torch.cat([members[: asked.images] for members in of_class])
    each = max(1, BUFFER_SAMPLES // asked.classes)
    stored = torch.cat([members[: min(each, asked.images)] for members in of_class])

    head = RidgeHead(
        images.z.shape[1], decision="auto", product_features=asked.product_features
    )
    head.begin_task(list(classes))
    head.observe(images.z[rows], images.y[rows])
    head.solve()
    gcv = head.ridge_used.item() / head.ridge_scale.item()
    trial = RidgePass(head, images.z[stored], images.y[stored])
    show_columns(
        [
            f"{head._samples_per_feature():.1f} samples a feature: × λ of GCV",
            "loss",
            "%",
        ]
    )
    for scale in SCALES:
        trial.rows = trial._rows_of(RidgeFactor(trial.system, gcv * scale))
        rule = trial._best_rule(None)
        if rule is None:
            raise SystemExit("no sample has a score without itself: give more images")
        head._select(rule.weights, trial.rows.factor)
        loss = rule.losses.nanmean().item()
        show([f"{scale:g}", f"{loss:.4f}", f"{accuracy(head, images):.1f}"])


if __name__ == "__main__":
    main()
