"""Hold all results of a report: group runs by configuration, and select what can be compared."""

from __future__ import annotations

import json
import math
import string
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from cifnet_pl.model.metrics import max_drop
from cifnet_pl.report.runs import MEASURED, Run, natural_order, with_common_root
from cifnet_pl.report.settings import (
    ABLATIONS,
    JOINT,
    METHODS,
    SETTING_KEYS,
    Setting,
    configuration,
    default_settings,
    distinct_names,
    file_name,
    has_frozen_backbone,
    method_of,
    setting_of,
    setting_text,
)
from cifnet_pl.report.significance import Stat, stat_of
from cifnet_pl.report.table_formats import SHARED_MARK
from cifnet_pl.utilities.text import number_of

COSTS = ("train_seconds", "energy_kwh", "A_K_per_kwh", "co2_kg")
"""Values that depend on the machine, on how energy was measured, and on the embedding cache."""

EXTERNAL_CONDITIONS = (
    "external: the file does not say which machine, nor how energy was measured"
)
"""Conditions of the rows of an external file."""

KINDS = ("measured", "external", "published")
"""Sources of numbers, in the order of rows."""


class Conditions(NamedTuple):
    """Conditions besides the method that time and energy depend on.

    Costs under different conditions are never averaged.

    Attributes:
        machine: processor or GPU, with its number, and how many threads were used where that is
            another number.
        source: how energy was measured, e.g. "cpu estimated (cpu_load), ram estimated".
        scope: whether other processes were counted; empty where that is not known.
        cache: says that embeddings were read from the cache, so that the backbone did not run for
            them; else empty.
    """

    machine: str = ""
    source: str = ""
    scope: str = ""
    cache: str = ""


OTHERS_COUNTED = "other processes counted"
OWN_PROCESS = "this process only"
CACHED = "embeddings from the cache"


@dataclass(frozen=True)
class Outcome:
    """The results of one seed, class order and conditions.

    Attributes:
        seed: of the run; None if it is not known.
        trajectory: A_k in percent after each task.
        values: percentages, seconds, kWh by name; None where something was not measured.
        conditions: of time and energy.
        run: the run, if it was one of this package.
        key: seed and class order; outcomes of two methods with the same key are a pair.
        components: elements kept between tasks, by component, without the backbone.
    """

    seed: int | None
    trajectory: tuple[float | None, ...]
    values: Mapping[str, float | None]
    conditions: Conditions = field(default_factory=Conditions)
    run: Run | None = None
    key: str = ""
    components: Mapping[str, float] = field(default_factory=dict)

    @property
    def predictions(self) -> Path | None:
        """The predictions on single test images, if the run kept them."""
        if self.run is None:
            return None
        return self.run.predictions


