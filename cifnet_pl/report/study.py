"""Hold all results of a report: group runs by configuration, name the groups, and select what can
be compared.
"""

from __future__ import annotations

import json
import math
import string
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from cifnet_pl.model.metrics import max_drop
from cifnet_pl.report.runs import MEASURED, Run, at_one_place, natural
from cifnet_pl.report.settings import (
    JOINT,
    LACKING,
    METHODS,
    OF_SETTING,
    Setting,
    configuration,
    defaults,
    distinct_names,
    file_name,
    is_frozen,
    method_of,
    setting_of,
    words,
)
from cifnet_pl.report.significance import SHARED, Stat, stat_of

COSTS = ("train_seconds", "energy_kwh", "A_K_per_kwh", "co2_kg")
"""Values that depend on the machine, on how energy was measured, and on the embedding cache."""

EXTERNAL = "external: the file does not say which machine, nor how energy was measured"
"""Conditions of the rows of an external file."""

KINDS = ("measured", "external", "published")
"""Where numbers are from, in the order of rows."""


class Conditions(NamedTuple):
    """What time and energy depend on besides the method; costs under different ones are neither
    averaged nor ranked.

    Attributes:
        machine: processor or GPU, with its number, and how many threads were used where that is
            another number.
        source: how energy was measured, e.g. "cpu estimated (cpu_load), ram estimated".
        scope: whether other processes were counted, in words; empty where that is not known.
        cache: says that embeddings were read from the cache, so that the backbone did not run for
            them; else empty.
    """

    machine: str = ""
    source: str = ""
    scope: str = ""
    cache: str = ""


COUNTED = "other processes counted"
ALONE = "this process only"
CACHED = "embeddings from the cache"


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
        components: numbers kept between tasks, by component, without the backbone.
    """

    seed: int | None
    trajectory: tuple[float | None, ...]
    values: Mapping[str, float | None]
    conditions: Conditions = field(default_factory=Conditions)
    run: Run | None = None
    key: str = ""
    components: Mapping[str, float] = field(default_factory=dict)


@dataclass(eq=False)
class Group:
    """All seeds of one configuration, or of one method that was run or published elsewhere.

    Attributes:
        setting: what it can be compared with.
        name: of the head or the method.
        kind: one of ``KINDS``.
        outcomes: one per seed, by seed.
        config: settings of the method by dotted name; empty for what was not run here.
        changes: settings in which it differs from the reference of its method in its setting, empty
            for the reference.
        named: settings in which it differs from the method's main configuration over all settings;
            part of its label.
        conditions_label: what tells its costs from those of other seeds of the same configuration.
    """

    setting: Setting
    name: str
    kind: str
    outcomes: list[Outcome]
    config: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    named: dict[str, Any] = field(default_factory=dict)
    conditions_label: str = ""

    @property
    def label(self) -> str:
        """Name of the method, what it lacks of the paper's, and what is changed against its main
        configuration.
        """
        return ", ".join(
            filter(None, [self.name, self._in_words(self.named), self.conditions_label])
        )

    @property
    def variant(self) -> str:
        """The label without the method's name: "full method" for the reference of its setting."""
        return self._in_words(self.changes) or "full method"

    def _in_words(self, settings: Mapping[str, Any]) -> str:
        # The joint bound has its buffer for something else.
        if self.name == JOINT:
            lacking = {}
        else:
            lacking = {k: v for k, v in LACKING.items() if self.config.get(k, "") == v}
        return ", ".join(
            words(key, value) for key, value in sorted({**lacking, **settings}.items())
        )

    @property
    def is_reference(self) -> bool:
        """Whether this is the configuration that the others of its method and setting are compared
        with.
        """
        return self.kind == "measured" and not self.changes

    @property
    def seeds(self) -> int:
        """Number of different seeds and class orders."""
        return len({outcome.key for outcome in self.outcomes})

    @property
    def runs(self) -> list[Run]:
        """Its runs, if they were ones of this package."""
        return [outcome.run for outcome in self.outcomes if outcome.run is not None]

    @property
    def frozen(self) -> bool:
        """Whether its runs learned a head on a frozen network."""
        return any(is_frozen(run.summary) for run in self.runs)

    @property
    def components(self) -> Mapping[str, float]:
        """Numbers kept between tasks, by component, without the backbone."""
        return self.outcomes[0].components

    @property
    def conditions(self) -> list[Conditions]:
        """The conditions under which the costs of its seeds were measured."""
        return sorted({outcome.conditions for outcome in self.outcomes})

    def by_conditions(self) -> list[Group]:
        """Return the group once for each condition of its costs; if there are several, their labels
        differ.
        """
        if len(self.conditions) == 1:
            return [self]
        common = {
            text
            for texts in zip(*self.conditions, strict=True)
            if len(set(texts)) == 1
            for text in texts
        }
        return [
            replace(
                self,
                outcomes=[outcome for outcome in self.outcomes if outcome.conditions == conditions],
                conditions_label=", ".join(
                    text for text in conditions if text and text not in common
                ),
            )
            for conditions in self.conditions
        ]

    def stat(self, key: str) -> Stat | None:
        """Return the mean and deviation of a value over the seeds that have it.

        Args:
            key: name of the value.

        Returns:
            None if no seed has it, or if it is a cost that was measured under different conditions
            (:meth:`by_conditions`). A_K per kWh is the ratio of the means.
        """
        if key in COSTS and len(self.conditions) > 1:
            return None
        stat = stat_of({outcome.key: outcome.values.get(key) for outcome in self.outcomes})
        if key != "A_K_per_kwh" or stat is None or self.kind == "published":
            return stat
        accuracy, energy = (
            stat_of({o.key: o.values.get(name) for o in self.outcomes if o.key in stat.by_seed})
            for name in ("A_K", "energy_kwh")
        )
        # The ratio of the row's own means, as a reader would divide them; its deviation is that of
        # the seeds' ratios.
        if accuracy and energy:
            return replace(stat, mean=accuracy.mean / energy.mean)
        return stat

    def mean(self, key: str) -> float:
        """Return the mean of a value that some seed has."""
        if (stat := self.stat(key)) is not None:
            return stat.mean
        return math.nan

    def curve(self) -> list[Stat | None]:
        """Return A_k of each task over seeds."""
        length = max((len(outcome.trajectory) for outcome in self.outcomes), default=0)
        return [
            stat_of(
                {o.key: o.trajectory[k] if k < len(o.trajectory) else None for o in self.outcomes}
            )
            for k in range(length)
        ]


