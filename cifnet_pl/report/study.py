"""Hold all results of a report, and select what can be compared: methods, ablations, values of one setting."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from cifnet_pl.report.external_results import Published, published_groups, published_numbers, published_values
from cifnet_pl.report.outcomes import Conditions, Group, Stat, fixed, method_order
from cifnet_pl.report.settings import JOINT, OF_DATA, OF_NETWORK, Setting, distinct_names, file_name
from cifnet_pl.report.significance import ratio

ABLATIONS = ("buffer", "buffer.oversample", "head.update_past", "head.weighting")
"""Settings whose change takes a part of the method away (tab:ablation), each by itself."""

CLASSIFIERS = ("SLDA", "NCM", "kNN", "Logistic regression", "Linear (SGD)", JOINT)
"""Classifiers that are compared with the analytic heads on the same frozen backbone (fig:classifier_ablation)."""

ANALYTIC = ("CIFNet", "Exact ridge")
"""Heads that are shown with those classifiers."""

EXTERNAL = "external: the file does not say which machine, nor how energy was measured"
"""Conditions of the rows of an external file."""

REFERENCE = "CIFNet"
"""Method whose energy others are divided by, unless another one is asked for."""


@dataclass
class Study:
    """All results of a report.

    Attributes:
        groups: measured ones, then those of external files, in the order of tables.
        left_out: a sentence for each folder that was not read, or not used.
        missing: a sentence for each point of a sweep that has no complete run.
        reference: label of the method whose energy others are divided by.
    """

    groups: list[Group]
    left_out: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    reference: str = REFERENCE

    @cached_property
    def settings(self) -> list[Setting]:
        """Settings of the groups, sorted."""
        return sorted({group.setting for group in self.groups}, key=lambda setting: setting.order)

    @cached_property
    def names(self) -> dict[Setting, str]:
        """Short name of each setting that no other setting has: what differs from others of its name is added."""
        return distinct_names(self.settings, [*OF_NETWORK, *OF_DATA])

    @cached_property
    def data_names(self) -> dict[Setting, str]:
        """One setting of each data and task protocol, the first of those that differ in network, with a short name."""
        first: dict[tuple[object, ...], Setting] = {}
        for setting in self.settings:
            first.setdefault((setting.data, setting.root), setting)
        return distinct_names(list(first.values()), OF_DATA)

    def on_the_same_data(self, setting: Setting) -> list[Setting]:
        """Return a setting and those that differ from it in network and size of images only."""
        return [s for s in self.settings if (s.data, s.root) == (setting.data, setting.root)]

    def of_all_networks(self, setting: Setting) -> list[Group]:
        """Return the groups of :meth:`with_published` of all networks on a setting's data; the paper's rows once."""
        beside = self.on_the_same_data(setting)
        return [g for s in beside for g in self.compared(s)] + self.published_in(setting)

    def name_of(self, setting: Setting) -> str:
        """Return the name of a setting, of this study or not."""
        return self.names.get(setting, setting.short)

    def slug(self, setting: Setting) -> str:
        """Return the setting's name for a file."""
        return file_name(self.names, setting)

    def data_slug(self, setting: Setting) -> str:
        """Return the name of a setting's data for a file."""
        return file_name(self.data_names, setting)

    # ------------------------------------------------------------------ groups

    @cached_property
    def published(self) -> list[Group]:
        """The paper's rows of every setting."""
        return published_groups(self.settings)

    @cached_property
    def numbers(self) -> list[Published]:
        """All of the paper's numbers."""
        return published_numbers()

    def of(self, setting: Setting) -> list[Group]:
        """Return the measured and external groups of a setting."""
        return [group for group in self.groups if group.setting == setting]

    def published_in(self, setting: Setting) -> list[Group]:
        """Return the paper's rows of a setting."""
        return [group for group in self.published if group.setting == setting]

    def references(self, setting: Setting) -> list[Group]:
        """Return one group for each method of a setting: the one that the others are variations of."""
        return [group for group in self.of(setting) if group.is_reference]

    def compared(self, setting: Setting) -> list[Group]:
        """Return the references and external methods of a setting."""
        return [group for group in self.of(setting) if group.is_reference or group.kind == "external"]

    def with_published(self, setting: Setting) -> list[Group]:
        """Return the groups of :meth:`compared`, and the paper's rows."""
        return self.compared(setting) + self.published_in(setting)

    def row_order(self, group: Group) -> tuple[object, ...]:
        """Return the sort key of a row for several settings: measured, external, published in the paper's order."""
        kind, position, name = method_order(group)
        measured_order = (
            (position, name, len(group.named), group.label) if group.kind == "measured" else (0, ("", 0), 0, "")
        )
        return (kind, *measured_order)

    def variants(self, reference: Group, *keys: str) -> list[Group]:
        """Return a reference, and the groups of its method that differ from it in exactly one setting.

        Args:
            reference: a group.
            keys: dotted names of the settings.

        Returns:
            Nothing if there are no such groups.
        """
        variants = [
            group for group in self.of(reference.setting)
            if group.kind == "measured" and group.name == reference.name
            and len(group.changes) == 1 and next(iter(group.changes)) in keys
        ]  # fmt: skip
        return [reference, *variants] if variants else []

    def varied(self, *keys: str) -> list[list[Group]]:
        """Return :meth:`variants` of every reference that has some.

        Args:
            keys: dotted names of the settings.
        """
        references = [group for group in self.groups if group.is_reference]
        return [family for family in (self.variants(ref, *keys) for ref in references) if family]

    def other_keys(self) -> list[str]:
        """Return the settings other than those of the paper's ablations that some groups vary by themselves."""
        named = {*ABLATIONS, "buffer.capacity", "buffer.strategy"}
        changed = {next(iter(g.changes)) for g in self.groups if len(g.changes) == 1}
        return sorted(changed - named)

    def published_of(self, table: str, setting: Setting, quantity: str) -> dict[str, Stat]:
        """Return the paper's numbers for its own method in one of its tables.

        Args:
            table: label of the table.
            setting: whose data set and protocol must match.
            quantity: such as ``A_K``.

        Returns:
            Variant → number.
        """
        values = published_values(self.numbers, table, setting, quantity)
        return {variant: stat for variant, value in values.items() if (stat := fixed(value, 3)) is not None}

    # ------------------------------------------------------------------ costs

    def energy_ratios(self, groups: Sequence[Group]) -> list[Stat | None]:
        """Return the energy of each group divided by that of the reference under the same conditions.

        That is the reference on the same network, else the one on another network if there is only one.
        """
        references = [g for g in groups if self._is_reference(g) and len(g.conditions) == 1]
        ratios: list[Stat | None] = []
        for group in groups:
            rival = _rival(group, references)
            if rival is group:
                ratios.append(fixed(1.0, group.seeds) if group.stat("energy_kwh") else None)
            else:
                ratios.append(ratio(group.stat("energy_kwh"), rival.stat("energy_kwh")) if rival else None)
        return ratios

    def _is_reference(self, group: Group) -> bool:
        names = {group.label, replace(group, conditions_label="").label}
        return self.reference in names or (self.reference == group.name and not group.changes)

    def condition_letters(self, groups: Sequence[Group]) -> dict[tuple[str, Conditions], str]:
        """Return a letter for each kind of row and its conditions, as a reference to a note."""
        keys = dict.fromkeys((group.kind, conditions.comparable) for group in groups for conditions in group.conditions)
        return {key: _letter(i) for i, key in enumerate(keys)}

    def condition_words(self, groups: Sequence[Group]) -> dict[str, str]:
        """Return what each letter of :meth:`condition_letters` stands for."""
        phrases = {}
        for (kind, conditions), letter in self.condition_letters(groups).items():
            shown = [name for name in ("machine", "source") if getattr(conditions, name) or name == "source"]
            more = [name for name in ("scope", "cached") if getattr(conditions, name) in ("process", True)]
            text = conditions.words([*shown, *more])
            phrases[letter] = {"measured": text, "external": EXTERNAL}.get(kind, f"{kind}, {text}")
        return phrases

    # ------------------------------------------------------------------ what a reader must know

    def cache_note(self, groups: Sequence[Group]) -> list[str]:
        """Return a note about the costs of runs with the embedding cache.

        It is empty where there are no such runs.
        """
        cached = []
        for group in groups:
            read = len({o.key for o in group.outcomes if o.conditions.cached})
            seeds = f" ({read} of {group.seeds} seeds)" if read < group.seeds else ""
            cached += [f"{replace(group, conditions_label='').label}{seeds}"] if read else []
        if not cached:
            return []
        names = "; ".join(sorted(set(cached)))
        return [
            f"Embeddings were read from the cache: {names}. Their times and energies are without the backbone's, so "
            "they are neither averaged with nor ranked beside those of runs that computed them."
        ]

    @property
    def data_notes(self) -> list[str]:
        """A sentence for each setting whose runs did not all have the same photos, by their fingerprints."""
        sentences = []
        for setting in self.settings:
            folders: dict[str, list[str]] = {}
            for run in (o.run for g in self.of(setting) for o in g.outcomes if o.run is not None):
                if run.summary.get("data_fingerprint"):
                    folders.setdefault(str(run.summary["data_fingerprint"]), []).append(str(run.folder))
            if len(folders) > 1:
                parts = "; ".join(f"{len(runs)} with {mark}, such as {runs[0]}" for mark, runs in folders.items())
                sentences.append(
                    f"Runs of {self.names[setting]} had different data, so their means are over more than seeds "
                    f"(by fingerprint: {parts})."
                )
        return sentences

    def seeds_note(self, groups: Iterable[Group]) -> str:
        """Return a note that says what the deviations are over: seeds, class orders, or both."""
        runs = [o.run for g in groups if g.kind == "measured" for o in g.outcomes if o.run is not None]
        orders = [run.config["data"].get("class_order") for run in runs]
        both = [order == run.seed and order is not None for run, order in zip(runs, orders, strict=True)]
        drawn = {repr(order) for order in orders}
        if runs and all(both):
            over = "a seed sets both seed_everything and the class order"
        elif len(drawn) == 1:
            over = "all runs have the same class order; a seed sets everything else that is drawn"
        else:
            over = "class orders and seeds vary, but not together: the table of runs has them"
        return f"Mean ± standard deviation over seeds; {over}."

    @property
    def notes(self) -> list[str]:
        """Notes about the backbones, once each."""
        return notes_of(self.settings)


def _rival(group: Group, references: Sequence[Group]) -> Group | None:
    """Return the reference that a group's energy may be divided by; None if there is none, or no single one."""
    if len(group.conditions) != 1:
        return None
    (own,) = group.conditions
    fitting = [r for r in references if (r.kind, r.conditions[0].comparable) == (group.kind, own.comparable)]
    near = [r for r in fitting if r.setting == group.setting]
    if not near and len({r.setting for r in fitting}) > 1:
        return None
    return next(iter(sorted(near or fitting, key=lambda r: r.conditions[0] != own)), None)


def _letter(i: int) -> str:
    return string.ascii_lowercase[i] if i < 26 else f"{string.ascii_lowercase[i % 26]}{i // 26}"


def notes_of(settings: Sequence[Setting]) -> list[str]:
    """Return the notes about the backbones of ``settings``, once each."""
    notes = [setting.note for setting in settings]
    return list(dict.fromkeys(note for note in notes if note))


def sources(groups: Sequence[Group]) -> str | None:
    """Return a sentence that says where the energies of groups come from; None if there are none."""
    names = sorted({group.energy_source for group in groups if group.energy_source})
    return f"Energy: {'; '.join(names)}." if names else None
