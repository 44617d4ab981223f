"""Tell which images are nearer to one class than an image of an unknown class would be.

It is one condition of :func:`~cifnet_pl.serving.answering.is_certain`.

Probabilities and novelty do not tell an unknown class from a similar known one. So whole classes
are left out: the images of each known class are compared with those of all the others only. A new
image is certain if it is nearer to one class than to any other by a wider margin than these. This
must hold in two geometries, which seldom err on the same image: by the nearest image of each class,
and by the classes' means after whitening (the spread within classes has the same size in all
directions).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import normalize

MIN_CLASSES = 30
"""Known classes from which the images of left-out ones say enough about unknown ones.

With 24 of 41 groceries known and all of them asked, more than 1 % of the certain predictions are
wrong.
"""

MIN_IMAGES = 20
"""Images of a class, on average, from which the means and their spread are known well enough.

With ten images of each of 31 groceries, several percent of the certain predictions are wrong.
"""

NEAREST_QUANTILE = 0.98
"""A prediction is certain above this quantile of left-out classes' margins to nearest images, …"""

MEAN_QUANTILE = 0.95
SAFETY = 2.0
"""… and above this factor times the largest margin of left-out images to the mean of its class, or
this quantile of all of them if that is larger.
"""

SHRINKAGE = 0.3
"""Part of the mean variance within classes that is added in all directions before whitening."""

COMPARED_IMAGES = 3000
"""Images that are compared with each other at most."""


def rooted(z: Tensor) -> Tensor:
    """Return the signed square roots of embeddings (n, d), normalised to length 1."""
    z = z.float()
    return normalize(z.sign() * z.abs().sqrt(), dim=1)


class CertaintyRule:
    """Tell which images are nearer to one class than to all others by a wide margin.

    Args:
        classes: name of each known class → embeddings (n, d) of its images.

    Attributes:
        names: of the classes.
        images: number of images, all classes together.
    """

    def __init__(self, classes: Mapping[str, Tensor]):
        self.names = list(classes)
        self.images = sum(len(z) for z in classes.values())
        self._limits: _Limits | None = None
        if self.has_enough_images:
            self._limits = _Limits(list(classes.values()))

    @property
    def has_enough_images(self) -> bool:
        """Whether any prediction can be certain."""
        classes = len(self.names)
        return classes >= MIN_CLASSES and self.images >= MIN_IMAGES * classes

    def certain_classes(self, z: Tensor) -> list[str | None]:
        """Return the class that each embedding (n, d) is nearest to by a wide margin, or None."""
        names: list[str | None] = [None] * len(z)
        if self._limits is None or not names:
            return names
        columns, certain = self._limits.apply(rooted(z.cpu()))
        for row in certain.nonzero().flatten().tolist():
            names[row] = self.names[int(columns[row])]
        return names


class _Limits:
    """Margins from which a prediction is certain.

    Args:
        classes: embeddings (n, d) of each class.
    """

    def __init__(self, classes: list[Tensor]):
        per_class = max(1, COMPARED_IMAGES // len(classes))
        samples = []
        for z in classes:
            rows = torch.linspace(0, len(z) - 1, min(per_class, len(z))).long()
            samples.append(rooted(z[rows]))
        counts = torch.tensor([len(z) for z in samples])
        self._images = torch.cat(samples)
        labels = torch.repeat_interleave(counts)
        self._rows_of_classes = torch.split(torch.arange(len(labels)), counts.tolist())
        means = torch.stack([z.mean(dim=0) for z in samples])
        self._centre = self._images.mean(dim=0)
        self._factor = _spread_factor(self._images - means[labels])
        white = self._whiten(self._images)
        self._means = normalize(_class_means(white, labels, counts), dim=1)
        # Each class is left out.
        own = torch.arange(len(labels)), labels
        nearest = self._nearest_images(self._images).index_put(own, _NEVER)
        self._nearest_limit = torch.quantile(_margins(nearest), NEAREST_QUANTILE)
        similarity = (white @ self._means.T).index_put(own, _NEVER)
        margins = _margins(similarity)
        largest = torch.zeros(len(classes)).scatter_reduce(
            0, similarity.argmax(dim=1), margins, "amax"
        )
        quantile = torch.quantile(margins, MEAN_QUANTILE)
        self._mean_limits = SAFETY * largest.clamp(min=float(quantile))

    def apply(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the class of each row (n, d), and whether it is certain, both (n,)."""
        nearest = self._nearest_images(rows)
        similarity = self._whiten(rows) @ self._means.T
        columns = similarity.argmax(dim=1)
        is_same = nearest.argmax(dim=1) == columns
        is_nearest = _margins(nearest) > self._nearest_limit
        is_near_mean = _margins(similarity) > self._mean_limits[columns]
        return columns, is_same & is_nearest & is_near_mean

    def _nearest_images(self, rows: Tensor) -> Tensor:
        """Return the largest cosine of each row (n, d) to the images of each class, (n, C)."""
        cosines = rows @ self._images.T
        columns = [cosines[:, own].amax(dim=1) for own in self._rows_of_classes]
        return torch.stack(columns, dim=1)

    def _whiten(self, rows: Tensor) -> Tensor:
        """Return rows (n, d) whose spread within classes is alike in all directions."""
        centred = (rows - self._centre).T
        white = torch.linalg.solve_triangular(self._factor, centred, upper=False)
        return normalize(white.T, dim=1)


_NEVER = torch.tensor(-torch.inf)
"""Similarity to a class that is left out."""


def _spread_factor(deviations: Tensor) -> Tensor:
    """Return the Cholesky factor (d, d) of the spread of deviations (n, d) from class means."""
    spread = deviations.T @ deviations / len(deviations)
    added = SHRINKAGE * spread.diagonal().mean() + torch.finfo(spread.dtype).tiny
    spread.diagonal().add_(added)
    factor: Tensor = torch.linalg.cholesky(spread)
    return factor


def _class_means(rows: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Return the mean of the rows (n, d) of each class, (C, d)."""
    sums = torch.zeros(len(counts), rows.shape[1]).index_add(0, labels, rows)
    return sums / counts[:, None]


def _margins(similarity: Tensor) -> Tensor:
    """Return how much nearer each row (n, C) is to the nearest class than to the second, (n,)."""
    nearest = similarity.topk(2, dim=1).values
    return nearest[:, 0] - nearest[:, 1]