@dataclass(eq=False)
class Group:
    """All seeds of one configuration, or of one method that was run or published elsewhere.

    Attributes:
        setting: what it can be compared with.
        name: of the head or the method.
        kind: one of ``KINDS``.
        outcomes: one for each seed, class order and conditions of its costs, by seed.
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
        """Name of the method, and what is changed against its main configuration."""
        settings = self._settings_text(self.named)
        parts = [self.name, settings, self.conditions_label]
        return ", ".join(filter(None, parts))

    @property
    def variant(self) -> str:
        """The label without the method's name: "full method" for the reference of its setting."""
        return self._settings_text(self.changes) or "full method"

    def _settings_text(self, settings: Mapping[str, Any]) -> str:
        """Return settings, and the parts that this configuration lacks, as text."""
        mentioned = dict(settings)
        if self.name != JOINT:  # the joint bound keeps its buffer for another purpose
            for key, value in ABLATIONS.items():
                if self.config.get(key, "") == value:
                    mentioned.setdefault(key, value)
        texts = [setting_text(key, mentioned[key]) for key in sorted(mentioned)]
        return ", ".join(texts)

    @property
    def is_reference(self) -> bool:
        """Whether others of its method and setting are compared with this configuration."""
        return self.kind == "measured" and not self.changes

    @property
    def seeds(self) -> int:
        """Number of different seeds and class orders."""
        keys = {outcome.key for outcome in self.outcomes}
        return len(keys)

    @property
    def runs(self) -> list[Run]:
        """Its runs, if they were ones of this package."""
        runs = []
        for outcome in self.outcomes:
            if outcome.run is not None:
                runs.append(outcome.run)
        return runs

    @property
    def frozen(self) -> bool:
        """Whether its runs learned a head on a frozen backbone."""
        return any(has_frozen_backbone(run.summary) for run in self.runs)

    @property
    def components(self) -> Mapping[str, float]:
        """Elements kept between tasks, by component, without the backbone."""
        return self.outcomes[0].components

    @property
    def conditions(self) -> list[Conditions]:
        """The conditions under which the costs of its seeds were measured."""
        return sorted({outcome.conditions for outcome in self.outcomes})

    def by_conditions(self) -> list[Group]:
        """Return the group once for each condition of its costs, with labels that differ."""
        if len(self.conditions) == 1:
            return [self]
        common = set.intersection(*map(set, self.conditions))
        groups = []
        for conditions in self.conditions:
            own = []
            for outcome in self.outcomes:
                if outcome.conditions == conditions:
                    own.append(outcome)
            different = [text for text in conditions if text and text not in common]
            label = ", ".join(different)
            groups.append(replace(self, outcomes=own, conditions_label=label))
        return groups

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
        values = {outcome.key: outcome.values.get(key) for outcome in self.outcomes}
        stat = stat_of(values)
        if key != "A_K_per_kwh" or stat is None or self.kind == "published":
            return stat
        # The ratio of the row's own means, as a reader would divide them; its deviation is that of
        # the seeds' ratios.
        both = []
        for outcome in self.outcomes:
            if outcome.key in stat.by_seed:
                both.append(outcome)
        accuracies = {outcome.key: outcome.values.get("A_K") for outcome in both}
        accuracy = stat_of(accuracies)
        energies = {outcome.key: outcome.values.get("energy_kwh") for outcome in both}
        energy = stat_of(energies)
        if accuracy and energy:
            ratio = accuracy.mean / energy.mean
            return replace(stat, mean=ratio)
        return stat

    def mean(self, key: str) -> float:
        """Return the mean of a value that some seed has."""
        stat = self.stat(key)
        if stat is None:
            return math.nan
        return stat.mean

    def curve(self) -> list[Stat | None]:
        """Return mean and deviation of A_k after each task.

        They are over pairs of seed and class order; of outcomes with the same pair the last counts.
        """
        lengths = [len(outcome.trajectory) for outcome in self.outcomes]
        length = max(lengths, default=0)
        curve = []
        for k in range(length):
            accuracies = {}
            for outcome in self.outcomes:
                if k < len(outcome.trajectory):
                    accuracies[outcome.key] = outcome.trajectory[k]
            curve.append(stat_of(accuracies))
        return curve


def seed_counts(groups: Sequence[Group]) -> list[str]:
    """Return "n = 2" for each measured group if these have different numbers of seeds.

    Args:
        groups: that are shown beside each other.

    Returns:
        A text for each group, empty if nothing needs to be said.
    """
    measured = {group.seeds for group in groups if group.kind == "measured"}
    differ = len(measured) > 1
    texts = []
    for group in groups:
        text = ""
        if differ and group.kind == "measured":
            text = f"n = {group.seeds}"
        texts.append(text)
    return texts


# ---------------------------------------------------------------------- one run


def outcome_of(run: Run) -> Outcome:
    """Return the values of one run that tables and figures use."""
    summary = run.summary
    values = {name: summary.get(name) for name in MEASURED}
    values["max_drop"] = max_drop(summary["A_k"])
    # The size of one network, which every method has. The parameters of a method whose network
    # grows with the tasks are those of all branches.
    network = summary.get("network_params") or summary.get("backbone_params")
    values["network_params"] = network
    components = {}
    for name, count in (summary.get("state_components") or {}).items():
        own = float(count or 0)
        if name == "parameters":
            own = max(0.0, own - (network or 0))
        if own:
            components[name] = own
    if components:
        widths = summary.get("state_bytes_per_element") or {}
        sizes = []
        for name, count in components.items():
            width = widths.get(name) or 4
            sizes.append(count * width)
        values["state_elements"] = sum(components.values())
        values["state_bytes"] = math.fsum(sizes)
    order = run.config["data"].get("class_order")
    key = json.dumps([run.seed, order])
    trajectory = tuple(summary["A_k"])
    conditions = _conditions(run)
    return Outcome(run.seed, trajectory, values, conditions, run, key, components)


