"""``python -m benchmarks.products ROOT``: random products beside the embedding against ACIL at growing width.

All on the embeddings of ``+layers+mirror``, all classes at once. First leave-one-out accuracy on training photos alone,
each ridge by GCV, and ACIL's also by the best leave-one-out accuracy; then, with ``--final true``, A_K on validation
photos, where ACIL has the ridge that is best on these very photos. Differences from ``transform: products`` are paired
over the photos, with 95 % intervals. None of these heads depends on the tasks or their order.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from benchmarks.accuracy import RICH, Make, interval
from benchmarks.embeddings import Photos, learn, mean_eigenvalue, read_photos, study_parser
from cifnet_pl.heads import ACILHead, RidgeHead

SHARES = (0.01, 0.03, 0.1, 0.3)
"""Ridges of ACIL, as shares of the mean eigenvalue."""


def learned(make: Make, photos: Photos) -> ACILHead | RidgeHead:
    """A head that has learned all classes."""
    head = make(photos.z.shape[1])
    assert isinstance(head, ACILHead | RidgeHead)
    learn(head, photos, list(range(photos.classes)))
    return head


def left_out(head: ACILHead | RidgeHead, photos: Photos) -> Tensor:
    """What each training photo adds to leave-one-out accuracy, in percent."""
    parts = [head.leave_one_out(*part) for part in zip(photos.z.split(2500), photos.y.split(2500), strict=True)]
    return 100 * (torch.cat(parts).argmax(1) == photos.y).double() / len(photos.y)


def at_validation(head: ACILHead | RidgeHead, photos: Photos) -> Tensor:
    """What each validation photo adds to A_K, in percent."""
    return 100 * (head.predict(photos.val_z) == photos.val_y).double() / len(photos.val_y)


def main() -> None:
    """A row a head."""
    parser = study_parser(__doc__)
    parser.add_argument("--final", choices=("true", "false"), default="false", help="open the validation photos")
    parser.add_argument("--widths", type=int, nargs="*", default=(2048, 3000, 4096, 8192), help="of ACIL")
    args = parser.parse_args()
    photos = read_photos(args.root, args.image_size, args.cache_folder, RICH)
    measure = at_validation if args.final == "true" else left_out
    found: dict[str, tuple[Tensor, int]] = {}
    for transform in ("products", "none", "l2", "joined"):
        head = learned(partial(RidgeHead, transform=transform), photos)
        found[f"RidgeHead, {transform}"] = measure(head, photos), sum(head.state_elements().values())
    unit = mean_eigenvalue(photos.z, 256)
    for width in args.widths:
        head = learned(partial(ACILHead, width=width, dtype="float32", ridge=SHARES[0] * unit), photos)
        by_share: dict[float, Tensor] = {}
        for share in SHARES:
            head.ridge = share * unit
            head.solved.fill_(False)
            head.solve()
            by_share[share] = measure(head, photos)
        best = max(by_share, key=lambda share: by_share[share].sum().item())
        name = f"ACIL, width {width}, best ridge ({best:g} of the mean eigenvalue)"
        found[name] = by_share[best], sum(head.state_elements().values())
    ours, _ = found["RidgeHead, products"]
    print("| head | accuracy | products − it | numbers, millions |\n|---|---|---|---|")
    for name, (theirs, state) in found.items():
        gap = interval(ours, theirs) if theirs is not ours else ""
        print(f"| {name} | {theirs.sum().item():.2f} | {gap} | {state / 1e6:.2f} |", flush=True)


if __name__ == "__main__":
    main()
