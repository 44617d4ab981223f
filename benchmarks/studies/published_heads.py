"""``python -m benchmarks.studies.published_heads --images NAME TRAIN.npz VAL.npz …``: the default
beside published heads on the same embeddings.

All classes are learned at once, which gives these heads the same weights as learning them in tasks.
Heads have their defaults, which are the published settings where these were given. A row has the
accuracy on the validation images, and how many million numbers are kept between tasks.
"""

from __future__ import annotations

from functools import partial

from benchmarks.studies.images import (
    Images,
    Make,
    accuracy,
    learned,
    pairs_parser,
    read_pair,
    show,
    show_columns,
)
from benchmarks.studies.promises import in_one_task
from cifnet_pl.heads import (
    ACILHead,
    FeCAMHead,
    KLDAHead,
    LogisticHead,
    NCMHead,
    RanPACHead,
    RidgeHead,
    SLDAHead,
)

HEADS: dict[str, Make] = {
    "ridge regression (exact)": RidgeHead,
    "RanPAC, M = 10,000": RanPACHead,
    "ACIL, width 8192, ridge by GCV": partial(ACILHead, ridge="gcv"),
    "KLDA, width 5000": KLDAHead,
    "SLDA": SLDAHead,
    "FeCAM": FeCAMHead,
    "nearest class mean (cosine)": NCMHead,
    "logistic regression on all embeddings": LogisticHead,
}
"""Name → head."""


def millions(elements: dict[str, int]) -> str:
    """Numbers that are kept, in millions."""
    return f"{sum(elements.values()) / 1e6:.1f}"


def rows_of(name: str, images: Images) -> None:
    """A row for the default, and one for each published head."""
    model = in_one_task(images, list(range(images.classes)))
    assert model.buffer is not None
    kept = model.head.state_elements()
    kept["buffer"] = model.buffer.z.numel()
    show(
        [name, "default of fit", f"{accuracy(model.head, images):.2f}", millions(kept)]
    )
    for title, make in HEADS.items():
        head = learned(make, images)
        kept = head.state_elements()
        show([name, title, f"{accuracy(head, images):.2f}", millions(kept)])


def main() -> None:
    """A row for each head and set of images."""
    show_columns(("images", "head", "accuracy %", "numbers kept, millions"))
    for name, train, val in pairs_parser(__doc__).parse_args().images:
        rows_of(name, read_pair(train, val))


if __name__ == "__main__":
    main()