def _conditions(run: Run) -> Conditions:
    summary = run.summary
    machine = str(summary.get("machine") or summary.get("device") or "")
    threads = summary.get("threads")
    if threads and not summary.get("gpu") and threads != summary.get("cores"):
        machine = f"{machine}, {number_of(threads, 'thread')}"
    scopes = {True: OTHERS_COUNTED, False: OWN_PROCESS}
    counted = summary.get("energy_counts_other_processes")
    source = summary.get("energy_source") or "energy not measured"
    sources = source.split(", ")
    if counted is None:
        scope = ""
    else:
        scope = scopes[counted]
    cache = ""
    if summary.get("cached_images"):
        cache = CACHED
    source_names = ", ".join(sorted(sources))
    return Conditions(
        machine,
        source_names,
        scope,
        cache,
    )


# ---------------------------------------------------------------------- groups


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Group runs that differ by their seed, class order or conditions only.

    The same configuration on a folder that has got further classes since is another number of
    tasks, so another group.

    Args:
        runs: complete runs.

    Returns:
        The groups in the order of tables, and a sentence for each run that a later one of the same
        seed, class order and conditions replaces.
    """
    by_configuration: dict[str, dict[tuple[str, Conditions], Outcome]] = defaultdict(
        dict
    )
    replaced = []
    for run in with_common_root(runs):
        learned = [run.summary["n_tasks"], run.summary["n_classes"]]
        method = method_of(run)
        identity = [method, learned, configuration(run)]
        key = json.dumps(identity, sort_keys=True, default=str)
        outcomes = by_configuration[key]
        outcome = outcome_of(run)
        # The same seed on another machine, or with the cache, is another measurement of costs.
        measurement = (outcome.key, outcome.conditions)
        earlier = outcomes.pop(measurement, None)
        if earlier is not None and earlier.run is not None:
            replaced.append(
                f"{earlier.run.folder}: the same configuration and seed as {run.folder}, which is"
                " used instead"
            )
        outcomes[outcome.key, outcome.conditions] = outcome
    by_method: dict[str, list[Group]] = defaultdict(list)
    for outcomes in by_configuration.values():
        group = _group_of(list(outcomes.values()))
        by_method[group.name].append(group)
    groups = []
    for family in by_method.values():
        _name_variants(family)
        groups += family
    return sorted(groups, key=group_order), replaced


def _group_of(outcomes: list[Outcome]) -> Group:
    """Return the group of the runs of one configuration."""
    outcomes.sort(key=lambda outcome: (outcome.seed is None, outcome.seed))
    run = outcomes[0].run
    assert run is not None
    settings = configuration(run)
    config = {}
    for key, value in settings.items():
        if key not in SETTING_KEYS:
            config[key] = value
    setting = setting_of(run)
    return Group(setting, method_of(run), "measured", outcomes, config)


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of ``b`` that differ from ``a``.

    If only one has a buffer, only its presence is listed.

    Args:
        a, b: settings by dotted name.
    """
    changed = {}
    for key in a.keys() | b.keys():
        old = a.get(key)
        new = b.get(key)
        is_changed = old != new or type(old) is not type(new)
        if is_changed:
            changed[key] = new
    if "buffer" in changed:
        remaining = {}
        for key, value in changed.items():
            if not key.startswith("buffer."):
                remaining[key] = value
        return remaining
    return changed


