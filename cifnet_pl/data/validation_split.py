"""Split a validation set off the training images, to choose settings before any test image is looked at."""

from __future__ import annotations

import numpy as np

from cifnet_pl.data.image_sets import Grouping, Source, held_back
from cifnet_pl.utilities.errors import UsageError


def without_test_images(source: Source, fraction: float, seed: int) -> Source:
    """Replace the test samples by a share of the training samples of each class.

    The split is by a seeded hash of names, as that of a source without a test part. If the source has domains, the same
    share of each domain is taken.

    Args:
        source: with a test part, which is dropped.
        fraction: share of each class's training samples.
        seed: of the split.

    Raises:
        UsageError: the fraction is not between 0 and 1, or a class has a single training sample.
    """
    if not 0 < fraction < 1:
        raise UsageError(f"--data.tune is {fraction:g}, expected a share between 0 and 1 of the training images")
    train, domain = source.train, source.domains.train if source.domains is not None else None
    chosen = np.zeros(len(train), dtype=bool)
    for label, rows in train.rows_of.items():
        if len(rows) < 2:
            name = source.class_names[label]
            raise UsageError(f"--data.tune needs two training images of each class, but '{name}' has one")
        domains = np.zeros(len(rows), dtype=np.int64) if domain is None else domain[rows]
        for domain_rows in (rows[domains == group] for group in np.unique(domains)):
            # A seed of its own: the same one would take the samples that a source holds back from what it left.
            chosen[domain_rows] = held_back([train.names[i] for i in domain_rows], fraction, seed + 1)
    kept, taken = np.flatnonzero(~chosen), np.flatnonzero(chosen)
    return Source(
        source.class_names,
        train.subset(kept),
        train.subset(taken),
        _split(source.domains, kept, taken),
        _split(source.tasks, kept, taken),
    )


def _split(groups: Grouping | None, kept: np.ndarray, taken: np.ndarray) -> Grouping | None:
    return None if groups is None else Grouping(groups.names, groups.train[kept], groups.train[taken])
