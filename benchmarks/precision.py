"""``python -m benchmarks.precision ROOT``: what a backbone in bf16 changes, beside one in float32.

Two samples of photos: the validation photos, and the training photos by closed-form leave-one-out scores, of which
there are more. Every head learns all classes at once. Differences are paired over photos, with a 95 % interval.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from benchmarks.accuracy import Make, interval
from benchmarks.embeddings import BACKBONE, Photos, learn, read_photos, study_parser
from cifnet_pl.heads import CIFNetHead, RidgeHead

HEADS: dict[str, Make] = {"RidgeHead": RidgeHead, "CIFNetHead": partial(CIFNetHead, ridge=1.0)}


def correct(make: Make, photos: Photos) -> tuple[Tensor, Tensor]:
    """Float64, 1 where a photo is classified correctly: (n,) validation photos, (m,) training photos left out."""
    head = make(photos.z.shape[1])
    learn(head, photos, list(range(photos.classes)))
    left_out = head.labels[head.leave_one_out(photos.z, photos.y).argmax(1)]
    return (head.predict(photos.val_z) == photos.val_y).double(), (left_out == photos.y).double()


def main() -> None:
    """A row for each head and sample of photos."""
    args = study_parser(__doc__).parse_args()
    float32, bf16 = (
        read_photos(args.root, args.image_size, args.cache_folder, BACKBONE, precision)
        for precision in ("32-true", "bf16-mixed")
    )
    cosine = torch.nn.functional.cosine_similarity(float32.z, bf16.z)
    print(f"cosine of an embedding in float32 and in bf16: mean {cosine.mean():.5f}, smallest {cosine.min():.5f}\n")
    print("| head | photos | float32 | bf16 | difference | become right | become wrong |\n" + "|---" * 7 + "|")
    for name, make in HEADS.items():
        pairs = zip(("validation", "training, left out"), correct(make, float32), correct(make, bf16), strict=True)
        for which, full, half in pairs:
            share = 100 / len(full)
            print(f"| {name} | {which}, {len(full):,} | {share * full.sum():.2f} | {share * half.sum():.2f} "
                  f"| {interval(share * half, share * full)} | {int((half > full).sum())} "
                  f"| {int((half < full).sum())} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
