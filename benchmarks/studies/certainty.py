"""``python -m benchmarks.studies.certainty IMAGES [IMAGES …]``: is what the page calls certain
right where some of the things asked about were never taught?

Of 41 classes some are taught, with some images each; all validation images of the 41 are asked
about. A row has, over several draws of the classes, the certain ones and how many of them are
wrong, and the largest number of certain and wrong ones in one draw.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.studies.images import (
    RICH,
    Images,
    read_images,
    show,
    show_columns,
    study_parser,
)
from cifnet_pl.serving.certainty import CertaintyRule

ASKED = 41
KNOWN = (31, 36, 41)
COUNTS = (20, 40)
"""Images of each class that are taught."""


def evenly(rows: torch.Tensor, count: int) -> torch.Tensor:
    """Some of the rows, evenly over all."""
    return rows[torch.linspace(0, len(rows) - 1, min(count, len(rows))).long()]


def certain_and_wrong(images: Images, known: int, count: int, draw: int) -> list[int]:
    """Numbers of images that were asked about, of certain ones, and of wrong ones among these."""
    generator = torch.Generator().manual_seed(draw)
    classes = torch.randperm(images.classes, generator=generator)[:ASKED]
    taught = {}
    for label in classes[:known].tolist():
        rows = (images.y == label).nonzero().flatten()
        taught[str(label)] = images.z[evenly(rows, count)]
    asked = torch.isin(images.val_y, classes)
    names = CertaintyRule(taught).certain_classes(images.val_z[asked])
    wrong = 0
    for name, label in zip(names, images.val_y[asked].tolist(), strict=True):
        wrong += name not in (None, str(label))
    certain = len(names) - names.count(None)
    return [len(names), certain, wrong]


def show_rows(name: str, images: Images, options: argparse.Namespace) -> None:
    """Print the rows of one set of images."""
    for known in options.known:
        for count in options.counts:
            rows = []
            for draw in range(options.draws):
                rows.append(certain_and_wrong(images, known, count, draw))
            asked, certain, wrong = torch.tensor(rows).sum(dim=0).tolist()
            share = f"{100 * wrong / certain:.1f} %" if certain else "–"
            most = max(row[2] for row in rows)
            shown = f"{certain} ({100 * certain / asked:.1f} %)"
            cells = [name, known, count, asked, shown, f"{wrong} ({share})", most]
            show([str(cell) for cell in cells])


def main() -> None:
    """Print a table."""
    parser = study_parser(__doc__, roots="+")
    parser.add_argument("--known", type=int, nargs="+", default=KNOWN)
    parser.add_argument("--counts", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--draws", type=int, default=6)
    options = parser.parse_args()
    columns = ["images", "classes taught", "images a class", "asked", "certain"]
    show_columns([*columns, "wrong among them", "wrong in one draw at most"])
    for root in options.root:
        show_rows(root.stem, read_images(root, options, RICH), options)


if __name__ == "__main__":
    main()
