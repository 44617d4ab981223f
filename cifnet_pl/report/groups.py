"""Group runs that differ by seed only, and name the groups of one method by what differs."""

from __future__ import annotations

import inspect
import json
import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cifnet_pl import heads
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.model.metrics import max_drop
from cifnet_pl.report.display_names import JOINT, METHODS, method_name
from cifnet_pl.report.outcomes import VALUES, Conditions, Group, Outcome
from cifnet_pl.report.runs import Run, at_one_place, natural
from cifnet_pl.report.settings import OF_SETTING, configuration, setting_of

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
    from cifnet_pl.learning import iterative

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
