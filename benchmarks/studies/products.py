"""``python -m benchmarks.studies.products ROOT``: random products beside the embedding against ACIL at growing width.

All on the embeddings of ``+layers+mirror``, all classes at once. First leave-one-out accuracy on training photos alone,
each ridge by GCV, and ACIL's also by the best leave-one-out accuracy; then, with ``--final``, A_K on validation photos,
where ACIL has the ridge that is best on these very photos. Differences from ``transform: products`` are paired over the
photos, with 95 % intervals. None of these heads depends on the tasks or their order.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from benchmarks.studies.photos import (
    RICH,
    at_validation,
    interval,
    learned,
    left_out,
    mean_eigenvalue,
    millions,
    read_photos,
    show,
    show_columns,
    study_parser,
)
from cifnet_pl.heads import ACILHead, RidgeHead

SHARES = (0.01, 0.03, 0.1, 0.3)
"""Ridges of ACIL, as shares of the mean eigenvalue."""


def main() -> None:
    """A row a head."""
    parser = study_parser(__doc__)
    parser.add_argument("--final", action="store_true", help="open the validation photos")
    parser.add_argument("--widths", type=int, nargs="*", default=(2048, 3000, 4096, 8192), help="of ACIL")
    options = parser.parse_args()
    photos = read_photos(options.root, options, RICH)
    measure = at_validation if options.final else left_out
    found: dict[str, tuple[Tensor, str]] = {}
    for transform in ("products", "none", "l2", "joined"):
        head = learned(partial(RidgeHead, transform=transform), photos)
        found[f"RidgeHead, {transform}"] = measure(head, photos), millions(head)
    unit = mean_eigenvalue(photos.z, 256)
    for width in options.widths:
        head = learned(partial(ACILHead, width=width, dtype="float32"), photos)
        assert isinstance(head, ACILHead)
        by_share: dict[float, Tensor] = {}
        for share in SHARES:
            head.ridge = share * unit
            head.solved.fill_(False)
            head.solve()
            by_share[share] = measure(head, photos)
        best = max(by_share, key=lambda share: by_share[share].sum().item())
        name = f"ACIL, width {width}, best ridge ({best:g} of the mean eigenvalue)"
        found[name] = by_share[best], millions(head)
    (ours, _), *_ = found.values()
    show_columns(["head", "accuracy", "products − it", "numbers, millions"])
    for name, (theirs, kept) in found.items():
        show([name, f"{theirs.sum():.2f}", interval(ours, theirs) if theirs is not ours else "", kept])


if __name__ == "__main__":
    main()
