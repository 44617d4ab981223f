"""``python -m benchmarks.studies.bound PHOTOS…``: what might pass ACIL on the same embedding, at fewer bytes.

PHOTOS are files that ``cifnet embed`` made with ``+layers+mirror``, or folders. All classes at once: the
default, with products of features, and ACIL with the ridge that is best on the validation photos. Differences from the
default are paired over the validation photos, with 95 % intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.studies.few_photos import acil, default_head, drawn
from benchmarks.studies.photos import RICH, Photos, interval, read_photos, show, show_columns, study_parser

Way = Callable[[Photos], tuple[Tensor, float]]
"""Function from photos to (n,) whether each validation photo is named right, and the megabytes kept in float32."""


def default(photos: Photos) -> tuple[Tensor, float]:
    """What ``cifnet fit`` learns with."""
    head = default_head(photos)
    return head.predict(photos.val_z) == photos.val_y, 4e-6 * sum(head.state_elements().values())


def with_products(z: Tensor) -> Tensor:
    """Unit embeddings (n, d) beside 1.5 d random products of them: the kernel ``x·y + (x·y)²/4``, about.

    Each product is that of two sums of all features with random signs (Kar and Karnick, 2012).
    """
    z, count = torch.nn.functional.normalize(z, dim=1), 3 * z.shape[1] // 2
    bits = np.random.PCG64(0).random_raw((2, z.shape[1], count)) >> np.uint64(63)
    first, second = torch.from_numpy(1 - 2 * bits.astype(np.float32))
    return torch.cat([z, 0.5 * count**-0.5 * (z @ first) * (z @ second)], dim=1)


def products(photos: Photos) -> tuple[Tensor, float]:
    """The default, with random products of features."""
    return default(replace(photos, z=with_products(photos.z), val_z=with_products(photos.val_z)))


WAYS: dict[str, Way] = {
    "default": default,
    "products": products,
    "ACIL 8192, best ridge": lambda photos: (acil(8192)(photos) == photos.val_y, 4e-6 * 35.2e6),
}


def main() -> None:
    """Print a row for each way, set and number of photos."""
    parser = study_parser(__doc__, roots="+")
    parser.add_argument("--counts", nargs="*", default=("all",), help="photos of a class, or all")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of rows beside the default")
    options = parser.parse_args()
    show_columns(["set", "photos of a class", "way", "accuracy", "it − default", "megabytes"])
    for root in options.root:
        photos = read_photos(root, options, RICH)
        for count in options.counts:
            draws = drawn(photos, count, range(options.draws))
            base: Tensor | None = None
            for name, way in WAYS.items():
                if options.only and name not in ("default", *options.only):
                    continue
                found = [way(draw) for draw in draws]
                right = 100 * torch.stack([one for one, _ in found]).double().mean(dim=0) / len(photos.val_y)
                base = right if base is None else base
                gap = interval(right, base) if right is not base else ""
                show([root.stem, count, name, f"{right.sum():.2f}", gap, f"{found[0][1]:.1f}"])


if __name__ == "__main__":
    main()
