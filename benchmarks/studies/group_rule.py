"""``python -m benchmarks.studies.group_rule --images NAME TRAIN.npz VAL.npz …``: how much of a
class is left out to estimate the accuracy on new groups.

TRAIN.npz and VAL.npz have embeddings of independent images (``cifnet embed``). Of the training
images of some classes a few *days* are kept: the neighbourhood of a random image, of which a few
bursts of nearest neighbours are learned. So images of a day differ as real images of a class do,
and the validation images are of other days. ``DAYS`` has how many days, bursts and images. Rows of
as many random images follow: on those nothing must be lost. ``--bursts NAME TRAIN.npz VAL.npz`` has
training images that come in bursts (``benchmarks.studies.bursts``), of which all are learned.

A row has the true accuracy, and for each rule its estimate less that: for the largest of
``PARTS`` and the power of the harm in :mod:`cifnet_pl.statistics.groups`. Below are the root mean
squares of each kind of images and of all; the smallest names the rule.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.studies.images import (
    PAIR,
    Images,
    pairs_parser,
    read_pair,
    show,
    show_columns,
)
from cifnet_pl.heads import RidgeHead
from cifnet_pl.heads.confidence import CalibrationSamples
from cifnet_pl.model.calibration import averaged, dependent_groups, estimated
from cifnet_pl.statistics import groups as grouping

DAYS = ((4, 2, 4), (3, 3, 4), (6, 1, 5), (8, 2, 2), (4, 3, 3), (10, 1, 3), (2, 4, 4))
"""Days of a class, bursts of a day, images of a burst."""

CLASSES = (20, 40)
INDEPENDENT = (30, 60)
"""Random images of each class."""

REACH = 0.1
"""Images of a class that are of one day, as a share."""

LARGEST_PARTS = (0.2, 0.25, 0.3, 0.35)
POWERS = (3.0, 6.0)
TRUE = (0.0, 0.0)


class Row(NamedTuple):
    """Images that are learned; ``kind`` is "days", "random" or "bursts"."""

    kind: str
    learned: str
    images: Images


def of_days(images: Images, shape: tuple[int, int, int], seed: int) -> Tensor:
    """Rows of the training images that days are made of."""
    days, bursts, each = shape
    draw = np.random.default_rng(seed)
    z = images.z - images.z.mean(dim=0)
    u = torch.nn.functional.normalize(z, dim=1).numpy()
    chosen = list[int]()
    for label in range(images.classes):
        rows = (images.y == label).nonzero().flatten().numpy()
        similar = u[rows] @ u[rows].T
        reach = max(int(REACH * len(rows)), bursts * each)
        free = np.ones(len(rows), dtype=bool)
        for _ in range(days):
            if free.sum() < bursts * each:
                break
            centre = draw.choice(np.flatnonzero(free))
            day = np.argsort(-np.where(free, similar[centre], -2))
            day = day[: min(reach, int(free.sum()))]
            for _ in range(bursts):
                left = day[free[day]]
                first = draw.choice(left)
                burst = left[np.argsort(-similar[first][left])[:each]]
                free[burst] = False
                chosen += rows[burst].tolist()
            free[day] = False
    return torch.tensor(chosen)


def of_classes(images: Images, count: int, seed: int) -> Images:
    """The images of some classes, drawn at random."""
    classes = np.random.default_rng(seed).permutation(images.classes)[:count]
    kept = torch.from_numpy(np.sort(classes))
    rows = torch.isin(images.y, kept)
    val_rows = torch.isin(images.val_y, kept)
    return Images(
        images.z[rows],
        torch.searchsorted(kept, images.y[rows]),
        images.val_z[val_rows],
        torch.searchsorted(kept, images.val_y[val_rows]),
    )


def errors(images: Images) -> dict[tuple[float, float], float]:
    """Rule → estimate less the true accuracy, which is under the rule ``TRUE``."""
    head = RidgeHead(images.z.shape[1], decision="auto")
    head.begin_task(range(images.classes), images.y.bincount().tolist())
    head.observe(images.z, images.y)
    head.solve()
    samples = CalibrationSamples(head, images.z, images.y)
    found = dependent_groups(samples)
    samples.calibration_pass.select(found.finer)
    correct = head.predict(images.val_z) == images.val_y
    true = 100 * correct.double().mean().item()
    result = {TRUE: true}
    loo = estimated(samples)
    for part, power in itertools.product(LARGEST_PARTS, POWERS):
        grouping.PARTS = (*grouping.PARTS[:-1], part)
        grouping.HARM_POWER = power
        estimate = averaged(samples, dependent_groups(samples).groupings, loo) or loo
        assert estimate is not None
        result[part, power] = estimate.accuracy - true
    return result


def made_of(images: Images) -> Iterator[Row]:
    """Days and random images of some classes of independent images."""
    seeds = itertools.count()
    for shape, count in itertools.product(DAYS, CLASSES):
        seed = next(seeds)
        some = of_classes(images, count, seed)
        kept = some.keep(of_days(some, shape, seed))
        learned = "×".join(map(str, shape))
        yield Row("days", f"{count} classes, {learned}", kept)
    for each, count in itertools.product(INDEPENDENT, CLASSES):
        seed = next(seeds)
        some = of_classes(images, count, seed)
        kept = some.keep(at_random(some, each, seed))
        yield Row("random", f"{count} classes, {each} random", kept)


def at_random(images: Images, each: int, seed: int) -> Tensor:
    """Rows of a few random training images of each class."""
    draw = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images.y), generator=draw)
    of_class = [order[images.y[order] == c][:each] for c in range(images.classes)]
    return torch.cat(of_class)


def of_bursts(images: Images) -> Iterator[Row]:
    """All images of some classes."""
    for seed, count in enumerate(CLASSES):
        yield Row("bursts", f"{count} classes", of_classes(images, count, seed))


def main() -> None:
    """A row for each set, and the errors of each rule."""
    parser = pairs_parser(__doc__)
    parser.add_argument("--bursts", default=[], **PAIR)
    asked = parser.parse_args()
    rules = list(itertools.product(LARGEST_PARTS, POWERS))
    names = [f"{part:g}, harm^{power:g}" for part, power in rules]
    show_columns(("set", "learned", "true %", *names))
    by_kind = dict[str, list[list[float]]]()
    pairs = [(pair, made_of) for pair in asked.images]
    pairs += [(pair, of_bursts) for pair in asked.bursts]
    for (name, train, val), rows_of in pairs:
        for row in rows_of(read_pair(train, val)):
            found = errors(row.images)
            of_rules = [found[rule] for rule in rules]
            by_kind.setdefault(row.kind, []).append(of_rules)
            differences = [f"{error:+.1f}" for error in of_rules]
            show([name, row.learned, f"{found[TRUE]:.1f}", *differences])
    by_kind["all"] = list(itertools.chain.from_iterable(by_kind.values()))
    for kind, of_kind in by_kind.items():
        means = np.square(of_kind).mean(axis=0) ** 0.5
        show(["root mean square", kind, "", *(f"{mean:.1f}" for mean in means)])


if __name__ == "__main__":
    main()
