"""``python -m benchmarks.studies.bound IMAGES…``: what might pass ACIL on the same embedding, at
fewer bytes.

IMAGES are files that ``cifnet embed`` made with ``+layers+mirror``, or folders. All classes at
once: the default without and with products of features, as many as it takes by itself, and ACIL
with the ridge that is best on the validation images. Differences from the first are paired over the
validation images, with 95 % intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from benchmarks.studies.few_images import acil, default_head, drawn
from benchmarks.studies.images import (
    RICH,
    Images,
    interval,
    read_images,
    show,
    show_columns,
    study_parser,
)

Method = Callable[[Images], tuple[Tensor, float]]
"""Function of images. It returns (n,), whether the prediction of each validation image is correct,
and the megabytes kept in float32.
"""


def default(
    images: Images, product_features: float | Literal["auto"] = 0.0
) -> tuple[Tensor, float]:
    """What ``cifnet fit`` learns with, and so many random products of features."""
    head = default_head(images, product_features)
    return head.predict(images.val_z) == images.val_y, 4e-6 * sum(
        head.state_elements().values()
    )


METHODS: dict[str, Method] = {
    "no products": default,
    **{
        f"products {share}": partial(default, product_features=share)
        for share in (1.0, 1.5, 3.0)
    },
    "default": partial(default, product_features="auto"),
    "ACIL 8192, best ridge": lambda images: (
        acil(8192)(images) == images.val_y,
        4e-6 * 35.2e6,
    ),
}


def main() -> None:
    """Print a row for each method, set and number of images."""
    parser = study_parser(__doc__, roots="+")
    parser.add_argument(
        "--counts", nargs="*", default=("all",), help="images of a class, or all"
    )
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of rows beside the first")
    options = parser.parse_args()
    show_columns(
        [
            "set",
            "images of a class",
            "method",
            "accuracy",
            "it − no products",
            "megabytes",
        ]
    )
    for root in options.root:
        images = read_images(root, options, RICH)
        for count in options.counts:
            draws = drawn(images, count, range(options.draws))
            base: Tensor | None = None
            for name, method in METHODS.items():
                if options.only and name not in ("no products", *options.only):
                    continue
                found = [method(draw) for draw in draws]
                right = (
                    100
                    * torch.stack([one for one, _ in found]).double().mean(dim=0)
                    / len(images.val_y)
                )
                base = right if base is None else base
                gap = interval(right, base) if right is not base else ""
                show(
                    [
                        root.stem,
                        count,
                        name,
                        f"{right.sum():.2f}",
                        gap,
                        f"{found[0][1]:.1f}",
                    ]
                )


if __name__ == "__main__":
    main()
