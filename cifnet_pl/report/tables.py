"""Make the tables of a report, in the paper's layout where the paper has the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from cifnet_pl.report.external_results import published_of
from cifnet_pl.report.memory import buffer_bytes_table, memory_table, scaling_tables
from cifnet_pl.report.page import CONDITIONS, SEEDS, Cell, Column, Table
from cifnet_pl.report.runs import Run
from cifnet_pl.report.settings import LACKING, Setting, heading, notes_of, value_name
from cifnet_pl.report.significance import Stat, fixed, stat_of
from cifnet_pl.report.study import Group, Study, by_size, method_order
from cifnet_pl.utilities.text import printable

BEST = (
    "Bold: in the order of their means, the measured rows of the same setting before the first one that another row is "
    "better than by a paired test, or that no test covers. Over common seeds it is a t-test (5 %), for A_K of single "
    "runs (or of runs that no seed changes) that kept their predictions McNemar's test over the same test images. "
    "Nothing is bold where no difference can be told from chance."
)
COST_BEST = (
    "Costs are ranked only among rows of the same machine, the same way to measure and the same use of the cache."
)
OTHER_NETWORKS = (
    "Networks differ: bold compares rows of the same network only; an energy is divided by that of {reference} on the "
    "same network, else on the only other one."
)
PUBLISHED = (
    "Rows marked published are the paper's own numbers (accuracies are means of three seeds), not measured here."
)
PUBLISHED_DER = (
    "The paper's row DER cites Dark Experience Replay, but its numbers of parameters, about twenty times one network, "
    "are those of the dynamically expandable network (Yan et al. 2021)."
)
LOCKED = (
    "Old neurons are updated with each new task in the full method, as in the authors' released code; the paper "
    "says that they are locked."
)
ACCURACY = (("Ā", "A_bar"), ("A_K", "A_K"))


def all_tables(study: Study) -> dict[str, list[Table]]:
    """Make all tables.

    Returns:
        Section of the report → its tables; sections without tables are left out.
    """
    each = study.settings
    sections = {
        "Accuracy": [accuracy_table(study)],
        "Efficiency": [efficiency_table(study, s) for s in study.data_names],
        "Memory": [*(memory_table(study, s) for s in each), buffer_bytes_table(study), *scaling_tables(study)],
        "Ablation": [ablation_table(study)],
        "Buffer": [value_table(study, "buffer.capacity", "buffer_size"), sampling_table(study)],
        "Other settings": [value_table(study, key, key.replace(".", "_")) for key in study.other_keys()],
        "Sets of answers": [answer_sets_table(study, s) for s in each],
        "All results": [results_table(study, s) for s in each],
        "Settings": [settings_table(study)],
        "Runs": [runs_table(study)],
    }
    kept = {name: [table.without_empty() for table in tables if table.rows] for name, tables in sections.items()}
    return {name: tables for name, tables in kept.items() if tables}


# ---------------------------------------------------------------------- accuracy

Accuracies = Mapping[tuple[Setting, str], Stat | None]
"""(setting, key of ``ACCURACY``) → number."""


def _accuracies(
    study: Study, first: str, rows: Mapping[tuple[str, str], Accuracies]
) -> tuple[list[Column], list[list[Cell]]]:
    """Return columns and rows of a table with Ā and A_K in each setting.

    Args:
        study: all results.
        first: header of the first column.
        rows: text of the first column and kind → numbers.
    """
    cells = [(setting, key) for setting in study.settings for _, key in ACCURACY]
    columns = [Column(first), Column("numbers")]
    for setting in study.settings:
        columns += [Column(f"{study.names[setting]}: {header}", 2, "max") for header, _ in ACCURACY]
    shown = {key: [numbers.get(cell) for cell in cells] for key, numbers in rows.items()}
    return columns, [[*key, *numbers] for key, numbers in shown.items() if any(numbers)]


def _row_order(group: Group) -> tuple[object, ...]:
    """Return the sort key of a row for several settings: measured, external, published in the paper's order."""
    kind, position, name = method_order(group)
    return (kind, *((position, name, len(group.named), group.label) if group.kind == "measured" else ()))


