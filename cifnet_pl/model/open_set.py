"""Decide whether a photo shows a known class, and which classes it may be, with a promised error rate."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cifnet_pl.heads.confidence import AnswerSets, check_share, novelty_reference
from cifnet_pl.model.core import Model
from cifnet_pl.utilities.errors import UsageError


@dataclass(frozen=True)
class Verdict:
    """The result for one photo; None where it was not asked for.

    Attributes:
        known: whether it shows something that the model knows.
        novelty: unlikeness to everything learned, larger for less known photos (:meth:`cifnet_pl.heads.Head.novelty`).
        p_value: share of photos of known classes that are at least as foreign, 0–1.
        answers: classes among which the right one is with the promised chance, the most probable first.
    """

    known: bool | None = None
    novelty: float | None = None
    p_value: float | None = None
    answers: tuple[str, ...] | None = None


class Judge:
    """Verdicts on embeddings by a learned model, which must not change meanwhile.

    Args:
        model: with calibration samples in its buffer.
        unknown: share of photos of known classes that may be called unknown, such as 0.05; None not to ask.
        coverage: chance that the right class of a photo is among the answers, such as 0.95; None not to ask.

    Raises:
        UsageError: a share outside (0, 1), or a model without calibration samples.
        UnsupportedError: a head that cannot tell unknown things, or has no leave-one-out scores.
    """

    def __init__(self, model: Model, unknown: float | None = None, coverage: float | None = None):
        if unknown is not None:
            check_share("unknown", unknown)
            model.head.require("tells_novelty")
        if coverage is not None:
            check_share("coverage", coverage, example=0.95)
            if not len(model.calibration.y):
                model.head.require("leaves_one_out")
        samples = model.calibration_samples()
        if samples is None:
            raise UsageError(
                "this model has no calibration samples, without which nothing can be promised: learn it with "
                "cifnet fit … --model.buffer CalibrationBuffer --model.calibrate true"
            )
        self.head, self.class_names, self.unknown = model.head, tuple(model.class_names), unknown
        self.reference = novelty_reference(samples) if unknown is not None else None
        self.sets = AnswerSets.of(samples, coverage) if coverage is not None else None

    @property
    def limit(self) -> float | None:
        """Largest novelty of a photo that is called known; None if not asked for, or if no photo is called unknown."""
        if self.reference is None or self.unknown is None:
            return None
        limit = self.reference.limit(self.unknown)
        return limit if limit < float("inf") else None

    @property
    def warning(self) -> str | None:
        """Warning that there are too few calibration samples to call any photo unknown; None if there are enough."""
        if self.reference is None or self.unknown is None:
            return None
        most = float(self.reference.p_values(self.reference.scores.new_tensor([torch.inf])))
        if most <= self.unknown:
            return None
        return (
            f"note: with {len(self.reference.scores)} calibration samples no photo can be called unknown at a share of "
            f"{self.unknown:g}; from {most:.2g} on"
        )

    def verdicts(self, z: Tensor, probabilities: Tensor) -> list[Verdict]:
        """Judge photos.

        Args:
            z: (n, d) embeddings.
            probabilities: (n, C).

        Returns:
            One verdict for each.
        """
        novelty: list[float | None] = [None] * len(z)
        values, answers = list(novelty), list[tuple[str, ...] | None]([None] * len(z))
        if self.reference is not None:
            measured = self.head.novelty(z)
            novelty, values = measured.tolist(), self.reference.p_values(measured).tolist()
        if self.sets is not None:
            order = torch.argsort(probabilities, dim=1, descending=True)
            inside = self.sets.of_probabilities(probabilities).gather(1, order)
            pairs = zip(order, inside, strict=True)
            answers = [tuple(self.class_names[c] for c in columns[kept].tolist()) for columns, kept in pairs]
        limit = self.unknown or 0.0
        return [
            Verdict(None if p is None else p > limit, distance, p, answer)
            for distance, p, answer in zip(novelty, values, answers, strict=True)
        ]


def able(
    model: Model, unknown: float | None = None, coverage: float | None = None
) -> tuple[float | None, float | None]:
    """Return those of two shares for which this model can make a promise; None in place of the others.

    Args:
        model: a learned model.
        unknown: as for :class:`Judge`.
        coverage: as for :class:`Judge`.
    """
    new = len(model.calibration.y) > 0
    if model.stored_samples is None and not new:
        return None, None
    return unknown if model.head.tells_novelty else None, coverage if model.head.leaves_one_out or new else None


KEPT = 0.95
"""Share of known photos that are taken for known, where the other error is measured."""


def detection(known: Tensor, foreign: Tensor) -> tuple[float, float]:
    """Compute how well novelty separates foreign photos from known ones.

    Args:
        known: (n,) novelty of known photos, at least one.
        foreign: (m,) novelty of foreign photos, at least one; larger is more foreign.

    Returns:
        In percent: the AUROC, and the share of foreign photos that are taken for known ones at the threshold that keeps
        95 % of the known ones.
    """
    values = torch.cat([known, foreign])
    from torchmetrics.functional.classification import binary_auroc, binary_roc  # to classify needs none of it

    # Ranks instead of values: torchmetrics takes values outside of 0 and 1 for logits, and rounds their sigmoid.
    ranks = torch.unique(-values, return_inverse=True)[1]
    likely = ranks.double() / max(1, int(ranks.max()))
    target = torch.cat([torch.ones(len(known)), torch.zeros(len(foreign))]).to(ranks)
    false_positives, true_positives, _ = binary_roc(likely, target)
    wrong = false_positives[true_positives >= KEPT].min()
    return 100 * float(binary_auroc(likely, target)), 100 * float(wrong)
