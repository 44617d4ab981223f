"""Define and check the settings that a network is trained with: epochs, learning rates, augmentation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from cifnet_pl.learning.iterative.augmentation import Augmentation
from cifnet_pl.learning.iterative.schedule import Schedule, first_and_later
from cifnet_pl.utilities.errors import check_choice, check_that

BatchStatistics = Literal["learned", "fixed"]


@dataclass(frozen=True)
class Regime:
    """Options of :class:`cifnet_pl.learning.iterative.base.IterativeModule`; pairs are for the first and later tasks.

    Attributes:
        epochs: passes over a task's images.
        learning_rates: of SGD at the beginning of a phase.
        weight_decays: of SGD.
        momentum: of SGD.
        batch_statistics: whether those of batch normalisation are learned or fixed.
        schedule: course of the learning rate.
        augmentation: random changes of images.
        seed: of everything that is drawn.
    """

    epochs: tuple[int, int]
    learning_rates: tuple[float, float]
    weight_decays: tuple[float, float]
    momentum: float
    batch_statistics: BatchStatistics
    schedule: Schedule
    augmentation: Augmentation
    seed: int

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Regime:
        """Read the options of an ``IterativeModule``, by their names.

        Raises:
            UsageError: a value that makes no sense; says what is expected.
        """
        padding, jitter = options["crop_padding"], [options[name] for name in ("brightness", "contrast", "saturation")]
        check_that(padding >= 0, "crop_padding", padding, "at least 0")
        for name in ("brightness", "contrast", "saturation"):
            check_that(0 <= options[name] <= 1, name, options[name], "a number between 0 and 1")
        return cls(
            first_and_later("epochs", options["epochs"]),
            first_and_later("learning_rate", options["learning_rate"]),
            first_and_later("weight_decay", options["weight_decay"]),
            options["momentum"],
            options["batch_statistics"],
            Schedule(options["schedule"], _milestones(options["milestones"]), options["decay"]),
            Augmentation(options["flip"], padding, *jitter),
            options["seed"],
        )

    def __post_init__(self) -> None:
        check_that(min(self.epochs) >= 1, "epochs", min(self.epochs), "at least 1")
        check_that(self.seed >= 0, "seed", self.seed, "at least 0")
        for rate in self.learning_rates:
            check_that(0 < rate < math.inf, "learning_rate", rate, "a positive number")
        for weight_decay in self.weight_decays:
            check_that(0 <= weight_decay < math.inf, "weight_decay", weight_decay, "at least 0")
        check_that(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and below 1")
        check_choice("batch_statistics", self.batch_statistics, BatchStatistics)


def _milestones(fractions: list[float] | list[list[float]] | None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the milestones of the first task and of later ones."""
    if fractions is None:
        fractions = [0.7, 0.9]
    if fractions and isinstance(fractions[0], list):
        first, later = first_and_later("milestones", cast(Any, fractions))
        return tuple(first), tuple(later)
    shares = tuple(cast("list[float]", fractions))
    return shares, shares


def check_tuning(tuning: float, rate: float) -> None:
    """Check the share of epochs and the learning rate of balanced fine-tuning; UsageError where they make no sense."""
    check_that(tuning >= 0, "tuning", tuning, "at least 0")
    check_that(rate > 0, "tuning_rate", rate, "a positive number")
