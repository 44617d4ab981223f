"""Tell unknown samples from known ones, and give prediction sets, at error rates that are promised.

Both follow from the calibration samples of a model by split conformal prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cifnet_pl.heads import Head
from cifnet_pl.heads.probabilities import (
    CalibrationSamples,
    PredictionSets,
    ReferenceScores,
)
from cifnet_pl.utilities.errors import UsageError, check_that

UNKNOWN_SHARE = 0.05
"""Share of images of known classes that may be called unknown, where none is given."""

COVERAGE = 1 - UNKNOWN_SHARE
"""Probability with which a prediction set holds the true class, where none is given."""


@dataclass(frozen=True)
class OpenSetDecision:
    """Whether a sample is of a known class, and its prediction set; None where not asked for.

    Attributes:
        known: whether the sample is of a known class.
        novelty: novelty score, larger for samples unlike everything learned
            (:meth:`cifnet_pl.heads.Head.novelty`).
        p_value: share of samples of known classes that are at least as novel, 0–1.
        prediction_set: classes that hold the true one with the promised probability, the most
            probable first.
    """

    known: bool | None = None
    novelty: float | None = None
    p_value: float | None = None
    prediction_set: tuple[str, ...] | None = None


class OpenSetPredictor:
    """Tell unknown samples and give prediction sets; the head must not change meanwhile.

    Args:
        head: solved.
        class_names: name of each of its columns.
        samples: what the head is calibrated by; None without any.
        unknown: share of samples of known classes that may be called unknown, such as 0.05; None
            to leave ``known``, ``novelty`` and ``p_value`` out.
        coverage: probability with which a prediction set holds the true class, such as 0.95; None
            to leave ``prediction_set`` out.

    Raises:
        UsageError: a share outside (0, 1), or a share without calibration samples.
        UnsupportedError: the head has no novelty score, or no leave-one-out scores.
    """

    def __init__(
        self,
        head: Head,
        class_names: Sequence[str],
        samples: CalibrationSamples | None,
        unknown: float | None = None,
        coverage: float | None = None,
    ):
        if unknown is not None:
            check_that(0 < unknown < 1, "unknown", unknown, "a share between 0 and 1")
            head.require("tells_novelty")
        if coverage is not None:
            check_that(
                0 < coverage < 1, "coverage", coverage, "a share between 0 and 1"
            )
            if samples is None or samples.learned:
                head.require("leaves_one_out")
        self.head = head
        self.class_names = tuple(class_names)
        self.unknown = unknown or 0.0
        self.reference = None
        self.sets = None
        if unknown is None and coverage is None:
            return
        if samples is None:
            raise UsageError(
                "this model has no calibration samples, which unknowns and prediction sets need:"
                " learn it with cifnet fit … --model.buffer CalibrationBuffer --model.calibrate"
                " true"
            )
        if unknown is not None:
            self.reference = ReferenceScores(samples.novelty(), samples.weights())
        if coverage is not None:
            self.sets = PredictionSets.of(samples, coverage)

    @property
    def limit(self) -> float | None:
        """Largest novelty of a known sample; None if no sample is called unknown."""
        if self.reference is None:
            return None
        limit = self.reference.threshold(1 - self.unknown)
        if limit < float("inf"):
            return limit
        return None

    @property
    def warning(self) -> str | None:
        """Warning about too few calibration samples to call any sample unknown; None if enough."""
        if self.reference is None:
            return None
        scores = self.reference.scores
        infinite = scores.new_tensor([torch.inf])
        smallest = float(self.reference.p_values(infinite))
        if smallest <= self.unknown:
            return None
        return (
            f"note: with {len(scores)} calibration samples no image can be called unknown at a"
            f" share of {self.unknown:g}; from {smallest:.2g} on"
        )

    def judge(
        self, probabilities: Tensor, target: Tensor, novelty: Tensor | None
    ) -> dict[str, Tensor]:
        """Return what counts of the decisions for samples of known classes.

        Args:
            probabilities: (n, C) of their classes.
            target: (n,) int64 true columns.
            novelty: (n,) novelty scores; None where unknowns are not asked for.

        Returns:
            Columns of :attr:`Evaluation.samples <cifnet_pl.model.evaluation.Evaluation>`, each
            (n,): whether the prediction set holds the true class (``covered``), its ``set_size``,
            and whether the sample is called ``unknown``, as far as they are asked for.
        """
        columns = {}
        if self.sets is not None:
            members = self.sets.of_probabilities(probabilities)
            columns["covered"] = members.gather(1, target[:, None])[:, 0]
            columns["set_size"] = members.sum(dim=1)
        if novelty is not None:
            assert self.reference is not None
            columns["unknown"] = self.reference.p_values(novelty) <= self.unknown
        return columns

    def decisions(self, z: Tensor, probabilities: Tensor) -> list[OpenSetDecision]:
        """Return a decision for each sample.

        Args:
            z: (n, d) embeddings.
            probabilities: (n, C) of their classes.
        """
        columns: dict[str, list[Any]] = {}
        if self.reference is not None:
            novelty = self.head.novelty(z)
            p_values = self.reference.p_values(novelty)
            columns["known"] = (p_values > self.unknown).tolist()
            columns["novelty"] = novelty.tolist()
            columns["p_value"] = p_values.tolist()
        if self.sets is not None:
            members = self.sets.of_probabilities(probabilities)
            order = torch.argsort(probabilities, dim=1, descending=True)
            columns["prediction_set"] = []
            for row, best_first in enumerate(order):
                chosen = best_first[members[row, best_first]].tolist()
                names = tuple(self.class_names[column] for column in chosen)
                columns["prediction_set"].append(names)
        decisions = []
        for row in range(len(z)):
            own = {name: values[row] for name, values in columns.items()}
            decisions.append(OpenSetDecision(**own))
        return decisions


class Detection(NamedTuple):
    """Separation of unknown samples from known ones by novelty, in percent.

    Attributes:
        auroc: area under the ROC curve.
        fpr95: share of unknown samples that are taken for known ones at the threshold that keeps
            95 % of the known ones.
    """

    auroc: float
    fpr95: float


def detection(known: Tensor, unknown: Tensor) -> Detection:
    """Compute how well novelty separates unknown samples from known ones.

    Args:
        known: (n,) novelty of samples of known classes, at least one.
        unknown: (m,) novelty of unknown samples, at least one.
    """
    # Imported here: to classify needs none of it.
    from sklearn.metrics import roc_auc_score, roc_curve

    novelty = torch.cat([known, unknown])
    likelihood = -novelty.cpu().numpy()
    is_known = np.arange(len(likelihood)) < len(known)
    taken, found, _ = roc_curve(is_known, likelihood, drop_intermediate=False)
    enough_kept = found >= 0.95
    fpr95 = taken[enough_kept].min()
    auroc = roc_auc_score(is_known, likelihood)
    return Detection(100 * float(auroc), 100 * float(fpr95))