def differing_seeds(groups: Sequence[Group]) -> list[str]:
    """Return "n = 2" for each measured group if these have different numbers of seeds, else empty
    texts.

    Args:
        groups: that are shown beside each other.
    """
    differ = len({group.seeds for group in groups if group.kind == "measured"}) > 1
    return [f"n = {group.seeds}" if differ and group.kind == "measured" else "" for group in groups]


# ---------------------------------------------------------------------- one run


def outcome_of(run: Run) -> Outcome:
    """Return the values of one run that tables and figures use."""
    summary = run.summary
    values = {
        **{name: summary.get(name) for name in MEASURED},
        "max_drop": max_drop(summary["A_k"]),
    }
    # One network, which every method has; the parameters of one that grows with the tasks are those
    # of all branches.
    network = values["network_params"] = summary.get("network_params") or summary.get(
        "backbone_params"
    )
    parts = {
        name: float(count or 0) for name, count in (summary.get("state_components") or {}).items()
    }
    if "parameters" in parts:
        parts["parameters"] = max(0.0, parts["parameters"] - (network or 0))
    parts = {name: count for name, count in parts.items() if count}
    if parts:
        sizes = summary.get("state_bytes_per_element") or {}
        values["kept_elements"] = sum(parts.values())
        values["kept_bytes"] = math.fsum(
            count * (sizes.get(name) or 4) for name, count in parts.items()
        )
    key = json.dumps([run.seed, run.config["data"].get("class_order")])
    return Outcome(run.seed, tuple(summary["A_k"]), values, _conditions(run), run, key, parts)


def _conditions(run: Run) -> Conditions:
    summary = run.summary
    machine = str(summary.get("machine") or summary.get("device") or "")
    threads = summary.get("threads")
    if threads and not summary.get("gpu") and threads != summary.get("cores"):
        machine += f", {threads} thread{'s' if threads > 1 else ''}"
    counted = summary.get("energy_counts_other_processes")
    if counted is None:
        scope = ""
    elif counted:
        scope = COUNTED
    else:
        scope = ALONE
    source = ", ".join(
        sorted((summary.get("energy_source") or "energy not measured").split(", "))
    )  # in one order
    return Conditions(machine, source, scope, CACHED if summary.get("cached_images") else "")


