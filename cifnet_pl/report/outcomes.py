"""Hold the results of runs: of one seed, the mean over seeds, and all seeds of one configuration."""

from __future__ import annotations

import inspect
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cifnet_pl import heads
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.model.metrics import max_drop
from cifnet_pl.report.runs import MEASURED, Run, at_one_place, natural
from cifnet_pl.report.settings import (
    JOINT,
    LACKING,
    METHODS,
    OF_SETTING,
    Setting,
    configuration,
    method_name,
    setting_of,
    words,
)

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


ALL_EMBEDDINGS = 10_000_000
"""A buffer of this capacity keeps every embedding: logistic regression on it is the joint bound."""

BYTES = {"float64": 8, "float32": 4}


def method_of(run: Run) -> str:
    """Return the name of a run's method: ``--method`` if the run has one, else that of its head or module."""
    declared = run.config.get("method")
    if isinstance(declared, str):
        return declared
    head, buffer = str(run.summary["head"]), run.summary.get("buffer_settings") or {}
    if head == "LogisticHead" and (buffer.get("capacity") or 0) >= ALL_EMBEDDINGS:
        return JOINT
    return method_name(head)


# ---------------------------------------------------------------------- one run


def outcome_of(run: Run) -> Outcome:
    """Return the values of one run that tables and figures use."""
    summary = run.summary
    values = {name: summary.get(name) for name in VALUES}
    values["max_drop"] = max_drop(summary["A_k"])
    components = kept_components(run)
    if components:
        values["kept_elements"] = sum(components.values())
        values["kept_bytes"] = kept_bytes(run, components)
    return Outcome(run.seed, tuple(summary["A_k"]), values, _conditions(run), run, _pair_key(run), run.answers)


def _pair_key(run: Run) -> str:
    return json.dumps([run.seed, run.config["data"].get("class_order")])


def _conditions(run: Run) -> Conditions:
    summary = run.summary
    machine = str(summary.get("machine") or summary.get("device") or "")
    threads, cores = summary.get("threads"), summary.get("cores")
    if threads and not summary.get("gpu") and threads != cores:
        machine += f", {threads} thread{'s' if threads > 1 else ''}"
    read = summary.get("cached_images")  # None: a run of an earlier version, which did not count them
    cached = bool(read) if read is not None else bool(run.config["data"].get("cache"))
    energy = run.config.get("energy")
    scope = energy.get("tracking_mode") if isinstance(energy, Mapping) else None
    source = _sorted_source(summary.get("energy_source")) or ""
    return Conditions(cached, machine, source, scope or "machine", str(summary.get("engine") or ""))


def _sorted_source(source: str | None) -> str | None:
    """Return the sources of an energy in a fixed order, as trackers list their hardware in any order."""
    return ", ".join(sorted(source.split(", "))) if source else None


def kept_components(run: Run) -> dict[str, float]:
    """Count the numbers kept between tasks by component, without the backbone that every method has.

    A method that trains the network counts all of its parameters: those of one backbone are subtracted.

    Args:
        run: a complete run.

    Returns:
        Component → numbers.
    """
    parts = {name: float(count) for name, count in (run.summary.get("state_components") or {}).items() if count}
    if "parameters" in parts:
        parts["parameters"] = max(0.0, parts["parameters"] - (run.summary.get("backbone_params") or 0))
    return {name: count for name, count in parts.items() if count}


def kept_bytes(run: Run, components: Mapping[str, float]) -> float:
    """Return the bytes of the components as they are stored; runs of earlier versions did not record them by component.

    Args:
        run: a complete run.
        components: from :func:`kept_components`.
    """
    sizes = run.summary.get("state_bytes_per_element") or {}
    dtype = str((run.summary.get("head_settings") or {}).get("dtype", "float32"))
    default: dict[str, float] = {"buffer": 1 if "parameters" in (run.summary.get("state_components") or {}) else 4}
    return math.fsum(
        count * sizes.get(name, default.get(name, BYTES.get(dtype, 4))) for name, count in components.items()
    )