def accuracy_table(study: Study) -> Table:
    """Tabulate Ā and A_K of every method in every setting (tab:accuracy-results); one row is one configuration."""
    compared = [group for setting in study.settings for group in study.with_published(setting)]
    shown: dict[tuple[str, str], dict[tuple[Setting, str], Stat | None]] = {
        (group.label, group.kind): {} for group in sorted(compared, key=_row_order)
    }
    for group in [*study.groups, *study.published]:
        row = shown.get((group.label, group.kind), {})
        row.update({(group.setting, key): group.stat(key) for _, key in ACCURACY})
    columns, rows = _accuracies(study, "method", shown)
    notes = [study.seeds_note(study.groups), BEST, *_published_notes(compared), *notes_of(study.settings)]
    title = "Average accuracy Ā and final accuracy A_K in %"
    return Table("accuracy", title, columns, rows, notes, [str(row[1]) for row in rows])


def _published_notes(groups: Sequence[Group]) -> list[str]:
    names = {group.name for group in groups if group.kind == "published"}
    return [*([PUBLISHED] if names else []), *([PUBLISHED_DER] if "DER" in names else [])]


def ablation_table(study: Study) -> Table:
    """Tabulate the method without one of its parts at a time (tab:ablation)."""
    families = study.varied(*LACKING)
    settings = [s for s in study.settings if any(family[0].setting == s for family in families)]
    shown: dict[tuple[str, str], dict[tuple[Setting, str], Stat | None]] = {}
    blocks: dict[tuple[str, str], str] = {}
    for method, variant, group in ((family[0].label, group.variant, group) for family in families for group in family):
        row = shown.setdefault((f"{method}, {variant}", "measured"), {})
        row.update({(group.setting, key): group.stat(key) for _, key in ACCURACY})
        blocks[f"{method}, {variant}", "measured"] = f"measured {method}"
    for setting, key in ((setting, key) for setting in settings for _, key in ACCURACY):
        for variant, value in published_of("tab:ablation", setting, key).items():
            shown.setdefault((f"CIFNet, {variant or 'full method'}", "published"), {})[setting, key] = value
    columns, rows = _accuracies(study, "variant", shown)
    groups = [group for family in families for group in family]
    notes = [study.seeds_note(groups), BEST]
    notes += [LOCKED] if any("locked" in variant for variant, _ in shown) else []
    notes += [PUBLISHED] if any(kind == "published" for _, kind in shown) else []
    notes += notes_of(settings)
    return Table(
        "ablation", "The method without one of its parts", columns, rows, notes,
        [blocks.get((str(row[0]), str(row[1])), "published") for row in rows],
    )  # fmt: skip


def value_table(study: Study, key: str, name: str) -> Table:
    """Tabulate the final accuracy for each value of one setting (fig:buffer_ablation for the size of the buffer).

    Args:
        study: all results.
        key: dotted name of the setting.
        name: of the table's files.
    """
    families = study.varied(key)
    groups = [group for family in families for group in family]
    values = sorted({str(g.config.get(key)): g.config.get(key) for g in groups}.values(), key=by_size)
    columns = [Column(heading(key))]
    columns += [Column(f"{study.names[f[0].setting]}: {f[0].label}", 2, "max") for f in families]
    rows: list[list[Cell]] = []
    for value in values:
        members = [next((g for g in family if g.config.get(key) == value), None) for family in families]
        rows.append([value_name(key, value), *(g.stat("A_K") if g else None for g in members)])
    notes = [study.seeds_note(groups), BEST, *notes_of([family[0].setting for family in families])]
    return Table(name, f"Final accuracy A_K in % by {heading(key)}", columns, rows, notes)


def sampling_table(study: Study) -> Table:
    """Tabulate final accuracy for each strategy of the buffer (tab:sampling), with the paper's numbers beside it."""
    key = "buffer.strategy"
    table = value_table(study, key, "sampling")
    for setting in dict.fromkeys(family[0].setting for family in study.varied(key)):
        published = {value_name(key, v): stat for v, stat in published_of("tab:sampling", setting, "A_K").items()}
        if published:
            table.columns.append(Column(f"{study.names[setting]}: CIFNet (published)", 2))
            table.rows = [[*row, published.get(str(row[0]))] for row in table.rows]
            table.notes.insert(0, "Columns marked published are the paper's own numbers, not measured here.")
    return table


# ---------------------------------------------------------------------- accuracy and costs

