"""``python -m benchmarks.studies.novelty IMAGES [IMAGES …]``: are unknown things told from known
ones?

The first table has AUROC and FPR95 (unknown images taken for known ones where 95 % of known images
are kept), in percent, of the exact head's largest score and largest probability, of Mahalanobis
distances from its sums (plain, relative, half-relative), and of the cosine to the tenth nearest of
2000 stored embeddings. Known are the classes of one folder, unknown those of another one, or half
of the classes of one folder (the mean of several splits).

The second table says whether thresholds hold. It has, along a stream of ten tasks, after a class
was removed and after more images came, the share of images of known classes that is called unknown
where 1, 5 and 10 % was asked for, and coverage and size of prediction sets where 90 and 95 % was;
the mean over three class orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from benchmarks.studies.images import (
    Images,
    learn,
    read_images,
    show,
    show_columns,
    study_parser,
)
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import Head, RidgeHead
from cifnet_pl.heads.probabilities import (
    CalibrationSamples,
    PredictionSets,
    ReferenceScores,
    calibrate,
)
from cifnet_pl.model.calibration import Calibration
from cifnet_pl.model.metrics import detection
from cifnet_pl.statistics import ClassDistances

SEEDS = (0, 1, 2, 3)
ORDERS = (0, 1, 2)
"""Class orders of the streams, whose mean is shown."""

MOST = 3000
"""Unknown images of one comparison at most."""

COLUMNS = (
    "score",
    "probability",
    "Mahalanobis",
    "relative",
    "half-relative",
    "cosine to 10th of 2000",
)
SHARES = (0.01, 0.05, 0.10)
COVERAGES = (0.90, 0.95)


def drawn(rows: Tensor, seed: int) -> Tensor:
    """``MOST`` of the rows at most, at random."""
    return rows[
        torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:MOST]
    ]


def stored(head: Head, buffer: CalibrationBuffer) -> CalibrationSamples:
    """The samples of a buffer, those of one group together."""
    calibration = Calibration()
    everything = torch.ones_like(buffer.y, dtype=torch.bool)
    in_groups = calibration.find_groups(
        head, buffer.samples, everything, everything, len(everything)
    )
    alone = CalibrationSamples(head, in_groups.z, in_groups.y)
    calibration.calibrate_by_buffer(alone, in_groups.group)
    groups = in_groups.group if calibration.leaves_groups_out else None
    return CalibrationSamples(head, in_groups.z, in_groups.y, groups)


def learned(images: Images, classes: list[int]) -> tuple[RidgeHead, CalibrationBuffer]:
    """The exact head on some classes, calibrated on 2000 samples."""
    head = RidgeHead(images.z.shape[1])
    buffer = CalibrationBuffer(2000)
    learn(head, images, classes, buffer)
    calibrate(stored(head, buffer))
    return head, buffer


def novelty_scores(
    head: RidgeHead, buffer: CalibrationBuffer, z: Tensor
) -> Iterator[Tensor]:
    """(n,) of each column: larger is more novel."""
    yield -head(z).max(dim=1).values
    yield -head.probabilities(z).max(dim=1).values
    rows = head._novelty_features(z)
    sums = head.sums
    for overall in (0.0, 1.0):
        distances = ClassDistances(sums.gram, sums.class_sums, sums.mass)
        distances.overall = overall
        yield distances.relative(rows)
    yield head.novelty(z)
    unit = torch.nn.functional.normalize
    yield -(unit(z, dim=1) @ unit(buffer.z, dim=1).T).topk(10, dim=1).values[:, -1]


def compare(images: Images, classes: list[int], unknown: Tensor) -> Tensor:
    """(6, 2) AUROC and FPR95 of each column."""
    head, buffer = learned(images, classes)
    known = images.val_z[torch.isin(images.val_y, torch.tensor(classes))]
    pairs = zip(
        novelty_scores(head, buffer, known),
        novelty_scores(head, buffer, unknown),
        strict=True,
    )
    return torch.tensor([detection(*pair) for pair in pairs])


def near(images: Images) -> Tensor:
    """Half of the classes are known; the mean of several splits."""
    compared = []
    for seed in SEEDS:
        order = torch.randperm(
            images.classes, generator=torch.Generator().manual_seed(seed)
        )
        known, unknown = order.chunk(2)
        rows = torch.isin(images.val_y, unknown).nonzero().flatten()
        chosen = images.val_z[drawn(rows, seed)]
        compared.append(compare(images, known.tolist(), chosen))
    return torch.stack(compared).mean(dim=0)


def kept_promises(head: Head, buffer: CalibrationBuffer, images: Images) -> Tensor:
    """(8,) columns of the second table, on the validation images of the classes known."""
    rows = torch.isin(images.val_y, head.labels)
    z = images.val_z[rows]
    y = images.val_y[rows]
    columns = (y[:, None] == head.labels).int().argmax(dim=1)
    samples = stored(head, buffer)
    reference = ReferenceScores(samples.novelty(), samples.sample_weights())
    p = reference.p_values(head.novelty(z))
    percentages = [100 * (p <= share).double().mean() for share in SHARES]
    probabilities = head.probabilities(z)
    for share in COVERAGES:
        sets = PredictionSets.of(samples, share).of_probabilities(probabilities)
        percentages += [
            100 * sets.gather(1, columns[:, None]).double().mean(),
            sets.sum(dim=1).double().mean(),
        ]
    percentages += [100 * (probabilities.argmax(dim=1) == columns).double().mean()]
    return torch.stack(percentages)


def along_the_stream(images: Images, order: int) -> Iterator[tuple[str, Tensor]]:
    """A row after tasks 2, 5 and 10, after a task was removed, and after more images of known
    classes.
    """
    head = RidgeHead(images.z.shape[1])
    buffer = CalibrationBuffer(2000)
    later = torch.arange(len(images.y)) % 4 == 0  # come at the end
    first, more = (
        replace(images, z=images.z[chosen], y=images.y[chosen])
        for chosen in (~later, later)
    )
    tasks = images.tasks(order, -(-images.classes // 10))
    for k, classes in enumerate(tasks, start=1):
        learn(head, first, classes, buffer)
        calibrate(stored(head, buffer))
        if k in (2, 5, len(tasks)):
            yield f"task {k}", kept_promises(head, buffer, images)
    kept = [c for task in tasks[1:] for c in task]
    head.remove_classes(tasks[0])
    buffer.remove_classes(tasks[0])
    calibrate(stored(head, buffer))
    yield "first task forgotten", kept_promises(head, buffer, images)
    extra = head.fresh()
    rows = torch.isin(more.y, torch.tensor(kept)).nonzero().flatten()
    learn(extra, more, kept)
    buffer.add(more.z[rows], more.y[rows], len(images.y) + rows)
    buffer.commit()
    head.merge_(extra)
    head.solve()
    calibrate(stored(head, buffer))
    yield "more images of the others", kept_promises(head, buffer, images)


def main() -> None:
    """Print both tables."""
    options = study_parser(__doc__, roots="+").parse_args()
    sets = {root.stem: read_images(root, options) for root in options.root}
    show_columns(["known", "unknown", *COLUMNS])
    for name, images in sets.items():
        everything = list(range(images.classes))
        others = {
            other: theirs.val_z for other, theirs in sets.items() if other != name
        }
        rows = {
            other: compare(images, everything, z[drawn(torch.arange(len(z)), 0)])
            for other, z in others.items()
        }
        rows["its other classes"] = near(images)
        for unknown, scores in rows.items():
            show([name, unknown, *(f"{a:.1f} / {b:.1f}" for a, b in scores.tolist())])
    print()
    promised = [f"{100 * share:g} % unknown" for share in SHARES]
    promised += [
        column
        for share in COVERAGES
        for column in (f"{100 * share:g} % covered", "classes")
    ]
    show_columns(["set", "after", *promised, "most probable class alone"])
    for name, images in sets.items():
        for moments in zip(
            *(along_the_stream(images, order) for order in ORDERS), strict=True
        ):
            means = torch.stack([row for _, row in moments]).mean(dim=0).tolist()
            show([name, moments[0][0], *(f"{value:.1f}" for value in means)])


if __name__ == "__main__":
    main()
