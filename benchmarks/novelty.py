"""``python -m benchmarks.novelty ROOT [ROOT …]``: are unknown things told from known ones, and do thresholds hold?

The first table has AUROC and FPR95 (unknown photos taken for known ones where 95 % of known photos are kept), in
percent, of the exact head's largest score and largest probability, of Mahalanobis distances from its sums (plain,
relative, half-relative), and of the cosine to the tenth nearest of 2000 stored embeddings. Known are the classes of one
folder, unknown those of another one, or half of the classes of one folder (the mean of several splits).

The second table has, along a stream of ten tasks, after a class was removed and after more photos came, the share of
photos of known classes that is called unknown where 1, 5 and 10 % was asked for, and coverage and size of sets of
answers where 90 and 95 % was; the mean over three class orders.

All choices were made with ``--part train``: a fifth of the training photos are the known ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.embeddings import Photos, learn, read_photos
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head, RidgeHead
from cifnet_pl.heads.confidence import (
    AnswerSets,
    Reference,
    calibrate,
    near_copies,
    novelty_reference,
    photo_weights,
    set_scores,
)
from cifnet_pl.model.open_set import detection
from cifnet_pl.statistics import ClassDistances

SEEDS = (0, 1, 2, 3)
ORDERS = (0, 1, 2)
"""Class orders of the streams, whose mean is shown."""

MOST = 3000
"""Unknown photos of one comparison at most."""

COLUMNS = ("score", "probability", "Mahalanobis", "relative", "half-relative", "cosine to 10th of 2000")
SHARES, COVERAGES = (0.01, 0.05, 0.10), (0.90, 0.95)


def drawn(rows: Tensor, seed: int) -> Tensor:
    """``MOST`` of the rows at most, at random."""
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:MOST]]


def with_held_back(photos: Photos, seed: int = 0) -> Photos:
    """The training photos alone, a fifth of them in place of the validation photos."""
    order = torch.randperm(len(photos.y), generator=torch.Generator().manual_seed(seed))
    held, kept = order[: len(order) // 5], order[len(order) // 5 :].sort().values
    return Photos(photos.z[kept], photos.y[kept], photos.z[held], photos.y[held])


def learned(photos: Photos, classes: list[int]) -> tuple[Head, CalibrationBuffer]:
    """The exact head on some classes, calibrated on 2000 samples."""
    head, buffer = RidgeHead(photos.z.shape[1]), CalibrationBuffer(2000)
    learn(head, photos, classes, buffer)
    calibrate(head, *buffer.items())
    return head, buffer


def foreignness(head: Head, buffer: CalibrationBuffer, z: Tensor) -> Iterator[Tensor]:
    """(n,) of each column: larger is more foreign."""
    yield -head(z).max(dim=1).values
    yield -head.probabilities(z).max(dim=1).values
    distances: ClassDistances = head.distances()
    rows = head._rows(z)
    yield distances.relative(0.0)(rows)
    yield distances.relative(1.0)(rows)
    yield head.novelty(z)
    unit = torch.nn.functional.normalize
    yield -(unit(z, dim=1) @ unit(buffer.z, dim=1).T).topk(10, dim=1).values[:, -1]


def compare(photos: Photos, classes: list[int], foreign: Tensor) -> Tensor:
    """(6, 2) AUROC and FPR95 of each column."""
    head, buffer = learned(photos, classes)
    known = photos.val_z[torch.isin(photos.val_y, torch.tensor(classes))]
    pairs = zip(foreignness(head, buffer, known), foreignness(head, buffer, foreign), strict=True)
    return torch.tensor([detection(*pair) for pair in pairs])


def near(photos: Photos) -> Tensor:
    """Half of the classes are known; the mean of several splits."""
    foreign = []
    for seed in SEEDS:
        order = torch.randperm(photos.classes, generator=torch.Generator().manual_seed(seed))
        known, unknown = order.chunk(2)
        rows = torch.isin(photos.val_y, unknown).nonzero().flatten()
        foreign.append(compare(photos, known.tolist(), photos.val_z[drawn(rows, seed)]))
    return torch.stack(foreign).mean(dim=0)


def randomised(probabilities: Tensor, seed: int) -> Tensor:
    """(n, C) scores of classes as :func:`set_scores` has them, plus a random part of each class's own probability."""
    part = torch.rand(len(probabilities), 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return set_scores(probabilities) + part * probabilities.double()


def randomised_sets(head: Head, buffer: CalibrationBuffer, z: Tensor, coverage: float) -> Tensor:
    """(n, C) bool: sets with a random part for embeddings ``z``, whose coverage is exact and which may be empty."""
    stored, y = buffer.items()
    columns = (y[:, None] == head.labels).int().argmax(dim=1)
    left_out = torch.softmax(head.leave_one_out(stored, y, near_copies(stored, y)) / head.temperature, dim=1)
    own = randomised(left_out, 0).gather(1, columns[:, None]).flatten()
    weights = photo_weights(y, head.labels, torch.tensor(list(head.class_counts().values())))
    return randomised(head.probabilities(z), 1) <= Reference.of(own, weights).threshold(coverage)


def kept_promises(head: Head, buffer: CalibrationBuffer, photos: Photos) -> Tensor:
    """(11,) columns of the second table and of the third, on the validation photos of the classes known."""
    rows = torch.isin(photos.val_y, head.labels)
    z, y = photos.val_z[rows], photos.val_y[rows]
    columns = (y[:, None] == head.labels).int().argmax(dim=1)
    p = novelty_reference(head, *buffer.items()).p_values(head.novelty(z))
    percentages = [100 * (p <= share).double().mean() for share in SHARES]
    probabilities = head.probabilities(z)
    for share in COVERAGES:
        sets = AnswerSets.of(head, *buffer.items(), share).of_probabilities(probabilities)
        percentages += [100 * sets.gather(1, columns[:, None]).double().mean(), sets.sum(dim=1).double().mean()]
    sets = randomised_sets(head, buffer, z, COVERAGES[0])
    sizes = sets.sum(dim=1)
    percentages += [100 * (probabilities.argmax(dim=1) == columns).double().mean()]
    percentages += [100 * sets.gather(1, columns[:, None]).double().mean(), sizes.double().mean()]
    percentages += [100 * (sizes == 0).double().mean()]
    return torch.stack(percentages)


def along_the_stream(photos: Photos, order: int) -> Iterator[tuple[str, Tensor]]:
    """A row after tasks 2, 5 and 10, after a task was removed, and after more photos of known classes."""
    head, buffer = RidgeHead(photos.z.shape[1]), CalibrationBuffer(2000)
    later = torch.arange(len(photos.y)) % 4 == 0  # come at the end
    first, more = (replace(photos, z=photos.z[chosen], y=photos.y[chosen]) for chosen in (~later, later))
    tasks = photos.tasks(order, -(-photos.classes // 10))
    for k, classes in enumerate(tasks, start=1):
        learn(head, first, classes, buffer)
        calibrate(head, *buffer.items())
        if k in (2, 5, len(tasks)):
            yield f"task {k}", kept_promises(head, buffer, photos)
    kept = [c for task in tasks[1:] for c in task]
    head.remove_classes(tasks[0])
    buffer.remove_classes(tasks[0])
    calibrate(head, *buffer.items())
    yield "first task forgotten", kept_promises(head, buffer, photos)
    extra = head.fresh()
    rows = torch.isin(more.y, torch.tensor(kept)).nonzero().flatten()
    learn(extra, more, kept)
    buffer.add(more.z[rows], more.y[rows], len(photos.y) + rows)
    buffer.commit()
    head.merge_(extra)
    head.solve()
    calibrate(head, *buffer.items())
    yield "more photos of the others", kept_promises(head, buffer, photos)


def show(cells: list[str]) -> None:
    """One row of a table."""
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", type=Path, nargs="+", metavar="ROOT")
    parser.add_argument("--part", choices=("train", "val"), default="val")
    parser.add_argument("--image_size", type=int, default=128)
    parser.add_argument("--cache_folder", type=Path, default=Path("~/.cache/cifnet_pl"))
    arguments = parser.parse_args()
    sets = {root.name: read_photos(root, arguments.image_size, arguments.cache_folder) for root in arguments.roots}
    if arguments.part == "train":
        sets = {name: with_held_back(photos) for name, photos in sets.items()}
    show(["known", "unknown", *COLUMNS])
    show(["---"] * (2 + len(COLUMNS)))
    for name, photos in sets.items():
        others = [(other, theirs.val_z) for other, theirs in sets.items() if other != name]
        rows = [(other, compare(photos, list(range(photos.classes)), drawn_of(z))) for other, z in others]
        for unknown, scores in [*rows, ("its other classes", near(photos))]:
            show([name, unknown, *(f"{a:.1f} / {b:.1f}" for a, b in scores.tolist())])
    promises: list[tuple[str, str, list[float]]] = []
    for name, photos in sets.items():
        for rows in zip(*(along_the_stream(photos, order) for order in ORDERS), strict=True):
            promises.append((name, rows[0][0], torch.stack([row for _, row in rows]).mean(dim=0).tolist()))
    promised = [f"{100 * share:g} % unknown" for share in SHARES]
    promised += [column for share in COVERAGES for column in (f"{100 * share:g} % covered", "classes")]
    shown = len(promised)
    more = ["most probable class alone", "90 % covered with a random part", "classes", "% of sets empty"]
    for columns, part in ((promised, slice(None, shown)), (more, slice(shown, None))):
        print()
        show(["set", "after", *columns])
        show(["---"] * (2 + len(columns)))
        for name, after, row in promises:
            show([name, after, *(f"{x:.1f}" for x in row[part])])


def drawn_of(z: Tensor) -> Tensor:
    """Some of the embeddings (n, d)."""
    return z[drawn(torch.arange(len(z)), 0)]


if __name__ == "__main__":
    main()
