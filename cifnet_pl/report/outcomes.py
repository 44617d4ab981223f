"""Hold the results of runs: of one seed, the mean over seeds, and all seeds of one configuration."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cifnet_pl.report.display_names import JOINT, LACKING, words
from cifnet_pl.report.run_files import MEASURED
from cifnet_pl.report.runs import Run
from cifnet_pl.report.settings import Setting

VALUES = (*MEASURED, "kept_elements", "kept_bytes")
"""Keys of an outcome that tables and figures use."""

COSTS = ("train_seconds", "eval_seconds", "energy_kwh", "A_K_per_kwh", "co2_kg")
"""Those that depend on the machine, on how energy was measured, and on the embedding cache."""


@dataclass(frozen=True, order=True)
class Conditions:
    """What time and energy depend on besides the method; costs under different ones are neither averaged nor ranked.

    Attributes:
        cached: whether embeddings were read from the cache, so that the backbone did not run for them.
        machine: processor or GPU, with its number, and how many threads were used where that is another number.
        source: how energy was measured, e.g. "cpu estimated (cpu_load), ram estimated".
        scope: "machine", or "process" if other processes were not counted.
        engine: what the network ran in, "torch" or "onnxruntime"; empty where that is not known.
    """

    cached: bool = False
    machine: str = ""
    source: str = ""
    scope: str = "machine"
    engine: str = ""

    @property
    def comparable(self) -> Conditions:
        """The conditions without the engine: methods are ranked whatever engine each of them uses."""
        return replace(self, engine="")

    def words(self, shown: Sequence[str]) -> str:
        """Return some of the attributes as words for a method's name.

        Args:
            shown: names of the attributes.
        """
        texts = {
            "machine": self.machine,
            "source": self.source or "energy not measured",
            "scope": "this process only" if self.scope == "process" else "whole machine",
            "engine": f"engine {self.engine or 'not known'}",
            "cached": "embeddings from the cache" if self.cached else "embeddings computed",
        }
        return ", ".join(text for key, text in texts.items() if key in shown)


@dataclass(frozen=True)
class Outcome:
    """The results of one seed.

    Attributes:
        seed: of the run; None if it is not known.
        trajectory: A_k in percent after each task.
        values: percentages, seconds, kWh by name; None where something was not measured.
        conditions: of time and energy.
        run: the run, if it was one of this package.
        key: seed and class order; outcomes of two methods with the same key are a pair.
        answers: file of the predictions, if they were kept.
    """

    seed: int | None
    trajectory: tuple[float | None, ...]
    values: Mapping[str, float | None]
    conditions: Conditions = Conditions()
    run: Run | None = None
    key: str = ""
    answers: Path | None = None


@dataclass(frozen=True)
class Stat:
    """Mean and deviation over seeds.

    Attributes:
        mean: over seeds.
        sd: standard deviation (n − 1); None for a single seed.
        n: number of seeds.
        by_seed: value of each seed.
        answers: files of predictions of each seed, for values that are a share of right answers.
    """

    mean: float
    sd: float | None
    n: int
    by_seed: Mapping[str, float] = field(default_factory=dict, compare=False)
    answers: Mapping[str, Path] = field(default_factory=dict, compare=False)


@dataclass
class Group:
    """All seeds of one configuration, or of one method that was run or published elsewhere.

    Attributes:
        setting: what it can be compared with.
        name: of the head or the method.
        kind: "measured", "external" or "published".
        outcomes: one per seed, by seed.
        config: settings of the method by dotted name; empty for what was not run here.
        changes: settings in which it differs from the reference of its method in its setting, empty for the reference.
        named: settings in which it differs from the method's main configuration over all settings; part of its label.
        components: numbers kept between tasks, by component, without the backbone.
        conditions_label: what tells its costs from those of other seeds of the same configuration.
    """

    setting: Setting
    name: str
    kind: str
    outcomes: list[Outcome]
    config: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    named: dict[str, Any] = field(default_factory=dict)
    components: dict[str, float] = field(default_factory=dict)
    conditions_label: str = ""

    @property
    def label(self) -> str:
        """Name of the method, what it lacks of the paper's, and what is changed against its main configuration."""
        texts = [words(key, value) for key, value in sorted({**self._lacking, **self.named}.items())]
        return ", ".join([self.name, *texts, *filter(None, [self.conditions_label])])

    @property
    def variant(self) -> str:
        """The label without the method's name: "full method" for the reference of its setting."""
        return ", ".join(words(k, v) for k, v in sorted({**self._lacking, **self.changes}.items())) or "full method"

    @property
    def _lacking(self) -> dict[str, Any]:
        if self.name == JOINT:  # which has its buffer for something else
            return {}
        return {key: self.config[key] for key, value in LACKING if self.config.get(key, "") == value}

    @property
    def head(self) -> str | None:
        """Class of the head, for runs of this package."""
        return self.config.get("head")

    @property
    def is_reference(self) -> bool:
        """Whether this is the configuration that the others of its method and setting are compared with."""
        return self.kind == "measured" and not self.changes

    @property
    def seeds(self) -> int:
        """Number of different seeds and class orders."""
        return len({outcome.key for outcome in self.outcomes})

    @property
    def conditions(self) -> list[Conditions]:
        """The conditions under which the costs of its seeds were measured."""
        return sorted({outcome.conditions for outcome in self.outcomes})

    @property
    def energy_source(self) -> str:
        """Where the energies come from; all sources if seeds differ."""
        measured = [o for o in self.outcomes if o.values.get("energy_kwh") is not None]
        return "; ".join(sorted({_said(o.conditions) for o in measured if o.conditions.source}))

    def by_conditions(self) -> list[Group]:
        """Return the group once for each condition of its costs; if there are several, their labels differ."""
        if len(self.conditions) == 1:
            return [self]
        differing = [
            name for name in ("machine", "source", "scope", "engine", "cached")
            if len({getattr(conditions, name) for conditions in self.conditions}) > 1
        ]  # fmt: skip
        return [
            replace(
                self,
                outcomes=[o for o in self.outcomes if o.conditions == conditions],
                conditions_label=conditions.words(differing),
            )
            for conditions in self.conditions
        ]

    def stat(self, key: str) -> Stat | None:
        """Return the mean and deviation of a value over the seeds that have it.

        Args:
            key: name of the value.

        Returns:
            None if no seed has it, or if it is a cost that was measured under different conditions
            (:meth:`by_conditions`).
        """
        if key in COSTS and len(self.conditions) > 1:
            return None
        stat = stat_of({outcome.key: outcome.values.get(key) for outcome in self.outcomes})
        if stat is None or key != "A_K":
            return stat
        return replace(stat, answers={o.key: o.answers for o in self.outcomes if o.answers is not None})

    def mean(self, key: str) -> float:
        """Return the mean of a value.

        Raises:
            KeyError: no seed has it.
        """
        stat = self.stat(key)
        if stat is None:
            raise KeyError(f"{self.label} has no {key}")
        return stat.mean

    def curve(self) -> list[Stat | None]:
        """Return A_k of each task over seeds."""
        length = max((len(outcome.trajectory) for outcome in self.outcomes), default=0)
        return [
            stat_of({o.key: o.trajectory[k] if k < len(o.trajectory) else None for o in self.outcomes})
            for k in range(length)
        ]

    @property
    def classes_seen(self) -> tuple[int, ...]:
        """Number of classes after each task, of the first seed."""
        run = self.outcomes[0].run
        return run.classes_seen if run is not None else ()