# ---------------------------------------------------------------------- groups


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Group runs that differ by their seed only.

    The same configuration on a folder that has got further classes since is another number of
    tasks, so another group.

    Args:
        runs: complete runs.

    Returns:
        The groups in the order of tables, and a sentence for each run that a later one of the same
        seed replaces.
    """
    outcomes: dict[str, dict[tuple[str, Conditions], Outcome]] = defaultdict(dict)
    replaced = []
    for run in at_one_place(runs):
        learned = [run.summary[name] for name in ("n_tasks", "n_classes")]
        same = outcomes[
            json.dumps([method_of(run), learned, configuration(run)], sort_keys=True, default=str)
        ]
        used = outcome_of(run)
        # The same seed on another machine, or with the cache, is another measurement of time and
        # energy.
        earlier = same.pop((used.key, used.conditions), None)
        if earlier is not None and earlier.run is not None:
            folder = earlier.run.folder
            replaced.append(
                f"{folder}: the same configuration and seed as {run.folder}, which is used instead"
            )
        same[used.key, used.conditions] = used
    by_method: dict[str, list[Group]] = defaultdict(list)
    for same in outcomes.values():
        seeds = sorted(same.values(), key=lambda outcome: (outcome.seed is None, outcome.seed))
        run = next(outcome.run for outcome in seeds if outcome.run is not None)
        config = {key: value for key, value in configuration(run).items() if key not in OF_SETTING}
        by_method[method_of(run)].append(
            Group(setting_of(run), method_of(run), "measured", seeds, config)
        )
    for family in by_method.values():
        _name_variants(family)
    return (
        sorted((group for family in by_method.values() for group in family), key=group_order),
        replaced,
    )


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of ``b`` that differ from ``a``; if only one has a buffer, only its
    presence is listed.

    Args:
        a, b: settings by dotted name.
    """
    keys = {
        key
        for key in a.keys() | b.keys()
        if a.get(key) != b.get(key) or type(a.get(key)) is not type(b.get(key))
    }
    if "buffer" in keys:
        keys = {key for key in keys if not key.startswith("buffer.")}
    return {key: b.get(key) for key in keys}


def _name_variants(family: list[Group]) -> None:
    """Name each group of one method by its differences from the method's main configuration over
    all settings.

    The reference of a setting, which its ablations are variants of, may be another one; its label
    then says so.
    """
    main = _reference(family)
    for setting in {group.setting for group in family}:
        same = [group for group in family if group.setting == setting]
        named = _told_apart(main, same)
        changes = _told_apart(main if main in same else _reference(same), same)
        for i, group in enumerate(same):
            group.named = named[i]
            group.changes = changes[i]


def _told_apart(reference: Group, groups: Sequence[Group]) -> list[dict[str, Any]]:
    """Return in which settings each group differs from a reference.

    Groups that differ in the same, as two buffers do beside a reference without any, also differ
    from each other.
    """
    changes = [differences(reference.config, group.config) for group in groups]
    told = []
    for group, own in zip(groups, changes, strict=True):
        alike = [other for other, theirs in zip(groups, changes, strict=True) if theirs == own]
        keys = {key for other in alike for key in differences(group.config, other.config)}
        told.append({**own, **{key: group.config.get(key) for key in keys}})
    return told


def _reference(family: Sequence[Group]) -> Group:
    """Return the configuration with the fewest differences to all others together.

    Ties go to the one that is nearest to the package's defaults, then to the one with the most
    seeds.
    """

    def cost(group: Group) -> tuple[Any, ...]:
        total = sum(len(differences(group.config, other.config)) for other in family)
        departures = sum(
            group.config.get(key) != value for key, value in defaults(group.runs[0].summary).items()
        )
        return (
            total,
            departures,
            -group.seeds,
            json.dumps(group.config, sort_keys=True, default=str),
        )

    return min(family, key=cost)


def group_order(group: Group) -> tuple[Any, ...]:
    """Return the sort key of a group: setting, measured before external, method, reference first,
    numbers by size.
    """
    changes = [(key, *by_size(value)) for key, value in sorted(group.changes.items())]
    return (group.setting, *method_order(group), len(changes), changes)


def by_size(value: Any) -> tuple[bool, float, str]:
    """Return the sort key of a setting's value: numbers by size, then texts."""
    is_number = isinstance(value, int | float)
    return not is_number, value if is_number else 0, str(value)


def method_order(group: Group) -> tuple[int, int, tuple[str, int]]:
    """Return the sort key of a method within a setting."""
    known = [*METHODS.values(), JOINT]
    if group.name in known:
        position = known.index(group.name)
    else:
        position = len(known)
    return KINDS.index(group.kind), position, natural(group.name)


# ---------------------------------------------------------------------- all of them


