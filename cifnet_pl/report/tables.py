"""Make the tables of a report, in the paper's layout where the paper has the table."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from cifnet_pl.report.comparison import answer_sets_table
from cifnet_pl.report.memory import buffer_bytes_table, memory_table, scaling_tables
from cifnet_pl.report.outcomes import Group, Stat, fixed
from cifnet_pl.report.page import CONDITIONS, SEEDS, Cell, Column, Table
from cifnet_pl.report.runs import Run
from cifnet_pl.report.settings import Setting, heading, strategy_name, value_name
from cifnet_pl.report.study import ABLATIONS, Study, notes_of, sources

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


def accuracy_table(study: Study) -> Table:
    """Tabulate Ā and A_K of every method in every setting (tab:accuracy-results); one row is one configuration."""
    columns = [Column("method"), Column("numbers")]
    for setting in study.settings:
        columns += [Column(f"{study.names[setting]}: {header}", 2, "max") for header, _ in ACCURACY]
    by_setting = {s: {(g.label, g.kind): g for g in [*study.of(s), *study.published_in(s)]} for s in study.settings}
    compared = [group for setting in study.settings for group in study.with_published(setting)]
    keys = dict.fromkeys((group.label, group.kind) for group in sorted(compared, key=study.row_order))
    rows: list[list[Cell]] = []
    for key in keys:
        groups = [by_setting[setting].get(key) for setting in study.settings]
        cells: list[Cell] = [g.stat(name) if g else None for g in groups for _, name in ACCURACY]
        if any(cells):
            rows.append([*key, *cells])
    notes = [study.seeds_note(study.groups), BEST, *_published_notes(compared), *study.notes]
    return Table("accuracy", "Average accuracy Ā and final accuracy A_K in %", columns, rows, notes, _kinds(rows))


def _kinds(rows: Sequence[Sequence[Cell]]) -> list[str]:
    """Return the block of each row: measured rows are compared with measured ones, and so on."""
    return [str(row[1]) for row in rows]


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
    relative = study.energy_ratios(groups)
    columns = [
        Column("method"),
        Column("numbers"),
        Column(SEEDS),
        Column("network"),
        Column("network (M)", 2, "min", 1e-6, False),
        Column("epochs", 0, None, 1.0, False),
        Column("training (min)", None, "min", 1 / 60),
        Column("energy (kWh)", None, "min"),
        Column(f"energy ÷ {study.reference}", 3),
        Column("A_K (%)", 2, "max"),
        Column("A_K per kWh", None, "max"),
        Column("CO₂ (kg)", None, "min"),
        Column(CONDITIONS),
    ]
    letters = study.condition_letters(groups)
    rows: list[list[Cell]] = []
    for group, factor in zip(groups, relative, strict=True):
        before = [group.stat(name) for name in ("backbone_params", "epochs", "train_seconds", "energy_kwh")]
        after = [group.stat(name) for name in ("A_K", "A_K_per_kwh", "co2_kg")]
        seeds = "" if group.kind == "published" else str(group.seeds)
        letter = letters[group.kind, group.conditions[0].comparable]
        network = group.setting.network if group.kind == "measured" and len(beside) > 1 else ""
        rows.append([group.label, group.kind, seeds, network, *before, factor, *after, letter])
    legend = [f"{letter}: {text}." for letter, text in study.condition_words(groups).items()]
    notes = [
        "Training: all tasks, without evaluation. Epochs: passes over the images of a task. "
        f"Energy ÷ {study.reference}: among rows of the same conditions.",
        *([OTHER_NETWORKS.format(reference=study.reference)] if len(beside) > 1 else []),
        *legend,
        study.seeds_note(groups),
        f"{BEST} {COST_BEST}",
        *_published_notes(groups),
        *study.cache_note(groups),
        *notes_of(beside),
    ]
    blocks = [f"{row[1]} {row[3]}" for row in rows]  # where the numbers are from, and the network
    name = study.data_names[setting]
    title = f"Accuracy and energy: {name}"
    return Table(f"efficiency_{study.data_slug(setting)}", title, columns, rows, notes, blocks)


def _published_notes(groups: Sequence[Group]) -> list[str]:
    names = {group.name for group in groups if group.kind == "published"}
    return [*([PUBLISHED] if names else []), *([PUBLISHED_DER] if "DER" in names else [])]


def ablation_table(study: Study) -> Table:
    """Tabulate the method without one of its parts at a time (tab:ablation)."""
    families = study.varied(*ABLATIONS)
    settings = [s for s in study.settings if any(family[0].setting == s for family in families)]
    columns = [Column("variant"), Column("numbers")]
    cells: dict[tuple[str, str, str], dict[tuple[Setting, str], Stat | None]] = {}
    for family in families:
        for group in family:
            row = cells.setdefault((family[0].label, group.variant, "measured"), {})
            row.update({(group.setting, name): group.stat(name) for _, name in ACCURACY})
    for setting in settings:
        columns += [Column(f"{study.names[setting]}: {header}", 2, "max") for header, _ in ACCURACY]
        for _, name in ACCURACY:
            for variant, value in study.published_of("tab:ablation", setting, name).items():
                cells.setdefault(("CIFNet", variant or "full method", "published"), {})[setting, name] = value
    rows: list[list[Cell]] = [
        [f"{method}, {variant}", kind, *(row.get((s, name)) for s in settings for _, name in ACCURACY)]
        for (method, variant, kind), row in cells.items()
    ]
    groups = [group for family in families for group in family]
    published = [PUBLISHED] if any(key[2] == "published" for key in cells) else []
    departure = (
        "Old neurons are updated with each new task in the full method, as in the authors' released code; the paper "
        "says that they are locked."
    )
    footnotes = [departure] if any("locked" in variant for _, variant, _ in cells) else []
    notes = [study.seeds_note(groups), BEST, *footnotes, *published, *notes_of(settings)]
    blocks = [f"{kind} {method}" for method, _, kind in cells]
    return Table("ablation", "The method without one of its parts", columns, rows, notes, blocks)


def value_table(study: Study, key: str, name: str) -> Table:
    """Tabulate the final accuracy for each value of one setting (fig:buffer_ablation for the size of the buffer).

    Args:
        study: all results.
        key: dotted name of the setting.
        name: of the table's files.
    """
    families = study.varied(key)
    values = {str(g.config.get(key)): g.config.get(key) for family in families for g in family}
    ordered = sorted(
        values.values(), key=lambda v: (not isinstance(v, int | float), v if isinstance(v, int | float) else 0, str(v))
    )
    columns = [Column(heading(key))]
    columns += [Column(f"{study.names[f[0].setting]}: {f[0].label}", 2, "max") for f in families]
    rows: list[list[Cell]] = []
    for value in ordered:
        members = [next((g for g in family if g.config.get(key) == value), None) for family in families]
        rows.append([value_name(key, value), *(g.stat("A_K") if g else None for g in members)])
    groups = [group for family in families for group in family]
    notes = [study.seeds_note(groups), BEST, *notes_of([family[0].setting for family in families])]
    return Table(name, f"Final accuracy A_K in % by {heading(key)}", columns, rows, notes)


def sampling_table(study: Study) -> Table:
    """Tabulate final accuracy for each strategy of the buffer (tab:sampling), with the paper's numbers beside it."""
    table = value_table(study, "buffer.strategy", "sampling")
    families = study.varied("buffer.strategy")
    for setting in dict.fromkeys(family[0].setting for family in families):
        values = study.published_of("tab:sampling", setting, "A_K")
        if values:
            table.columns.append(Column(f"{study.names[setting]}: CIFNet (published)", 2))
            by_name = {strategy_name(variant): value for variant, value in values.items()}
            for row in table.rows:
                row.append(by_name.get(str(row[0])))
            table.notes.insert(0, "Columns marked published are the paper's own numbers, not measured here.")
    return table


