"""All results of a report, and the comparisons that they allow: by head, by ablation, by one setting alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from cifnet_pl.report.elsewhere import Published, published_groups, published_numbers, published_values
from cifnet_pl.report.groups import WORDS, Group, Stat
from cifnet_pl.report.settings import Setting

ABLATIONS = ("buffer", "buffer.oversample", "head.update_past", "head.weighting")
"""Settings whose change takes a part of the method away (tab:ablation), each by itself."""

CLASSIFIERS = ("SLDA", "NCM", "kNN", "Logistic regression", "Linear (SGD)")
"""Classifiers that are compared with the analytic heads on the same frozen backbone (fig:classifier_ablation)."""

ANALYTIC = ("CIFNet", "Exact ridge")
"""Heads that stand beside those classifiers."""

BYTES = 4
"""Memory is given as the paper gives it: numbers kept, at four bytes each."""


@dataclass
class Study:
    """Everything that was read.

    Attributes:
        groups: measured ones, then those of external files, in the order of tables.
        left_out: a sentence for each folder that was not read, or not used.
        published: the paper's rows for the same data sets and protocols.
    """

    groups: list[Group]
    left_out: list[str] = field(default_factory=list)

    @cached_property
    def settings(self) -> list[Setting]:
        """Settings of the groups, sorted."""
        return sorted({group.setting for group in self.groups}, key=lambda setting: setting.order)

    @cached_property
    def names(self) -> dict[Setting, str]:
        """A short name of each setting that no other one has."""
        names = {setting: setting.short for setting in self.settings}
        extras: list[Callable[[Setting], str]] = [
            lambda s: s.backbone,
            lambda s: f"{s.image_size} px" if s.image_size else "own size",
            lambda s: f"{s.n_tasks} tasks",
            lambda s: f"{s.n_classes} classes",
            lambda s: s.root,
        ]
        for extra in extras:
            shared = {name for name, count in Counter(names.values()).items() if count > 1}
            names = {s: f"{name}, {extra(s)}" if name in shared else name for s, name in names.items()}
        return names

    def slug(self, setting: Setting) -> str:
        """The setting's name for a file."""
        return re.sub(r"[^a-z0-9]+", "_", self.names[setting].lower()).strip("_")

    @cached_property
    def published(self) -> list[Group]:
        """The paper's rows of every setting."""
        return published_groups(self.settings)

    @cached_property
    def numbers(self) -> list[Published]:
        """All of the paper's numbers."""
        return published_numbers()

    def of(self, setting: Setting) -> list[Group]:
        """Measured and external groups of a setting."""
        return [group for group in self.groups if group.setting == setting]

    def references(self, setting: Setting) -> list[Group]:
        """One group for each head of a setting: the one that its others are variations of."""
        return [group for group in self.of(setting) if group.is_reference]

    def compared(self, setting: Setting) -> list[Group]:
        """References and external methods of a setting."""
        return [group for group in self.of(setting) if group.is_reference or group.kind == "external"]

    def with_published(self, setting: Setting) -> list[Group]:
        """As :meth:`compared`, and the paper's rows."""
        return self.compared(setting) + [group for group in self.published if group.setting == setting]

    def variants(self, reference: Group, *keys: str) -> list[Group]:
        """The reference, and the groups of its head that differ from it in exactly one of ``keys``; [] if none."""
        own = [
            group for group in self.of(reference.setting)
            if group.kind == "measured" and group.name == reference.name
            and len(group.changes) == 1 and next(iter(group.changes)) in keys
        ]  # fmt: skip
        return [reference, *own] if own else []

    def varied(self, *keys: str) -> list[list[Group]]:
        """:meth:`variants` of every reference that has some."""
        references = [group for group in self.groups if group.is_reference]
        return [family for family in (self.variants(ref, *keys) for ref in references) if family]

    def other_keys(self) -> list[str]:
        """Settings other than those of the paper's ablations that some groups vary by themselves."""
        named = {*ABLATIONS, "buffer.capacity", "buffer.strategy"}
        changed = {next(iter(g.changes)) for g in self.groups if len(g.changes) == 1}
        return sorted(changed - named)

    def published_of(self, table: str, setting: Setting, quantity: str) -> dict[str, Stat]:
        """Variant → the paper's number for its own method in one of its tables."""
        values = published_values(self.numbers, table, setting, quantity)
        return {variant: Stat(value, None, 3) for variant, value in values.items()}

    def cache_note(self, groups: Sequence[Group]) -> list[str]:
        """What a reader must know about the costs of runs with the embedding cache; nothing where there are none."""
        cached = sorted({group.label for group in groups if group.config.get("data.cache")})
        if not cached:
            return []
        return [
            f"Run with data.cache: {'; '.join(cached)}. Their times and energies are without the backbone's wherever "
            "an embedding was on disk already, so they do not compare with those of other methods."
        ]

    @property
    def notes(self) -> list[str]:
        """What a reader must know about the backbones, once each."""
        return notes_of(self.settings)


def notes_of(settings: Sequence[Setting]) -> list[str]:
    """What a reader must know about the backbones of ``settings``, once each."""
    found = [setting.note for setting in settings]
    return list(dict.fromkeys(note for note in found if note))


def variant_name(group: Group) -> str:
    """A variant without the name of its head: "full method" for the reference."""
    return group.label.removeprefix(group.name).removeprefix(", ") or "full method"


def strategy_name(strategy: object) -> str:
    """A way to select the buffer, in words."""
    return WORDS.get(("buffer.strategy", strategy), str(strategy)).removesuffix(" buffer")


def sources(groups: Sequence[Group]) -> str | None:
    """A sentence that says where the energies of ``groups`` come from; None where there are none."""
    found = sorted({group.energy_source for group in groups if group.energy_source and group.stat("energy_kwh")})
    return f"Energy: {'; '.join(found)}." if found else None