EFFICIENCY = (
    ("backbone_params", Column("network (M)", 2, "min", 1e-6, False)),
    ("epochs", Column("epochs", 0, None, 1.0, False)),
    ("train_seconds", Column("training (min)", None, "min", 1 / 60)),
    ("energy_kwh", Column("energy (kWh)", None, "min")),
    ("ratio", Column("energy ÷ {reference}", 3)),
    ("A_K", Column("A_K (%)", 2, "max")),
    ("A_K_per_kwh", Column("A_K per kWh", None, "max")),
    ("co2_kg", Column("CO₂ (kg)", None, "min")),
)
RESULTS = (
    ("A_bar", Column("Ā (%)", 2, "max")),
    ("A_K", Column("A_K (%)", 2, "max")),
    ("top5", Column("top-5 (%)", 2, "max", further=True)),
    ("forgetting", Column("forgetting (%)", 2, "min")),
    ("bwt", Column("backward transfer (%)", 2, "max", further=True)),
    ("forward_transfer", Column("forward transfer (%)", 2, "max", further=True)),
    ("max_drop", Column("largest drop (%)", 2, "min", further=True)),
    ("ece", Column("ECE (%)", 2, "min")),
    ("nll", Column("NLL", 3, "min")),
    ("set_size", Column("answers at 95 % (classes)", 2, "min", further=True)),
    ("set_coverage", Column("covered (%)", 2, further=True)),
    ("called_unknown", Column("called unknown at 5 % (%)", 2, further=True)),
    ("unknown_auroc", Column("unknown: AUROC (%)", 2, "max", further=True)),
    ("unknown_fpr95", Column("unknown: FPR95 (%)", 2, "min", further=True)),
    ("train_seconds", Column("training (min)", None, "min", 1 / 60)),
    ("energy_kwh", Column("energy (kWh)", None, "min")),
    ("co2_kg", Column("CO₂ (kg)", None, "min", further=True)),
)
"""Value of a group and its column, of the two tables that have both."""


def efficiency_table(study: Study, setting: Setting) -> Table:
    """Tabulate parameters, minutes, energy and A_K per kWh (tab:cifar100-efficiency, tab:imagenet100-efficiency).

    A configuration whose seeds ran under different conditions has one row for each condition. Networks that learned the
    same data stand in one table, where only rows of the same network are ranked.

    Args:
        study: all results.
        setting: one of ``study.data_names``.
    """
    beside = study.on_the_same_data(setting)
    groups = [
        alike for group in study.of_all_networks(setting) for alike in group.by_conditions()
        if alike.stat("energy_kwh") or alike.stat("train_seconds")
    ]  # fmt: skip
    said = study.conditions_of(groups)
    rows: list[list[Cell]] = []
    for group, factor in zip(groups, study.energy_ratios(groups), strict=True):
        seeds = "" if group.kind == "published" else str(group.seeds)
        network = group.setting.network if group.kind == "measured" and len(beside) > 1 else ""
        numbers = [factor if key == "ratio" else group.stat(key) for key, _ in EFFICIENCY]
        letter, _ = said[group.kind, group.conditions[0].comparable]
        rows.append([group.label, group.kind, seeds, network, *numbers, letter])
    shown = [replace(column, header=column.header.format(reference=study.reference)) for _, column in EFFICIENCY]
    columns = [*map(Column, ("method", "numbers", SEEDS, "network")), *shown, Column(CONDITIONS)]
    notes = [
        "Training: all tasks, without evaluation. Epochs: passes over the images of a task. "
        f"Energy ÷ {study.reference}: among rows of the same conditions.",
        *([OTHER_NETWORKS.format(reference=study.reference)] if len(beside) > 1 else []),
        *(f"{letter}: {text}." for letter, text in said.values()),
        study.seeds_note(groups),
        f"{BEST} {COST_BEST}",
        *_published_notes(groups),
        *study.cache_note(groups),
        *notes_of(beside),
    ]
    blocks = [f"{row[1]} {row[3]}" for row in rows]  # where the numbers are from, and the network
    title = f"Accuracy and energy: {study.data_names[setting]}"
    return Table(f"efficiency_{study.data_slug(setting)}", title, columns, rows, notes, blocks)


def results_table(study: Study, setting: Setting) -> Table:
    """Tabulate everything that was measured in one setting; what a page has no room for are further columns."""
    groups = study.of(setting)
    said = study.conditions_of(groups)
    rows: list[list[Cell]] = []
    for group in groups:
        letters = dict.fromkeys(said[group.kind, own.comparable][0] for own in group.conditions)
        numbers = [group.stat(key) for key, _ in RESULTS]
        rows.append([group.label, group.kind, str(group.seeds), *numbers, ", ".join(letters)])
    columns = [*map(Column, ("method", "numbers", SEEDS)), *(column for _, column in RESULTS), Column(CONDITIONS)]
    notes = [f"{setting.title}.", *(f"{letter}: {text}." for letter, text in said.values())]
    mixed = "; ".join(group.label for group in groups if len(group.conditions) > 1)
    if mixed:
        notes.append(f"Seeds of {mixed} ran under different conditions: their costs stand in the table of efficiency.")
    notes += [study.seeds_note(groups), f"{BEST} {COST_BEST}", *study.cache_note(groups), *notes_of([setting])]
    title = f"All results: {study.names[setting]}"
    return Table(f"results_{study.slug(setting)}", title, columns, rows, notes, [group.kind for group in groups])


