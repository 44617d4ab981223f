"""``python -m benchmarks.studies.bound PHOTOS…``: what might pass ACIL on the same embedding, at fewer bytes.

PHOTOS are files that ``cifnet embed`` made with ``+layers+mirror``, or folders. All classes at once: the default, its
sums in int8, with ``+products``, and ACIL with the ridge that is best on the validation photos. Differences from the
default are paired over the validation photos, with 95 % intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.studies.few_photos import acil, default_head, drawn
from benchmarks.studies.photos import RICH, Photos, interval, read_photos, show, show_columns, study_parser
from cifnet_pl.backbones.structures import VIEWS
from cifnet_pl.statistics.sums import pack

Way = Callable[[Photos], tuple[Tensor, float]]
"""Function from photos to (n,) whether each validation photo is named right, and the megabytes kept in float32."""


def default(photos: Photos) -> tuple[Tensor, float]:
    """What ``cifnet fit`` learns with."""
    head = default_head(photos)
    return head.predict(photos.val_z) == photos.val_y, 4e-6 * sum(head.state_elements().values())


def products(photos: Photos) -> tuple[Tensor, float]:
    """The default on ``+products``."""
    richer, _ = VIEWS["products"](torch.nn.Identity(), photos.z.shape[1])
    return default(replace(photos, z=richer(photos.z), val_z=richer(photos.val_z)))


def int8(photos: Photos) -> tuple[Tensor, float]:
    """The default, solved from sums of which each row off the diagonal has 255 steps."""
    head = default_head(photos)
    gram = head.sums.gram
    total, mean = gram[0, 0], gram[0] / gram[0, 0]
    centred = gram - total * torch.outer(mean, mean)
    root = centred.diagonal().clamp_min(1e-12).sqrt()
    correlation = centred / torch.outer(root, root)
    correlation.fill_diagonal_(0)
    step = correlation.abs().max() / 127
    rounded = (correlation / step).round() * step
    rounded.fill_diagonal_(1)
    rounded *= torch.outer(root, root)
    rounded[0, 0] = 0
    head.sums.products = pack(rounded + total * torch.outer(mean, mean))
    head.ridge = head.ridge_used.item()
    head.solved.fill_(False)
    head.solve()
    kept = head.state_elements()
    return head.predict(photos.val_z) == photos.val_y, 1e-6 * kept["factors"] + 4e-6 * (kept["moments"])


WAYS: dict[str, Way] = {
    "default": default,
    "int8 sums": int8,
    "+products": products,
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