def _name_variants(family: list[Group]) -> None:
    """Name each group of one method by its differences from the method's main configuration.

    The reference of a setting, which its ablations are variants of, may be another configuration;
    its label then says so.
    """
    main = _reference(family)
    for setting in {group.setting for group in family}:
        same = []
        for group in family:
            if group.setting == setting:
                same.append(group)
        if main in same:
            reference = main
        else:
            reference = _reference(same)
        named = _distinguishing_settings(main, same)
        changes = _distinguishing_settings(reference, same)
        for i, group in enumerate(same):
            group.named = named[i]
            group.changes = changes[i]


def _distinguishing_settings(
    reference: Group, groups: Sequence[Group]
) -> list[dict[str, Any]]:
    """Return in which settings each group differs from a reference.

    Groups that differ in the same, as two buffers do beside a reference without any, also differ
    from each other.
    """
    changes = []
    for group in groups:
        changed = differences(reference.config, group.config)
        changes.append(changed)
    settings = []
    for group, own_changes in zip(groups, changes, strict=True):
        own = dict(own_changes)
        for other, other_changes in zip(groups, changes, strict=True):
            if other_changes == own_changes:
                for key in differences(group.config, other.config):
                    own[key] = group.config.get(key)
        settings.append(own)
    return settings


def _reference(family: Sequence[Group]) -> Group:
    """Return the configuration with the fewest differences to all others together.

    Ties go to the one that is nearest to the package's defaults, then to the one with the most
    seeds.
    """

    def cost(group: Group) -> tuple[Any, ...]:
        distances = [len(differences(group.config, other.config)) for other in family]
        total = sum(distances)
        defaults = default_settings(group.runs[0].summary)
        departed = [group.config.get(key) != value for key, value in defaults.items()]
        departures = sum(departed)
        text = json.dumps(group.config, sort_keys=True, default=str)
        return total, departures, -group.seeds, text

    return min(family, key=cost)


def group_order(group: Group) -> tuple[Any, ...]:
    """Return the sort key of a group: setting, kind, method, reference first, numbers by size."""
    changes = []
    in_order = sorted(group.changes.items())
    for key, value in in_order:
        order_of_value = value_order(value)
        changes.append((key, *order_of_value))
    order = method_order(group)
    return (group.setting, *order, len(changes), changes)


def value_order(value: Any) -> tuple[bool, float, str]:
    """Return the sort key of a setting's value: numbers by size, then texts."""
    is_number = isinstance(value, int | float)
    number = 0
    if is_number:
        number = value
    return not is_number, number, str(value)


def method_order(group: Group) -> tuple[int, int, tuple[str, int]]:
    """Return the sort key of a method within a setting."""
    known = [*METHODS.values(), JOINT]
    if group.name in known:
        position = known.index(group.name)
    else:
        position = len(known)
    kind = KINDS.index(group.kind)
    return kind, position, natural_order(group.name)


# ---------------------------------------------------------------------- all of them