# ---------------------------------------------------------------------- single classes, settings and runs


def answer_sets_table(study: Study, setting: Setting) -> Table:
    """Tabulate coverage and mean size of the sets of answers at 95 % of each class, the least covered first.

    Args:
        study: all results.
        setting: whose calibrated runs are shown.
    """
    columns = [Column("class")]
    by_class: dict[str, dict[str, Stat | None]] = {}
    calibrated = [g for g in study.of(setting) if any(o.run is not None and o.run.answer_sets for o in g.outcomes)]
    for group in calibrated:
        sets = {o.key: o.run.answer_sets for o in group.outcomes if o.run is not None}
        headers = [f"{group.label}: covered (%)", f"{group.label}: classes"]
        columns += [Column(header, 1) for header in headers]
        for name in {name for own in sets.values() for name in own}:
            for i, header in enumerate(headers):
                values = {key: own[name][i] if name in own else None for key, own in sets.items()}
                by_class.setdefault(name, {})[header] = stat_of(values)

    def coverage(name: str) -> list[float]:
        """Return what each group covers of a class."""
        stats = [by_class[name].get(column.header) for column in columns[1::2]]
        return [100.0 if stat is None else stat.mean for stat in stats]

    rows: list[list[Cell]] = [
        [printable(name), *(by_class[name].get(column.header) for column in columns[1:])]
        for name in sorted(sorted(by_class), key=coverage)
    ]
    notes = [
        "Of the test images of a class, how many have it among the answers, and how many classes are among these. The "
        "answers are to hold the right class of 95 % of all images; single classes may lie above or below.",
        study.seeds_note(calibrated),
    ]
    title = f"Sets of answers at 95 %, by class: {study.names[setting]}"
    return Table(f"answer_sets_{study.slug(setting)}", title, columns, rows, notes)


def settings_table(study: Study) -> Table:
    """Tabulate the reference configuration of each method in each setting."""
    rows: list[list[Cell]] = []
    for group in (g for g in study.groups if g.is_reference):
        shown = {k: v for k, v in group.config.items() if k.startswith(("head.", "buffer.")) or k == "buffer"}
        if str(group.config["head"]).endswith("Module"):  # it has no head, and settings of its own
            shown = {k: v for k, v in group.config.items() if "." not in k and k not in ("module", "head", "download")}
        if shown.get("buffer") == "yes":
            del shown["buffer"]
        text = "; ".join(f"{heading(key)}: {value_name(key, value)}" for key, value in sorted(shown.items()))
        rows.append([group.setting.title, group.label, text])
    columns = [Column("setting"), Column("method"), Column("reference configuration")]
    return Table("settings", "What a method's name stands for; variants say what they change", columns, rows)


def _class_order(run: Run) -> str:
    """Return the number that the class order was drawn from; "given" for a list of classes."""
    order = run.config["data"].get("class_order")
    return "as it is" if order is None else "given" if isinstance(order, list) else str(order)


def runs_table(study: Study) -> Table:
    """Tabulate every run that was used, with its folder and its machine."""
    rows: list[list[Cell]] = []
    for group, outcome in [(g, outcome) for g in study.groups for outcome in g.outcomes]:
        run, conditions = outcome.run, outcome.conditions
        seed = "" if outcome.seed is None else str(outcome.seed)
        source = None if outcome.values.get("energy_kwh") is None else conditions.source
        commit = str(run.summary.get("git_commit") or "")[:10] if run else ""
        rows.append([
            study.names[group.setting], group.label, seed, _class_order(run) if run else "",
            *(fixed(outcome.values.get(key)) for _, key in ACCURACY), conditions.machine, source, commit,
            str(run.folder) if run else "external file",
        ])  # fmt: skip
    headers = ("setting", "method", "seed", "class order", "Ā (%)", "A_K (%)", "machine", "energy measured by",
               "commit", "folder")  # fmt: skip
    return Table("runs", "Runs", [Column(header) for header in headers], rows)
