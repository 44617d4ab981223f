"""Make the tables of a report, in the paper's layout where the paper has the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from cifnet_pl.report.external_results import published_of
from cifnet_pl.report.page import CONDITIONS, SEEDS, Cell, Column, Table
from cifnet_pl.report.runs import Run
from cifnet_pl.report.settings import LACKING, Setting, heading, value_name
from cifnet_pl.report.significance import SHARED, Stat, fixed
from cifnet_pl.report.study import Conditions, Group, Study, by_size, method_order
from cifnet_pl.utilities.files import rendered

NOTES = Path(__file__).parent / "templates" / "notes.txt"
COUNTED = f"{SHARED}: other processes counted in these times and energies, which are not ranked."
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
        "Memory": [memory_table(study, s) for s in each],
        "Ablation": [ablation_table(study)],
        "Buffer": [value_table(study, "buffer.capacity", "buffer_size"), sampling_table(study)],
        "Other settings": [
            value_table(study, key, key.replace(".", "_")) for key in study.other_keys()
        ],
        "All results": [results_table(study, s) for s in each],
        "Settings": [settings_table(study)],
        "Runs": [runs_table(study)],
    }
    kept = {
        name: [table.without_empty() for table in tables if table.rows]
        for name, tables in sections.items()
    }
    return {name: tables for name, tables in kept.items() if tables}


def report_notes(study: Study) -> list[str]:
    """Return what a reader must know of more than one table; each stands once, at the end of the
    report.
    """
    measured = [group for group in study.groups if group.kind == "measured"]
    text = rendered(
        NOTES,
        published=bool(study.published),
        locked=any(group.config.get("head.update_past") is False for group in measured),
        energy=any(
            outcome.values.get("energy_kwh") for group in measured for outcome in group.outcomes
        ),
        networks=len(study.data_names) < len(study.settings),
    )
    return [" ".join(paragraph.split()) for paragraph in text.split("\n\n") if paragraph.strip()]


# ---------------------------------------------------------------------- accuracy


Entry = tuple[tuple[str, str], str, Stat | None]
"""The texts of a row, the header of a column, and the number that stands there."""


def _accuracies(
    study: Study, first: str, entries: Iterable[Entry]
) -> tuple[list[Column], list[list[Cell]]]:
    """Return the columns Ā and A_K of each setting, after one headed ``first``, and the rows that
    have a number.
    """
    columns = [
        Column(f"{study.names[s]}: {header}", 2, "max")
        for s in study.settings
        for header, _ in ACCURACY
    ]
    rows: dict[tuple[str, str], dict[str, Stat | None]] = {}
    for texts, header, stat in entries:
        rows.setdefault(texts, {})[header] = stat
    shown: list[list[Cell]] = [
        [*texts, *(numbers.get(column.header) for column in columns)]
        for texts, numbers in rows.items()
        if any(numbers.values())
    ]
    return [Column(first), Column("numbers"), *columns], shown


def _entries(study: Study, texts: tuple[str, str], group: Group) -> list[Entry]:
    return [
        (texts, f"{study.names[group.setting]}: {header}", group.stat(key))
        for header, key in ACCURACY
    ]


def _row_order(group: Group) -> tuple[object, ...]:
    """Return the sort key of a row for several settings: measured, external, published in the
    paper's order.
    """
    kind, position, name = method_order(group)
    return (
        kind,
        *((position, name, len(group.named), group.label) if group.kind == "measured" else ()),
    )


def accuracy_table(study: Study) -> Table:
    """Tabulate Ā and A_K of every method in every setting (tab:accuracy-results); one row is one
    configuration.
    """
    compared = [group for setting in study.settings for group in study.with_published(setting)]
    every = [*study.groups, *study.published]
    shown = dict.fromkeys((group.label, group.kind) for group in sorted(compared, key=_row_order))
    columns, rows = _accuracies(
        study, "method",
        [
            entry for texts in shown for group in every if (group.label, group.kind) == texts
            for entry in _entries(study, texts, group)
        ],
    )  # fmt: skip
    title = "Average accuracy Ā and final accuracy A_K in %"
    notes = [study.seeds_note(study.groups)]
    return Table("accuracy", title, columns, rows, notes, [str(row[1]) for row in rows])


def ablation_table(study: Study) -> Table:
    """Tabulate the method without one of its parts at a time (tab:ablation)."""
    families = study.varied(*LACKING)
    settings = [s for s in study.settings if any(family[0].setting == s for family in families)]
    entries = []
    blocks = {}
    for reference, group in [(family[0], group) for family in families for group in family]:
        name = f"{reference.label}, {group.variant}"
        entries += _entries(study, (name, "measured"), group)
        blocks[name, "measured"] = f"measured {reference.label}"
    published: list[Entry] = [
        (
            (f"CIFNet, {variant or 'full method'}", "published"),
            f"{study.names[setting]}: {header}",
            value,
        )
        for setting in settings
        for header, key in ACCURACY
        for variant, value in published_of("tab:ablation", setting, key).items()
    ]
    columns, rows = _accuracies(study, "variant", entries + published)
    notes = [study.seeds_note([group for family in families for group in family])]
    row_blocks = [blocks.get((str(row[0]), str(row[1])), "published") for row in rows]
    return Table(
        "ablation", "The method without one of its parts", columns, rows, notes, row_blocks
    )


def value_table(study: Study, key: str, name: str) -> Table:
    """Tabulate the final accuracy for each value of one setting (fig:buffer_ablation for the size
    of the buffer).

    Args:
        study: all results.
        key: dotted name of the setting.
        name: of the table's files.
    """
    families = study.varied(key)
    groups = [group for family in families for group in family]
    values = sorted(
        {str(g.config.get(key)): g.config.get(key) for g in groups}.values(), key=by_size
    )
    columns = [Column(heading(key))]
    columns += [Column(f"{study.names[f[0].setting]}: {f[0].label}", 2, "max") for f in families]
    rows: list[list[Cell]] = []
    for value in values:
        members = [
            next((g for g in family if g.config.get(key) == value), None) for family in families
        ]
        rows.append([value_name(value), *(g.stat("A_K") if g else None for g in members)])
    return Table(
        name,
        f"Final accuracy A_K in % by {heading(key)}",
        columns,
        rows,
        [study.seeds_note(groups)],
    )


def sampling_table(study: Study) -> Table:
    """Tabulate final accuracy for each strategy of the buffer (tab:sampling), with the paper's
    numbers beside it.
    """
    key = "buffer.strategy"
    table = value_table(study, key, "sampling")
    for setting in dict.fromkeys(family[0].setting for family in study.varied(key)):
        published = {
            value_name(v): stat for v, stat in published_of("tab:sampling", setting, "A_K").items()
        }
        if published:
            table.columns.append(Column(f"{study.names[setting]}: CIFNet (published)", 2))
            table.rows = [[*row, published.get(str(row[0]))] for row in table.rows]
    return table


# ---------------------------------------------------------------------- accuracy and costs

EFFICIENCY = (
    ("backbone_params", Column("network (M)", 2, "min", 1e-6, False)),
    ("epochs", Column("epochs", 0, None, 1.0, False)),
    ("train_seconds", Column("training (min)", None, "min", 1 / 60)),
    ("energy_kwh", Column("energy (kWh)", None, "min")),
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


def _conditions_notes(said: Mapping[tuple[str, Conditions], tuple[str, str]]) -> list[str]:
    """Return what the letters of :meth:`Study.conditions_of` stand for."""
    counted = any(SHARED in letter for letter, _ in said.values())
    return [
        *(f"{letter}: {text}." for letter, text in said.values()),
        *([COUNTED] if counted else []),
    ]


def efficiency_table(study: Study, setting: Setting) -> Table:
    """Tabulate parameters, minutes, energy and A_K per kWh (tab:cifar100-efficiency,
    tab:imagenet100-efficiency).

    A configuration whose seeds ran under different conditions has one row for each condition.
    Networks that learned the same data stand in one table, where only rows of the same network are
    ranked.

    Args:
        study: all results.
        setting: one of ``study.data_names``.
    """
    beside = study.on_the_same_data(setting)
    groups = [
        alike for group in study.with_published(*study.on_the_same_data(setting)) for alike in group.by_conditions()
        if alike.stat("energy_kwh") or alike.stat("train_seconds")
    ]  # fmt: skip
    said = study.conditions_of(groups)
    rows: list[list[Cell]] = []
    for group in groups:
        seeds = "" if group.kind == "published" else str(group.seeds)
        if group.kind == "measured" and len(beside) > 1:
            network = group.setting.network
        else:
            network = ""
        numbers = [group.stat(key) for key, _ in EFFICIENCY]
        letter, _ = said[group.kind, group.conditions[0]]
        rows.append([group.label, group.kind, seeds, network, *numbers, letter])
    columns = [
        *map(Column, ("method", "numbers", SEEDS, "network")),
        *(column for _, column in EFFICIENCY),
    ]
    columns.append(Column(CONDITIONS))
    notes = [
        *_conditions_notes(
            said
        ),  # first, where a caption has room: letters mean something in this table alone
        "Training: all tasks, without evaluation. Epochs: passes over the images of a task.",
        study.seeds_note(groups),
    ]
    blocks = [f"{row[1]} {row[3]}" for row in rows]  # where the numbers are from, and the network
    title = f"Accuracy and energy: {study.data_names[setting]}"
    return Table(f"efficiency_{study.data_slug(setting)}", title, columns, rows, notes, blocks)


def results_table(study: Study, setting: Setting) -> Table:
    """Tabulate everything that was measured in one setting; what a page has no room for are further
    columns.
    """
    groups = study.of(setting)
    said = study.conditions_of(groups)
    rows: list[list[Cell]] = []
    for group in groups:
        letters = dict.fromkeys(said[group.kind, own][0] for own in group.conditions)
        numbers = [group.stat(key) for key, _ in RESULTS]
        rows.append([group.label, group.kind, str(group.seeds), *numbers, ", ".join(letters)])
    columns = [
        *map(Column, ("method", "numbers", SEEDS)),
        *(column for _, column in RESULTS),
        Column(CONDITIONS),
    ]
    notes = [f"{setting.title}.", *_conditions_notes(said)]
    mixed = "; ".join(group.label for group in groups if len(group.conditions) > 1)
    if mixed:
        notes.append(
            f"Seeds of {mixed} ran under different conditions: their costs stand in the table of"
            " efficiency."
        )
    notes.append(study.seeds_note(groups))
    title = f"All results: {study.names[setting]}"
    return Table(
        f"results_{study.slug(setting)}",
        title,
        columns,
        rows,
        notes,
        [group.kind for group in groups],
    )


# ---------------------------------------------------------------------- settings and runs


def settings_table(study: Study) -> Table:
    """Tabulate the reference configuration of each method in each setting."""
    rows: list[list[Cell]] = []
    for group in (g for g in study.groups if g.is_reference):
        shown = {
            k: v
            for k, v in group.config.items()
            if k.startswith(("head.", "buffer.")) or k == "buffer"
        }
        if not group.frozen:  # it has no head, and settings of its own
            shown = {
                k: v
                for k, v in group.config.items()
                if "." not in k and k not in ("module", "head", "download")
            }
        if shown.get("buffer") == "yes":
            del shown["buffer"]
        text = "; ".join(f"{key}: {value_name(value)}" for key, value in sorted(shown.items()))
        rows.append([group.setting.title, group.label, text])
    columns = [Column("setting"), Column("method"), Column("reference configuration")]
    return Table(
        "settings", "What a method's name stands for; variants say what they change", columns, rows
    )


def _class_order(run: Run) -> str:
    """Return the number that the class order was drawn from; "given" for a list of classes."""
    order = run.config["data"].get("class_order")
    if order is None:
        return "as it is"
    if isinstance(order, list):
        return "given"
    return str(order)


def runs_table(study: Study) -> Table:
    """Tabulate every run that was used, with its folder and its machine."""
    rows: list[list[Cell]] = []
    for group, outcome in [(g, outcome) for g in study.groups for outcome in g.outcomes]:
        run = outcome.run
        conditions = outcome.conditions
        seed = "" if outcome.seed is None else str(outcome.seed)
        source = None if outcome.values.get("energy_kwh") is None else conditions.source
        if run:
            commit = str(run.summary.get("git_commit") or "")[:10]
        else:
            commit = ""
        rows.append([
            study.names[group.setting], group.label, seed, _class_order(run) if run else "",
            *(fixed(outcome.values.get(key)) for _, key in ACCURACY), conditions.machine, source, commit,
            str(run.folder) if run else "external file",
        ])  # fmt: skip
    headers = ("setting", "method", "seed", "class order", "Ā (%)", "A_K (%)", "machine", "energy measured by",
               "commit", "folder")  # fmt: skip
    return Table("runs", "Runs", [Column(header) for header in headers], rows)


# ---------------------------------------------------------------------- memory


def memory_table(study: Study, setting: Setting) -> Table:
    """Tabulate the numbers kept between tasks by component, and the bytes as they are stored.

    The backbone has a row of its own.

    Args:
        study: all results.
        setting: whose groups are listed.
    """
    groups = [group for group in study.with_published(setting) if group.stat("kept_elements")]
    parts = list(dict.fromkeys(component for group in groups for component in group.components))
    columns = [
        Column("method"), Column("numbers"),
        *(Column(f"{component} (M)", None, None, 1e-6, False) for component in parts),
        Column("total (M)", None, "min", 1e-6, False), Column("stored (MB)", None, "min", 1e-6, False),
        Column("backbone (M)", 2, None, 1e-6, False),
    ]  # fmt: skip
    rows: list[list[Cell]] = []
    for group in groups:
        cells: list[Cell] = [
            fixed(group.components.get(component), group.seeds) for component in parts
        ]
        totals = [group.stat(key) for key in ("kept_elements", "kept_bytes", "network_params")]
        rows.append([group.label, group.kind, *cells, *totals])
    title = f"Memory besides the backbone: {study.names[setting]}"
    return Table(
        f"memory_{study.slug(setting)}",
        title,
        columns,
        rows,
        blocks=[group.kind for group in groups],
    )