class ConditionsLabel(NamedTuple):
    """A letter for a kind of row and its conditions in a table, and what it stands for."""

    letter: str
    text: str


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
        """A short name for each setting, which no other setting has."""
        return distinct_names(self.settings, backbones=True)

    @cached_property
    def data_names(self) -> dict[Setting, str]:
        """One setting of each data and task protocol, with a short name.

        It is the first of those that differ in backbone.
        """
        first = []
        for s in self.settings:
            if self.on_the_same_data(s)[0] == s:
                first.append(s)
        return distinct_names(first, backbones=False)

    def slug(self, setting: Setting) -> str:
        """Return the setting's name for a file."""
        return file_name(self.names, setting)

    def data_slug(self, setting: Setting) -> str:
        """Return the name of a setting's data for a file."""
        return file_name(self.data_names, setting)

    def on_the_same_data(self, setting: Setting) -> list[Setting]:
        """Return a setting and those that differ from it in backbone and size of images only."""
        settings = []
        for s in self.settings:
            if (s.data, s.root) == (setting.data, setting.root):
                settings.append(s)
        return settings

    # ------------------------------------------------------------------ groups

    def groups_in(self, setting: Setting) -> list[Group]:
        """Return the measured and external groups of a setting."""
        return [group for group in self.groups if group.setting == setting]

    def compared(self, setting: Setting) -> list[Group]:
        """Return one group for each method of a setting, its reference, and external methods."""
        groups = self.groups_in(setting)
        compared = []
        for group in groups:
            if group.is_reference or group.kind == "external":
                compared.append(group)
        return compared

    def with_published(self, *settings: Setting) -> list[Group]:
        """Return :meth:`compared` of some settings, and the paper's rows of the first one."""
        groups = []
        for setting in settings:
            groups += self.compared(setting)
        return groups + [
            group for group in self.published if group.setting == settings[0]
        ]

    def varied(self, *keys: str) -> list[list[Group]]:
        """Return each reference with its variants that differ from it in exactly one setting.

        Args:
            keys: dotted names of the settings that may differ.
        """
        families = []
        for reference in self.groups:
            if not reference.is_reference:
                continue
            family = [reference]
            for group in self.groups_in(reference.setting):
                changed = list(group.changes)
                is_measured = group.kind == "measured"
                same_method = is_measured and group.name == reference.name
                if same_method and len(changed) == 1 and changed[0] in keys:
                    family.append(group)
            if len(family) > 1:
                families.append(family)
        return families

    def other_keys(self) -> list[str]:
        """Return the settings, beyond the paper's ablations, that groups vary by themselves."""
        changed = {
            next(iter(group.changes))
            for group in self.groups
            if len(group.changes) == 1
        }
        return sorted(changed - {*ABLATIONS, "buffer.capacity", "buffer.strategy"})

    def condition_labels(
        self, groups: Sequence[Group]
    ) -> dict[tuple[str, Conditions], ConditionsLabel]:
        """Return a letter and a text for each kind of row and its conditions."""
        keys: dict[tuple[str, Conditions], None] = {}
        for group in groups:
            for conditions in group.conditions:
                keys[group.kind, conditions] = None
        labels = {}
        for i, (kind, conditions) in enumerate(keys):
            text = ", ".join(filter(None, conditions))
            if kind == "external":
                text = EXTERNAL_CONDITIONS
            elif kind == "published":
                text = f"{kind}, {text or 'energy not measured'}"
            letter = string.ascii_lowercase[i % 26]
            if i >= 26:
                letter = f"{letter}{i // 26}"
            if conditions.scope == OTHERS_COUNTED and kind == "measured":
                letter = f"{letter}{SHARED_MARK}"
            label = ConditionsLabel(letter, text)
            labels[kind, conditions] = label
        return labels

    # ------------------------------------------------------------------ what a reader must know

    @property
    def data_notes(self) -> list[str]:
        """A sentence for each setting whose runs did not all have the same images."""
        notes = []
        for setting in self.settings:
            folders: dict[str, list[str]] = defaultdict(list)
            for group in self.groups_in(setting):
                for run in group.runs:
                    fingerprint = run.summary.get("data_fingerprint")
                    if fingerprint:
                        of_data = folders[str(fingerprint)]
                        of_data.append(str(run.folder))
            if len(folders) > 1:
                parts = []
                for fingerprint, runs in folders.items():
                    count = len(runs)
                    parts.append(f"{count} with {fingerprint}, such as {runs[0]}")
                notes.append(
                    f"Runs of {self.names[setting]} had different data, so their means are over"
                    f" more than seeds (by fingerprint: {'; '.join(parts)})."
                )
        return notes

    def seeds_notes(self, groups: Iterable[Group]) -> list[str]:
        """Return a note that says what the deviations are over: seeds, class orders, or both.

        There is none for a single run.
        """
        runs: list[Run] = []
        for group in groups:
            runs += group.runs
        if len(runs) == 1:
            return []
        orders = []
        for run in runs:
            orders.append(run.config["data"].get("class_order"))
        seeds = [run.seed for run in runs]
        over = (
            "class orders and seeds vary, but not together: the table of runs has them"
        )
        if runs and orders == seeds and None not in orders:
            over = "a seed sets both seed_everything and the class order"
        elif len(set(map(repr, orders))) == 1:
            over = "all runs have the same class order; a seed sets everything else that is drawn"
        return [f"Mean ± standard deviation over seeds; {over}."]
