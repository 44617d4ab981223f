"""``python -m benchmarks.studies.choices ROOT``: what helps the exact head, by leave-one-out accuracy.

Closed-form leave-one-out scores on training photos, of ridge regression on all classes at once, λ by GCV: no validation
photo has a say, so what is chosen here may be measured on them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from benchmarks.studies.photos import (
    BACKBONE,
    Make,
    learned,
    left_out,
    millions,
    read_photos,
    show,
    show_columns,
    study_parser,
)
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.ridge import TRANSFORMS

HEADS: dict[str, Make] = {kind: partial(RidgeHead, transform=kind) for kind in TRANSFORMS}  # type: ignore[arg-type]
HEADS["none, balanced"] = partial(RidgeHead, balanced=True)


def main() -> None:
    """A row for each kind of embedding, a column for each transform."""
    options = study_parser(__doc__).parse_args()
    plain, layers, both = (
        read_photos(options.root, options, BACKBONE + view) for view in ("", "+layers", "+layers+mirror")
    )
    d = plain.z.shape[1]  # the embedding comes first, then the layers
    embeddings = {"last layer": plain.z, "+mirror": both.z[:, :d], "+layers": layers.z, "+layers+mirror": both.z}
    show_columns(["embedding", *HEADS])
    for name, z in embeddings.items():
        photos = replace(both, z=z)
        heads = [learned(make, photos) for make in HEADS.values()]
        show([name, *(f"{left_out(head, photos).sum():.2f} ({millions(head)} M)" for head in heads)])


if __name__ == "__main__":
    main()
