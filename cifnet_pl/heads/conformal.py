"""Choose thresholds and sets of classes with a promised error rate, from leave-one-out scores of stored samples.

A new photo of a known class and the stored ones come from the same source, so the score of the new one is equally
likely to have any rank among theirs (conformal prediction; Vovk et al., 2005). The stored samples were learned, so
their leave-one-out scores are used.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cifnet_pl.heads.base import Head
from cifnet_pl.heads.calibration import near_copies
from cifnet_pl.utilities.errors import UsageError

PENALTY = 0.01
"""What each class beyond the first ``FREE`` adds to its score: keeps sets small (RAPS)."""

FREE = 1
"""Number of classes without a penalty."""


def check_share(name: str, share: float, example: float = 0.05) -> float:
    """Check a share between 0 and 1.

    Args:
        name: the option, for the error.
        share: the number.
        example: of a share, for the error.

    Returns:
        The number.

    Raises:
        UsageError: it does not lie between 0 and 1.
    """
    if not 0 < share < 1:
        raise UsageError(
            f"{name} is {share:g}, expected a share between 0 and 1, such as {example:g} for {100 * example:g} %"
        )
    return share


def photo_weights(y: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
    """Return how many learned photos each stored sample stands for: (n,) float64.

    A buffer keeps about as many samples of a rare class as of a frequent one; without weights the promise would be
    about classes, not about photos.

    Args:
        y: (n,) labels of the stored samples.
        labels: (C,) all labels.
        counts: (C,) photos learned of each.
    """
    columns = (y[:, None] == labels).int().argmax(dim=1)
    return (counts.double() / torch.bincount(columns, minlength=len(labels)))[columns]


@dataclass(frozen=True)
class Reference:
    """Scores of stored samples in ascending order, and how many photos each stands for; larger scores are more novel.

    Attributes:
        scores: (n,) float64.
        weights: (n,) float64.
    """

    scores: Tensor
    weights: Tensor

    @classmethod
    def of(cls, scores: Tensor, weights: Tensor) -> Reference:
        """Sort scores with their weights.

        Args:
            scores: (n,) float64; those that are NaN are left out.
            weights: (n,) float64.
        """
        known = ~scores.isnan()
        order = torch.argsort(scores[known])
        return cls(scores[known][order], weights[known][order])

    @property
    def own(self) -> Tensor:
        """() weight of the new photo itself: the mean weight of the stored ones."""
        return self.weights.mean()

    def p_values(self, scores: Tensor) -> Tensor:
        """Compute the share of known photos that are at least as novel as each score.

        Of photos of known classes, a share of at most α has a p-value of at most α.

        Args:
            scores: (n,) float64.

        Returns:
            (n,) float64.

        Example:
            >>> reference = Reference.of(torch.arange(9.0).double(), torch.ones(9).double())
            >>> reference.p_values(torch.tensor([100.0, 4.5], dtype=torch.float64)).tolist()
            [0.1, 0.5]
        """
        none = self.weights.new_zeros(1)
        below = torch.cat([none, self.weights.cumsum(dim=0)])[torch.searchsorted(self.scores, scores.contiguous())]
        total = self.weights.sum()
        return (total - below + self.own) / (total + self.own)

    def limit(self, share: float) -> float:
        """Return the largest score whose p-value is above a share.

        Args:
            share: of photos of known classes that may be called unknown, from 0 to 1.

        Returns:
            The score; infinite if there are too few samples to tell.
        """
        if float(self.p_values(self.scores.new_tensor([torch.inf]))) > share:
            return float("inf")
        return float(self.scores[self.p_values(self.scores) > share].max())

    def threshold(self, share: float) -> float:
        """Return the smallest score that a share of the photos of known classes do not exceed.

        Args:
            share: from 0 to 1.

        Returns:
            The score; infinite where there are too few stored samples to tell.
        """
        reached = self.weights.cumsum(dim=0) >= share * (self.weights.sum() + self.own) * (1 - 1e-12)
        first = int((~reached).sum())
        return float(self.scores[first]) if first < len(self.scores) else float("inf")


def novelty_reference(head: Head, z: Tensor, y: Tensor) -> Reference:
    """Compute the leave-one-out novelty of stored samples; near-copies among them are left out together.

    Args:
        head: a head that ``tells_novelty``.
        z: (n, d) embeddings of the samples.
        y: (n,) int64 labels.

    Raises:
        UnsupportedError: this head cannot (``tells_novelty``).
        CifnetError: the head is not solved, or embeddings of another width.
    """
    return Reference.of(head.leave_one_out_novelty(z, y, near_copies(z, y)), _weights(head, y))


def set_scores(probabilities: Tensor) -> Tensor:
    """Return the probability of all classes that are more probable than each class, plus a penalty (RAPS).

    The penalty grows with each class beyond the first (Angelopoulos et al., 2021, without its random part). The most
    probable class has 0, so no set is empty.

    Args:
        probabilities: (n, C).

    Returns:
        (n, C) float64.

    Example:
        >>> [round(score, 2) for score in set_scores(torch.tensor([[0.7, 0.2, 0.1]]).double())[0].tolist()]
        [0.0, 0.71, 0.92]
    """
    ordered, order = probabilities.double().sort(dim=1, descending=True)
    before = ordered.cumsum(dim=1) - ordered
    rank = torch.arange(ordered.shape[1], dtype=torch.float64, device=ordered.device)
    before = before + PENALTY * (rank - (FREE - 1)).clamp_min(0)
    return torch.empty_like(before).scatter_(1, order, before)


@dataclass(frozen=True)
class AnswerSets:
    """Sets of classes that hold the right one with a promised chance.

    Attributes:
        limits: (C,) float64; a class is in the set of a photo if its score (:func:`set_scores`) is at most its limit.
    """

    limits: Tensor

    @classmethod
    def of(cls, head: Head, z: Tensor, y: Tensor, coverage: float, per_class: bool = False) -> AnswerSets:
        """Choose the limits from the leave-one-out probabilities of stored samples, near-copies left out together.

        Args:
            head: calibrated or not; see :meth:`Head.leave_one_out` for which can.
            z: (n, d) embeddings of stored samples.
            y: (n,) labels.
            coverage: the chance, over all photos of known classes.
            per_class: whether the chance holds for every class by itself. A class with too few stored samples
                (fewer than ``coverage/(1 − coverage)``) is then in every set.
        """
        scores = head.leave_one_out(z, y, near_copies(z, y))
        columns = (y[:, None] == head.labels).int().argmax(dim=1)
        set_score = set_scores(torch.softmax(scores / head.temperature, dim=1))
        set_score = set_score.masked_fill(~scores.isfinite().all(dim=1, keepdim=True), torch.nan)
        true_scores, weights = set_score.gather(1, columns[:, None]).flatten(), _weights(head, y)
        if not per_class:
            limit = Reference.of(true_scores, weights).threshold(coverage)
            return cls(true_scores.new_full((len(head.labels),), limit))
        limits = [Reference.of(true_scores[columns == c], weights[columns == c]) for c in range(len(head.labels))]
        return cls(true_scores.new_tensor([r.threshold(coverage) if len(r.scores) else torch.inf for r in limits]))

    def of_probabilities(self, probabilities: Tensor) -> Tensor:
        """Return which classes are in the set of each photo.

        Args:
            probabilities: (n, C).

        Returns:
            (n, C) bool.
        """
        return set_scores(probabilities) <= self.limits


def _weights(head: Head, y: Tensor) -> Tensor:
    counts = torch.tensor(list(head.class_counts().values()), device=y.device)
    return photo_weights(y, head.labels, counts)