@dataclass
class Study:
    """All results of a report.

    Attributes:
        groups: measured ones, then those of external files, in the order of tables.
        published: the paper's rows of every setting.
        left_out: a sentence for each folder that was not read, or not used.
        missing: a sentence for each point of a sweep that has no complete run.
    """

    groups: list[Group]
    published: list[Group] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    @cached_property
    def settings(self) -> list[Setting]:
        """Settings of the groups, sorted."""
        return sorted({group.setting for group in self.groups})

    @cached_property
    def names(self) -> dict[Setting, str]:
        """Short name of each setting that no other setting has: what differs from others of its
        name is added.
        """
        return distinct_names(self.settings, networks=True)

    @cached_property
    def data_names(self) -> dict[Setting, str]:
        """One setting of each data and task protocol, the first of those that differ in network,
        with a short name.
        """
        first = [s for s in self.settings if self.on_the_same_data(s)[0] == s]
        return distinct_names(first, networks=False)

    def slug(self, setting: Setting) -> str:
        """Return the setting's name for a file."""
        return file_name(self.names, setting)

    def data_slug(self, setting: Setting) -> str:
        """Return the name of a setting's data for a file."""
        return file_name(self.data_names, setting)

    def on_the_same_data(self, setting: Setting) -> list[Setting]:
        """Return a setting and those that differ from it in network and size of images only."""
        return [s for s in self.settings if (s.data, s.root) == (setting.data, setting.root)]

    # ------------------------------------------------------------------ groups

    def of(self, setting: Setting) -> list[Group]:
        """Return the measured and external groups of a setting."""
        return [group for group in self.groups if group.setting == setting]

    def compared(self, setting: Setting) -> list[Group]:
        """Return one group for each method of a setting, its reference, and external methods."""
        return [
            group for group in self.of(setting) if group.is_reference or group.kind == "external"
        ]

    def with_published(self, *settings: Setting) -> list[Group]:
        """Return the groups of :meth:`compared` of some settings, and the paper's rows of the first
        one.
        """
        published = [group for group in self.published if group.setting == settings[0]]
        return [group for setting in settings for group in self.compared(setting)] + published

    def varied(self, *keys: str) -> list[list[Group]]:
        """Return each reference that has variants with those: they differ from it in exactly one
        setting.

        Args:
            keys: dotted names of the settings.
        """
        families = []
        for reference in (group for group in self.groups if group.is_reference):
            variants = [
                group for group in self.of(reference.setting)
                if group.kind == "measured" and group.name == reference.name
                and len(group.changes) == 1 and next(iter(group.changes)) in keys
            ]  # fmt: skip
            if variants:
                families.append([reference, *variants])
        return families

    def other_keys(self) -> list[str]:
        """Return the settings other than those of the paper's ablations that some groups vary by
        themselves.
        """
        changed = {next(iter(group.changes)) for group in self.groups if len(group.changes) == 1}
        return sorted(changed - {*LACKING, "buffer.capacity", "buffer.strategy"})

    def conditions_of(
        self, groups: Sequence[Group]
    ) -> dict[tuple[str, Conditions], tuple[str, str]]:
        """Return a letter and words for each kind of row and its conditions."""
        said = {}
        keys = dict.fromkeys(
            (group.kind, conditions) for group in groups for conditions in group.conditions
        )
        for i, (kind, conditions) in enumerate(keys):
            text = ", ".join(filter(None, conditions))
            phrase = {"measured": text, "external": EXTERNAL}.get(
                kind, f"{kind}, {text or 'energy not measured'}"
            )
            letter = string.ascii_lowercase[i % 26] + (str(i // 26) if i >= 26 else "")
            letter += SHARED if conditions.scope == COUNTED and kind == "measured" else ""
            said[kind, conditions] = letter, phrase
        return said

    # ------------------------------------------------------------------ what a reader must know

    @property
    def data_notes(self) -> list[str]:
        """A sentence for each setting whose runs did not all have the same images, by their
        fingerprints.
        """
        sentences = []
        for setting in self.settings:
            folders: dict[str, list[str]] = defaultdict(list)
            for run in (
                run
                for group in self.of(setting)
                for run in group.runs
                if run.summary.get("data_fingerprint")
            ):
                folders[str(run.summary["data_fingerprint"])].append(str(run.folder))
            if len(folders) > 1:
                parts = "; ".join(
                    f"{len(runs)} with {mark}, such as {runs[0]}" for mark, runs in folders.items()
                )
                sentences.append(
                    f"Runs of {self.names[setting]} had different data, so their means are over"
                    f" more than seeds (by fingerprint: {parts})."
                )
        return sentences

    def seeds_note(self, groups: Iterable[Group]) -> str:
        """Return a note that says what the deviations are over: seeds, class orders, or both."""
        runs = [run for group in groups for run in group.runs]
        orders = [run.config["data"].get("class_order") for run in runs]
        if runs and all(
            order == run.seed and order is not None for run, order in zip(runs, orders, strict=True)
        ):
            over = "a seed sets both seed_everything and the class order"
        elif len(set(map(repr, orders))) == 1:
            over = "all runs have the same class order; a seed sets everything else that is drawn"
        else:
            over = "class orders and seeds vary, but not together: the table of runs has them"
        return f"Mean ± standard deviation over seeds; {over}."
