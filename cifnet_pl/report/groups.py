"""Runs that differ by seed only form a group; groups of one head are named by what sets them apart."""

from __future__ import annotations

import inspect
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cifnet_pl import heads
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.model.metrics import max_drop
from cifnet_pl.report.runs import Run
from cifnet_pl.report.settings import OF_SETTING, Setting, configuration, setting_of

HEADS = {
    "CIFNetHead": "CIFNet",
    "RidgeHead": "Exact ridge",
    "ACILHead": "ACIL",
    "DSALHead": "DS-AL",
    "SLDAHead": "SLDA",
    "NCMHead": "NCM",
    "KNNHead": "kNN",
    "LogisticHead": "Logistic regression",
    "SGDHead": "Linear (SGD)",
    "FinetuneModule": "Fine-tuning",
    "ICaRLModule": "iCaRL",
}
"""Class of a head, or of a module that trains the network → its name in tables, in the order of the rows."""

WORDS: dict[tuple[str, Any], str] = {
    ("buffer", None): "no buffer",
    ("buffer", "yes"): "with buffer",
    ("buffer.oversample", False): "no oversampling",
    ("buffer.oversample", True): "oversampling",
    ("head.update_past", False): "locked old neurons",
    ("head.update_past", True): "updated old neurons",
    ("head.weighting", "released"): "released weighting",
    ("head.weighting", "derivative"): "derivative weighting",
    ("buffer.strategy", "random"): "random buffer",
    ("buffer.strategy", "herding"): "herding buffer",
    ("buffer.strategy", "kmeans"): "k-means buffer",
    ("buffer.strategy", "centroid"): "centroid buffer",
    ("head.ridge", "gcv"): "λ by GCV",
}
"""(setting, value) → how a method's name says so; other settings are named by :func:`words`."""

LACKING = (("buffer", None), ("buffer.oversample", False), ("head.update_past", False), ("head.weighting", "released"))
"""Settings that a method's name always mentions, whether or not there is anything to compare it with."""

PREFIXES = {"head.ridge": "λ", "buffer.capacity": "buffer", "buffer.per_class": "buffer per class"}


VALUES = (
    "A_K", "A_bar", "forgetting", "bwt", "max_drop", "ece", "nll", "epochs", "train_seconds", "eval_seconds",
    "energy_kwh", "A_K_per_kwh", "backbone_params", "state_elements", "buffer_elements",
)  # fmt: skip
"""Keys of a summary that tables and figures use."""


@dataclass(frozen=True)
class Outcome:
    """What one seed gave. ``values`` has None where something was not measured; percentages, seconds, kWh."""

    seed: int | None
    trajectory: tuple[float | None, ...]
    values: Mapping[str, float | None]
    energy_source: str | None = None
    run: Run | None = None


@dataclass(frozen=True)
class Stat:
    """Mean over seeds, standard deviation (n − 1; None for a single seed), and the number of seeds."""

    mean: float
    sd: float | None
    n: int


@dataclass
class Group:
    """All seeds of one configuration, or of one method that was run or published elsewhere.

    Attributes:
        setting: what it can be compared with.
        name: of the head or the method.
        kind: "measured", "external" or "published".
        outcomes: one a seed, by seed.
        config: settings of the method by dotted name; empty for what was not run here.
        changes: settings in which it differs from the reference of its head, empty for the reference itself.
        components: numbers kept between tasks, by component.
    """

    setting: Setting
    name: str
    kind: str
    outcomes: list[Outcome]
    config: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    components: dict[str, float] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Name of the method, what it lacks of the paper's, and what is changed against its reference."""
        lacking = {key: self.config[key] for key, value in LACKING if self.config.get(key, "") == value}
        said = {**lacking, **self.changes}
        return ", ".join([self.name, *(words(key, value) for key, value in sorted(said.items()))])

    @property
    def head(self) -> str | None:
        """Class of the head, for runs of this package."""
        return self.config.get("head")

    @property
    def is_reference(self) -> bool:
        """Whether this is the configuration that the others of its head are compared with."""
        return self.kind == "measured" and not self.changes

    @cached_property
    def energy_source(self) -> str:
        """Where the energies come from; all sources where seeds differ."""
        return "; ".join(sorted({o.energy_source for o in self.outcomes if o.energy_source}))

    def stat(self, key: str) -> Stat | None:
        """Mean and deviation of a value over the seeds that have it; None where none has."""
        return stat_of([outcome.values.get(key) for outcome in self.outcomes])

    def curve(self) -> list[Stat | None]:
        """A_k of each task over seeds."""
        length = max((len(outcome.trajectory) for outcome in self.outcomes), default=0)
        return [
            stat_of([o.trajectory[k] if k < len(o.trajectory) else None for o in self.outcomes]) for k in range(length)
        ]

    @property
    def classes_seen(self) -> tuple[int, ...]:
        """Number of classes after each task, of the first seed."""
        run = self.outcomes[0].run
        return run.classes_seen if run is not None else ()


