"""``python -m benchmarks.precision ROOT``: what a backbone in half precision changes, beside one in float32.

Two samples of photos: the validation photos, and the training photos by closed-form leave-one-out scores, of which
there are more. Every head learns all classes at once. Differences are paired over photos, with a 95 % interval.
"""

from __future__ import annotations

from functools import partial
from statistics import median

import torch
from torch import Tensor

from benchmarks.accuracy import Make, interval
from benchmarks.embeddings import BACKBONE, Photos, learn, read_photos, study_parser
from benchmarks.measure import seconds
from cifnet_pl.backbones import build_backbone
from cifnet_pl.backbones.engines import PRECISIONS, REDUCED, autocast
from cifnet_pl.heads import CIFNetHead, RidgeHead

HEADS: dict[str, Make] = {"RidgeHead": RidgeHead, "CIFNetHead": partial(CIFNetHead, ridge=1.0)}

Pair = tuple[Tensor, Tensor]
"""Of the validation photos, and of the training photos left out."""


def correct(make: Make, photos: Photos) -> Pair:
    """Float64, 1 where a photo is classified correctly: (n,) validation photos, (m,) training photos left out."""
    head = make(photos.z.shape[1])
    learn(head, photos, list(range(photos.classes)))
    left_out = head.labels[head.leave_one_out(photos.z, photos.y).argmax(1)]
    return (head.predict(photos.val_z) == photos.val_y).double(), (left_out == photos.y).double()


def milliseconds(precision: str, image_size: int) -> float:
    """What the network alone takes for a photo, on this CPU: the median of three batches of 32."""
    backbone = build_backbone(BACKBONE)
    images = torch.zeros(32, 3, image_size, image_size, dtype=torch.uint8)
    with autocast("cpu", precision):
        backbone(images)
        return 1000 / len(images) * median(seconds(lambda: backbone(images)) for _ in range(3))


def compare(name: str, head: str, right: Pair, in_float32: Pair) -> None:
    """A row for each sample of photos, of one head in the precision ``name`` and in float32."""
    for which, full, half in zip(("validation", "training, left out"), in_float32, right, strict=True):
        share = 100 / len(full)
        print(f"| {name} | {head} | {which}, {len(full):,} | {share * full.sum():.2f} | {share * half.sum():.2f} "
              f"| {interval(share * half, share * full)} | {int((half > full).sum())} "
              f"| {int((half < full).sum())} |", flush=True)  # fmt: skip


def main() -> None:
    """How close the embeddings are, and then the rows, of each precision."""
    args = study_parser(__doc__).parse_args()
    float32, *halves = (
        read_photos(args.root, args.image_size, args.cache_folder, BACKBONE, precision) for precision in PRECISIONS
    )
    taken = {precision: milliseconds(precision, args.image_size) for precision in PRECISIONS}
    print("ms a photo: " + ", ".join(f"{precision} {time:.1f}" for precision, time in taken.items()))
    for precision, half in zip(REDUCED, halves, strict=True):
        cosine = torch.nn.functional.cosine_similarity(float32.z, half.z)
        print(f"{precision}: cosine with float32, mean {cosine.mean():.6f}, smallest {cosine.min():.6f}")
    columns = ("precision", "head", "photos", "float32", "half", "difference", "become right", "become wrong")
    print("\n| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    exact = {head: correct(make, float32) for head, make in HEADS.items()}
    for precision, half in zip(REDUCED, halves, strict=True):
        for head, make in HEADS.items():
            compare(precision, head, correct(make, half), exact[head])


if __name__ == "__main__":
    main()
