"""``python -m benchmarks.ridge_choice ROOT``: the ridge by leave-one-out accuracy instead of squared error.

The exact head, all classes at once, on the embeddings of the last layer and of ``+layers+mirror``. For multiples of the
ridge of generalised cross-validation, leave-one-out accuracy on the training photos; with ``--final true`` the accuracy
on the validation photos of the ridge that is best by it, and the difference to that of GCV, paired over the photos.
"""

from __future__ import annotations

import torch

from benchmarks.accuracy import RICH, interval
from benchmarks.embeddings import BACKBONE, read_photos, study_parser
from benchmarks.products import at_validation, learned, left_out
from cifnet_pl.heads import RidgeHead

FACTORS = (0.1, 0.18, 0.32, 0.56, 1.0, 1.8, 3.2, 5.6, 10.0)


def main() -> None:
    """A row for each kind of embedding."""
    parser = study_parser(__doc__)
    parser.add_argument("--final", choices=("true", "false"), default="false", help="open the validation photos")
    args = parser.parse_args()
    print("embeddings | " + " | ".join(f"{factor:g} × GCV" for factor in FACTORS) + " | best − GCV, validation photos")
    for name in (BACKBONE, RICH):
        photos = read_photos(args.root, args.image_size, args.cache_folder, name)
        head = learned(RidgeHead, photos)
        unit = float(head.ridge_used)
        found: dict[float, torch.Tensor] = {}
        by_factor: dict[float, float] = {}
        for factor in FACTORS:
            head.ridge = factor * unit
            head.solved.fill_(False)
            head.solve()
            by_factor[factor] = left_out(head, photos).sum().item()
            if args.final == "true":
                found[factor] = at_validation(head, photos)
        best = max(by_factor, key=lambda factor: by_factor[factor])
        gap = f"{found[best].sum().item():.2f}, {interval(found[best], found[1.0])}" if found else "–"
        cells = " | ".join(f"{value:.2f}" for value in by_factor.values())
        print(f"{name} | {cells} | {best:g}: {gap}", flush=True)


if __name__ == "__main__":
    main()