# ---------------------------------------------------------------------- groups


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Group runs that differ by their seed only.

    The same configuration on a folder that has got further classes since is another number of tasks, so another group.

    Args:
        runs: complete runs.

    Returns:
        The groups in the order of tables, and a sentence for each run that a later one of the same seed replaces.
    """
    runs_of: dict[str, dict[Any, Run]] = defaultdict(dict)
    replaced = []
    for run in at_one_place(runs):
        learned = [run.summary[name] for name in ("n_tasks", "n_classes")]
        same = runs_of[json.dumps([method_of(run), learned, configuration(run)], sort_keys=True, default=str)]
        # The same seed on another machine, or with the cache, is another measurement of time and energy.
        key = (_pair_key(run), _conditions(run))
        earlier = same.pop(key, None)
        if earlier is not None and earlier.activations is not None and run.activations is None:
            run, earlier = earlier, run
        if earlier is not None:
            replaced.append(f"{earlier.folder}: the same configuration and seed as {run.folder}, which is used instead")
        same[key] = run
    groups = [_group(sorted(same.values(), key=lambda r: (r.seed is None, r.seed))) for same in runs_of.values()]
    by_method: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        by_method[group.name].append(group)
    for family in by_method.values():
        _name_variants(family)
    return sorted(groups, key=group_order), replaced


def _group(runs: list[Run]) -> Group:
    config = {key: value for key, value in configuration(runs[0]).items() if key not in OF_SETTING}
    outcomes = [outcome_of(run) for run in runs]
    return Group(
        setting_of(runs[0]), method_of(runs[0]), "measured", outcomes, config, components=kept_components(runs[0])
    )


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of ``b`` that differ from ``a``; if only one has a buffer, only its presence is listed.

    Args:
        a, b: settings by dotted name.
    """
    keys = {key for key in a.keys() | b.keys() if a.get(key) != b.get(key) or type(a.get(key)) is not type(b.get(key))}
    if "buffer" in keys:
        keys = {key for key in keys if not key.startswith("buffer.")}
    return {key: b.get(key) for key in keys}


def _name_variants(family: list[Group]) -> None:
    """Name each group of one method by its differences from the method's main configuration over all settings.

    The reference of a setting, which its ablations are variants of, may be another one; its label then says so.
    """
    main = _reference(family)
    by_setting: dict[tuple[Any, ...], list[Group]] = defaultdict(list)
    for group in family:
        group.named = differences(main.config, group.config)
        by_setting[group.setting.order].append(group)
    for same in by_setting.values():
        reference = main if any(group is main for group in same) else _reference(same)
        for group in same:
            group.changes = differences(reference.config, group.config)
        for alike in _alike(same, lambda group: group.label):
            _tell_apart(alike, lambda group: group.named)
        for alike in _alike(same, lambda group: group.variant):
            _tell_apart(alike, lambda group: group.changes)


def _alike(groups: Sequence[Group], name: Callable[[Group], str]) -> list[list[Group]]:
    """Return the groups of each name that several have, such as two buffers beside a reference without any."""
    by_name: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        by_name[name(group)].append(group)
    return [alike for alike in by_name.values() if len(alike) > 1]


def _tell_apart(alike: Sequence[Group], said: Callable[[Group], dict[str, Any]]) -> None:
    """Add to what is said of each group the settings in which they differ."""
    keys = {key for group in alike for key in differences(alike[0].config, group.config)}
    for group in alike:
        said(group).update({key: group.config.get(key) for key in keys})


def _reference(family: Sequence[Group]) -> Group:
    """Return the configuration with the fewest differences to all others together.

    Ties go to the one that is nearest to the package's defaults, then to the one with the most seeds.
    """
    defaults = _defaults(str(family[0].head))

    def cost(group: Group) -> tuple[Any, ...]:
        total = sum(len(differences(group.config, other.config)) for other in family)
        departures = sum(group.config.get(key) != value for key, value in defaults.items())
        return total, departures, -group.seeds, json.dumps(group.config, sort_keys=True, default=str)

    return min(family, key=cost)


def _defaults(head: str) -> dict[str, Any]:
    from cifnet_pl import iterative

    builders: dict[str, Callable[..., Any] | None] = {
        "buffer.": CalibrationBuffer,
        "head.": heads.HEADS.get(head),
        "": next((method for method in iterative.METHODS if method.__name__ == head), None),
    }
    return {
        prefix + name: parameter.default
        for prefix, builder in builders.items()
        if builder is not None
        for name, parameter in inspect.signature(builder).parameters.items()
        if parameter.default is not inspect.Parameter.empty and name != "seed"
    }


def group_order(group: Group) -> tuple[Any, ...]:
    """Return the sort key of a group: setting, measured before external, method, reference first, numbers by size."""
    changes = [(key, not isinstance(v, int | float), v if isinstance(v, int | float) else 0, str(v))
               for key, v in sorted(group.changes.items())]  # fmt: skip
    return (group.setting.order, *method_order(group), len(changes), changes)


def method_order(group: Group) -> tuple[int, int, tuple[str, int]]:
    """Return the sort key of a method within a setting."""
    kinds, known = ["measured", "external", "published"], [*METHODS.values(), JOINT]
    position = known.index(group.name) if group.name in known else len(known)
    return kinds.index(group.kind), position, natural(group.name)