def stat_of(values: Sequence[float | None]) -> Stat | None:
    """Mean and sample standard deviation of what is known."""
    known = [float(value) for value in values if value is not None]
    if not known:
        return None
    return Stat(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


def words(key: str, value: Any) -> str:
    """A setting and its value for a method's name."""
    known = WORDS.get((key, value)) if isinstance(value, str | bool | None) else None
    if known is not None:
        return known
    name = PREFIXES.get(key, key.removeprefix("head.").removeprefix("buffer."))
    return f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"


def outcome_of(run: Run) -> Outcome:
    """The values of one run that tables and figures use."""
    summary = run.summary
    values = {name: summary.get(name) for name in VALUES}
    values["max_drop"] = max_drop(summary["A_k"])
    return Outcome(run.seed, tuple(summary["A_k"]), values, _sorted_source(summary.get("energy_source")), run)


def _sorted_source(source: str | None) -> str | None:
    """The parts of an energy's source in one order: trackers list their hardware in any."""
    return ", ".join(sorted(source.split(", "))) if source else None


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Groups in the order of tables, and a sentence for each run that a later one of the same seed replaces."""
    found: dict[str, dict[Any, Run]] = defaultdict(dict)
    replaced = []
    for run in runs:
        same = found[json.dumps(configuration(run), sort_keys=True, default=str)]
        seed = (run.seed, run.config["data"].get("class_order"))
        earlier = same.pop(repr(seed), None)
        if earlier is not None and earlier.activations is not None and run.activations is None:
            run, earlier = earlier, run
        if earlier is not None:
            replaced.append(f"{earlier.folder}: the same configuration and seed as {run.folder}, which is used instead")
        same[repr(seed)] = run
    groups = [_group(sorted(same.values(), key=lambda r: (r.seed is None, r.seed))) for same in found.values()]
    by_head: dict[tuple[Any, ...], list[Group]] = defaultdict(list)
    for group in groups:
        by_head[group.setting.order, group.name].append(group)
    for family in by_head.values():
        _name_variants(family)
    return sorted(groups, key=group_order), replaced


def _group(runs: list[Run]) -> Group:
    config = {key: value for key, value in configuration(runs[0]).items() if key not in OF_SETTING}
    head = str(runs[0].summary["head"])
    parts = runs[0].summary.get("state_components") or {}
    components = {name: float(count) for name, count in parts.items() if count}
    name = HEADS.get(head, head.removesuffix("Head"))
    return Group(setting_of(runs[0]), name, "measured", [outcome_of(run) for run in runs], config, {}, components)


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of ``b`` that differ from ``a``; of a buffer that only one of both has, nothing but its presence."""
    keys = {key for key in a.keys() | b.keys() if a.get(key) != b.get(key) or type(a.get(key)) is not type(b.get(key))}
    if "buffer" in keys:
        keys = {key for key in keys if not key.startswith("buffer.")}
    return {key: b.get(key) for key in keys}


def _name_variants(family: list[Group]) -> None:
    """Choose the reference of one head in one setting, and say of each group in what it differs.

    The reference is the configuration with the fewest differences to all others together: what the others are
    variations of. Ties go to the one that is nearest to the package's defaults.
    """
    defaults = _defaults(str(family[0].head))

    def cost(group: Group) -> tuple[Any, ...]:
        total = sum(len(differences(group.config, other.config)) for other in family)
        own = sum(group.config.get(key) != value for key, value in defaults.items())
        return total, own, json.dumps(group.config, sort_keys=True, default=str)

    reference = min(family, key=cost)
    for group in family:
        group.changes = differences(reference.config, group.config)


def _defaults(head: str) -> dict[str, Any]:
    builders = {"buffer.": CalibrationBuffer, "head.": getattr(heads, head, None)}
    return {
        prefix + name: parameter.default
        for prefix, builder in builders.items()
        if builder is not None
        for name, parameter in inspect.signature(builder).parameters.items()
        if parameter.default is not inspect.Parameter.empty and name != "seed"
    }


def group_order(group: Group) -> tuple[Any, ...]:
    """Sort key: setting, measured before external, head, reference before its variants, numbers by size."""
    kinds = ["measured", "external", "published"]
    known = list(HEADS.values())
    place = known.index(group.name) if group.name in known else len(known)
    changes = [(key, not isinstance(v, int | float), v if isinstance(v, int | float) else 0, str(v))
               for key, v in sorted(group.changes.items())]  # fmt: skip
    return (group.setting.order, kinds.index(group.kind), place, group.name, len(changes), changes)