def stat_of(values: Mapping[str, float | None]) -> Stat | None:
    """Return the mean and sample standard deviation of the values that are not None.

    Args:
        values: one for each seed.

    Returns:
        None if all are None.

    Example:
        >>> stat_of({"1": 96.0, "2": 98.0, "3": None}).mean
        97.0
    """
    known = {key: float(value) for key, value in values.items() if value is not None}
    if not known:
        return None
    numbers = list(known.values())
    return Stat(statistics.fmean(numbers), statistics.stdev(numbers) if len(known) > 1 else None, len(known), known)


def fixed(value: float | None, seeds: int = 1) -> Stat | None:
    """Return a number without deviation, such as that of a formula or of the paper.

    Args:
        value: the number, or None.
        seeds: number of seeds to show.
    """
    return None if value is None else Stat(float(value), None, seeds)


def _said(conditions: Conditions) -> str:
    return conditions.source + (" (this process only)" if conditions.scope == "process" else "")


def differing_seeds(groups: Sequence[Group]) -> list[str]:
    """Return "n = 2" for each measured group if these have different numbers of seeds, else empty texts.

    Args:
        groups: that are shown beside each other.
    """
    differ = len({group.seeds for group in groups if group.kind == "measured"}) > 1
    return [f"n = {group.seeds}" if differ and group.kind == "measured" else "" for group in groups]


def with_seeds(labels: Sequence[str], groups: Sequence[Group]) -> list[str]:
    """Append the number of seeds to the labels of measured groups if these have different ones.

    Args:
        labels: one per group.
        groups: that are drawn beside each other.

    Returns:
        Labels such as "CIFNet (n = 2)".
    """
    return [
        f"{label} ({count})" if count else label for label, count in zip(labels, differing_seeds(groups), strict=True)
    ]