def results_table(study: Study, setting: Setting) -> Table:
    """Tabulate everything that was measured in one setting; what a page has no room for are further columns."""
    further = partial(Column, further=True)
    columns = [
        Column("method"), Column("numbers"), Column(SEEDS), Column("Ā (%)", 2, "max"), Column("A_K (%)", 2, "max"),
        further("top-5 (%)", 2, "max"), Column("forgetting (%)", 2, "min"), further("backward transfer (%)", 2, "max"),
        further("forward transfer (%)", 2, "max"), further("largest drop (%)", 2, "min"), Column("ECE (%)", 2, "min"),
        Column("NLL", 3, "min"), further("answers at 95 % (classes)", 2, "min"), further("covered (%)", 2),
        further("called unknown at 5 % (%)", 2), further("unknown: AUROC (%)", 2, "max"),
        further("unknown: FPR95 (%)", 2, "min"), Column("training (min)", None, "min", 1 / 60),
        Column("energy (kWh)", None, "min"), further("CO₂ (kg)", None, "min"), Column(CONDITIONS),
    ]  # fmt: skip
    keys = ("A_bar", "A_K", "top5", "forgetting", "bwt", "forward_transfer", "max_drop", "ece", "nll",
            "set_size", "set_coverage", "called_unknown", "unknown_auroc", "unknown_fpr95",
            "train_seconds", "energy_kwh", "co2_kg")  # fmt: skip
    groups = study.of(setting)
    letters = study.condition_letters(groups)
    rows: list[list[Cell]] = [
        [g.label, g.kind, str(g.seeds), *(g.stat(name) for name in keys),
         ", ".join(dict.fromkeys(letters[g.kind, own.comparable] for own in g.conditions))]
        for g in groups
    ]  # fmt: skip
    several = [group.label for group in groups if len(group.conditions) > 1]
    mixed = (
        [f"Seeds of {'; '.join(several)} ran under different conditions: their costs stand in the table of efficiency."]
        if several
        else []
    )
    legend = [f"{letter}: {text}." for letter, text in study.condition_words(groups).items()]
    notes = [f"{setting.title}.", *legend, *mixed, study.seeds_note(groups), f"{BEST} {COST_BEST}"]
    notes += [*study.cache_note(groups), *([setting.note] if setting.note else [])]
    title = f"All results: {study.names[setting]}"
    return Table(f"results_{study.slug(setting)}", title, columns, rows, notes, _kinds(rows))


def settings_table(study: Study) -> Table:
    """Tabulate the reference configuration of each method in each setting."""
    rows: list[list[Cell]] = []
    for group in (g for g in study.groups if g.is_reference):
        shown = {k: v for k, v in group.config.items() if k.startswith(("head.", "buffer.")) or k == "buffer"}
        if str(group.head).endswith("Module"):  # it has no head, and settings of its own
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
    for group in study.groups:
        for outcome in group.outcomes:
            values: list[Cell] = [fixed(outcome.values.get(n)) for _, n in ACCURACY]
            seed = "" if outcome.seed is None else str(outcome.seed)
            order = "" if outcome.run is None else _class_order(outcome.run)
            about = outcome.run.summary if outcome.run else {}
            commit = str(about.get("git_commit") or "")[:10]
            folder = str(outcome.run.folder) if outcome.run else "external file"
            rows.append([study.names[group.setting], group.label, seed, order, *values, outcome.conditions.machine,
                         sources([group]) and outcome.conditions.source, commit, folder])  # fmt: skip
    headers = ("setting", "method", "seed", "class order", "Ā (%)", "A_K (%)", "machine", "energy measured by",
               "commit", "folder")  # fmt: skip
    return Table("runs", "Runs", [Column(header) for header in headers], rows)
