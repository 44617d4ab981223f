"""``python -m benchmarks.studies.bound PHOTOS…``: what might pass ACIL on the same embedding, at fewer bytes.

PHOTOS are files that ``cifnet embed`` made with ``+layers+mirror``, or folders. All classes at once; on each kind of
features the exact head, which chooses λ by GCV and decides how to score by 2000 stored photos, so that no validation
photo has a say but in ACIL's ridge. Differences from the default are paired over the validation photos, with 95 %
intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.studies.few_photos import acil, default_head, drawn
from benchmarks.studies.photos import RICH, Photos, interval, read_photos, show, show_columns, study_parser
from cifnet_pl.heads.prototypes import draw_normal
from cifnet_pl.statistics.sums import pack

LAST = 1280
"""Features of the last layer; those of earlier layers follow."""

WIDTH = 2048
"""Number of basis vectors that are chosen from data."""

Way = Callable[[Photos], tuple[Tensor, float]]
"""Function from photos to (n,) whether each validation photo is named right, and the megabytes kept in float32."""


def unit(z: Tensor) -> Tensor:
    """L2-normalise (n, d)."""
    return torch.nn.functional.normalize(z, dim=1)


def with_products(z: Tensor) -> Tensor:
    """Unit embeddings (n, d) beside 1.5 d random products of them: the kernel ``x·y + (x·y)²/4``, about."""
    z = unit(z)
    first, second = draw_normal(2 * (3 * z.shape[1] // 2), z.shape[1], 0).to(z).chunk(2)
    return torch.cat([z, 0.5 * len(first) ** -0.5 * (z @ first.T) * (z @ second.T)], dim=1)


def of_each_stage(z: Tensor) -> Tensor:
    """The last layer and the earlier ones, each with products of its own."""
    return torch.cat([with_products(z[:, :LAST]), with_products(z[:, LAST:])], dim=1)


def basis(train: Tensor) -> Callable[[Tensor], Tensor]:
    """The same kernel in the coordinates of photos drawn at random (Nyström)."""
    picked = unit(train)[torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:WIDTH]].double()

    def kernel(a: Tensor, b: Tensor) -> Tensor:
        return a @ b.T + (a @ b.T).square() / 4

    values, vectors = torch.linalg.eigh(kernel(picked, picked))
    turn = vectors / values.clamp_min(1e-9 * values[-1]).sqrt()
    return lambda z: (kernel(unit(z).double(), picked) @ turn).float()


def by_features(make: Callable[[Tensor], Callable[[Tensor], Tensor]]) -> Way:
    """The default on other features."""

    def right(photos: Photos) -> tuple[Tensor, float]:
        of = make(photos.z)
        moved = replace(photos, z=of(photos.z), val_z=of(photos.val_z))
        head = default_head(moved)
        return head.predict(moved.val_z) == photos.val_y, 4e-6 * sum(head.state_elements().values())

    return right


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
    "default": by_features(lambda train: lambda z: z),
    "products": by_features(lambda train: with_products),
    "products of each stage": by_features(lambda train: of_each_stage),
    f"{WIDTH} basis vectors from data": by_features(basis),
    "int8 sums": int8,
    "ACIL 8192, best ridge": lambda photos: (acil(8192)(photos) == photos.val_y, 4e-6 * 35.2e6),
}


def main() -> None:
    """Print a row for each way, set and number of photos."""
    parser = study_parser(__doc__, roots="+")
    parser.add_argument("--counts", nargs="*", default=("all",), help="photos of a class, or all")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of rows")
    options = parser.parse_args()
    show_columns(["set", "photos of a class", "way", "accuracy", "it − default", "megabytes"])
    for root in options.root:
        photos = read_photos(root, options, RICH)
        for count in options.counts:
            draws = drawn(photos, count, range(options.draws))
            base: Tensor | None = None
            for name, way in WAYS.items():
                if name != "default" and options.only and name not in options.only:
                    continue
                found = [way(draw) for draw in draws]
                right = 100 * torch.stack([one for one, _ in found]).double().mean(dim=0) / len(photos.val_y)
                base = right if base is None else base
                gap = interval(right, base) if right is not base else ""
                show([root.stem, count, name, f"{right.sum():.2f}", gap, f"{found[0][1]:.1f}"])


if __name__ == "__main__":
    main()
