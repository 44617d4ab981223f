"""``python -m benchmarks.choices ROOT``: what helps the exact head, by leave-one-out accuracy on training photos alone.

Closed-form leave-one-out scores of ridge regression on all classes at once, λ by GCV: no validation photo has a say,
so what is chosen here may be measured on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.embeddings import BACKBONE, Photos, learn, read_photos, study_parser
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.ridge import TRANSFORMS, joined, sqrt_l2

RANDOM = 1024


def skip(transform: Callable[[Tensor], Tensor], z: Tensor) -> Tensor:
    """A transform of (n, d) embeddings beside ``RANDOM`` random features of their :func:`sqrt_l2`."""
    draw = torch.randn(RANDOM, z.shape[1], generator=torch.Generator().manual_seed(0), dtype=z.dtype)
    return torch.cat([transform(z), torch.relu(sqrt_l2(z) @ draw.T) * RANDOM**-0.5], dim=1)


CANDIDATES = [*TRANSFORMS, "sqrt_l2 and random", "joined and random"]
TRANSFORMS |= {"sqrt_l2 and random": partial(skip, sqrt_l2), "joined and random": partial(skip, joined)}


def leave_one_out(head: RidgeHead, photos: Photos) -> float:
    """Accuracy in percent at the training photos, none of which shared in its own scores."""
    learn(head, photos, list(range(photos.classes)))
    scores = head.leave_one_out(photos.z, photos.y)
    return 100 * (head.labels[scores.argmax(1)] == photos.y).double().mean().item()


def main() -> None:
    """A row for each kind of embedding, a column for each transform."""
    args = study_parser(__doc__).parse_args()
    views = {view: read_photos(args.root, args.image_size, args.cache_folder, BACKBONE + view)
             for view in ("", "+layers", "+layers+mirror")}  # fmt: skip
    both = views["+layers+mirror"]
    d = views[""].z.shape[1]  # the embedding comes first, then the layers
    embeddings = {"last layer": views[""].z, "+mirror": both.z[:, :d], "+layers": views["+layers"].z,
                  "+layers+mirror": both.z}  # fmt: skip
    print("| embedding | " + " | ".join([*CANDIDATES, "none, balanced"]) + " |")
    print("|---" * (len(CANDIDATES) + 2) + "|")
    for name, z in embeddings.items():
        heads = [*(RidgeHead(z.shape[1], transform=kind) for kind in CANDIDATES), RidgeHead(z.shape[1], balanced=True)]
        cells = []
        for head in heads:
            accuracy = leave_one_out(head, replace(both, z=z))
            cells.append(f"{accuracy:.2f} ({sum(head.state_elements().values()) / 1e6:.2f} M)")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
