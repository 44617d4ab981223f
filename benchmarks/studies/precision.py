"""``python -m benchmarks.studies.precision ROOT``: what a backbone in half precision changes, beside one in float32.

Two samples of photos: the validation photos, and the training photos by closed-form leave-one-out scores, of which
there are more. Every head learns all classes at once. Differences are paired over photos, with a 95 % interval.
"""

from __future__ import annotations

from functools import partial
from statistics import median

import torch

from benchmarks.measure import seconds
from benchmarks.studies.photos import (
    BACKBONE,
    Make,
    at_validation,
    interval,
    learned,
    left_out,
    read_photos,
    show,
    show_columns,
    study_parser,
)
from cifnet_pl.backbones import build_backbone
from cifnet_pl.backbones.engines import PRECISIONS, REDUCED, autocast
from cifnet_pl.heads import CIFNetHead, RidgeHead

HEADS: dict[str, Make] = {"RidgeHead": RidgeHead, "CIFNetHead": partial(CIFNetHead, ridge=1.0)}
SAMPLES = {"validation": at_validation, "training, left out": left_out}
COLUMNS = ("precision", "head", "photos", "float32", "half", "difference", "become right", "become wrong")


def milliseconds(precision: str, image_size: int) -> float:
    """What the network alone takes for a photo, on this CPU: the median of three batches of 32."""
    backbone = build_backbone(BACKBONE)
    images = torch.zeros(32, 3, image_size, image_size, dtype=torch.uint8)
    with autocast("cpu", precision):
        backbone(images)
        return 1000 / len(images) * median(seconds(lambda: backbone(images)) for _ in range(3))


def main() -> None:
    """How close the embeddings are, and then a row for each precision, head and sample of photos."""
    options = study_parser(__doc__).parse_args()
    photos = {precision: read_photos(options.root, options, BACKBONE, precision) for precision in PRECISIONS}
    taken = {precision: milliseconds(precision, options.image_size) for precision in PRECISIONS}
    print("ms a photo: " + ", ".join(f"{precision} {time:.1f}" for precision, time in taken.items()))
    float32 = photos[PRECISIONS[0]]
    for precision in REDUCED:
        cosine = torch.nn.functional.cosine_similarity(float32.z, photos[precision].z)
        print(f"{precision}: cosine with float32, mean {cosine.mean():.6f}, smallest {cosine.min():.6f}")
    print()
    show_columns(COLUMNS)
    for precision in REDUCED:
        for name, make in HEADS.items():
            exact, half = learned(make, float32), learned(make, photos[precision])
            for sample, right in SAMPLES.items():
                before, after = right(exact, float32), right(half, photos[precision])
                turned = (str(int(which.sum())) for which in (after > before, after < before))
                shares = (f"{before.sum():.2f}", f"{after.sum():.2f}", interval(after, before))
                show([precision, name, f"{sample}, {len(before):,}", *shares, *turned])


if __name__ == "__main__":
    main()
