"""Define and check the settings that a network is trained with: epochs, learning rates, augmentation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from cifnet_pl.learning.iterative.augmentation import Augmentation
from cifnet_pl.learning.iterative.schedule import Schedule, first_and_later
from cifnet_pl.utilities.errors import UsageError, check_choice

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
        if padding < 0 or not all(0 <= value <= 1 for value in jitter):
            raise UsageError(
                f"crop_padding is {padding}, brightness, contrast and saturation {jitter}: "
                "expected at least 0, and numbers between 0 and 1"
            )
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
        if min(self.epochs) < 1 or self.seed < 0:
            raise UsageError(f"epochs is {min(self.epochs)}, seed {self.seed}: expected at least 1 and 0")
        rates_fit = all(0 < rate < math.inf for rate in self.learning_rates)
        decays_fit = all(0 <= decay < math.inf for decay in self.weight_decays)
        if not rates_fit or not 0 <= self.momentum < 1 or not decays_fit:
            raise UsageError(
                f"learning_rate is {_plain(self.learning_rates)}, momentum {self.momentum:g}, "
                f"weight_decay {_plain(self.weight_decays)}: "
                "expected a positive number, one in [0, 1), and one of at least 0"
            )
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


def _plain(values: tuple[float, float]) -> str:
    return f"{values[0]:g}" if values[0] == values[1] else f"[{values[0]:g}, {values[1]:g}]"
