"""Make the tables of a report, in the paper's layout where the paper has the table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from cifnet_pl.report.external_results import published_of
from cifnet_pl.report.runs import Run
from cifnet_pl.report.settings import ABLATIONS, Setting, heading, value_text
from cifnet_pl.report.significance import Stat, without_deviation
from cifnet_pl.report.study import (
    Conditions,
    ConditionsLabel,
    Group,
    Study,
    method_order,
    value_order,
)
from cifnet_pl.report.table_formats import (
    CONDITIONS,
    ORIGIN,
    SEEDS,
    SHARED_MARK,
    Cell,
    Column,
    ReportTable,
)
from cifnet_pl.utilities.files import rendered

NOTES = Path(__file__).parent / "templates" / "notes.txt"
SHARED_NOTE = f"{SHARED_MARK}: other processes counted in these times and energies."
TRAINING_NOTE = (
    "Training: all tasks, without evaluation. Epochs: passes over the images of a task."
)
ACCURACY_KEYS = {"Ā": "A_bar", "A_K": "A_K"}
"""Header of an accuracy → key of its value."""


def all_tables(study: Study) -> dict[str, list[ReportTable]]:
    """Make all tables.

    Returns:
        Section of the report → its tables; sections without tables are left out.
    """
    settings = study.settings
    others = []
    for key in study.other_keys():
        file = key.replace(".", "_")
        others.append(value_table(study, key, file))
    sections = {
        "Accuracy": [accuracy_table(study)],
        "Efficiency": [
            efficiency_table(study, setting) for setting in study.data_names
        ],
        "Memory": [memory_table(study, setting) for setting in settings],
        "Ablation": [ablation_table(study)],
        "Buffer": [
            value_table(study, "buffer.capacity", "buffer_size"),
            sampling_table(study),
        ],
        "Other settings": others,
        "All results": [results_table(study, setting) for setting in settings],
        "Settings": [settings_table(study)],
        "Runs": [runs_table(study)],
    }
    filled = {}
    for section, tables in sections.items():
        with_rows = []
        for table in tables:
            if table.rows:
                with_rows.append(table.without_empty())
        if with_rows:
            filled[section] = with_rows
    return filled


def report_notes(study: Study) -> list[str]:
    """Return the notes that concern more than one table; they end the report."""
    measured = [group for group in study.groups if group.kind == "measured"]
    outcomes = []
    for group in measured:
        outcomes += group.outcomes
    text = rendered(
        NOTES,
        published=bool(study.published),
        locked=any(group.config.get("head.update_past") is False for group in measured),
        energy=any(outcome.values.get("energy_kwh") for outcome in outcomes),
    )
    paragraphs = []
    for paragraph in text.split("\n\n"):
        if paragraph.strip():
            paragraphs.append(" ".join(paragraph.split()))
    return paragraphs


# ---------------------------------------------------------------------- accuracy


@dataclass(frozen=True)
class Entry:
    """One number of a table whose columns are settings.

    Attributes:
        row: name of the row.
        origin: where the number comes from.
        column: header of the column.
        stat: the number.
    """

    row: str
    origin: str
    column: str
    stat: Stat | None


def _accuracy_header(study: Study, setting: Setting, header: str) -> str:
    return f"{study.names[setting]}: {header}"


def _entries(study: Study, row: str, group: Group) -> list[Entry]:
    """Return the accuracies of a group as entries of one row."""
    entries = []
    for header, key in ACCURACY_KEYS.items():
        column = _accuracy_header(study, group.setting, header)
        stat = group.stat(key)
        entry = Entry(row, group.kind, column, stat)
        entries.append(entry)
    return entries


def _accuracy_columns(study: Study, first: str) -> list[Column]:
    """Return the columns of a table: its row's name and origin, then Ā and A_K of each setting."""
    columns = [Column(first), Column(ORIGIN)]
    for setting in study.settings:
        for header in ACCURACY_KEYS:
            column_header = _accuracy_header(study, setting, header)
            columns.append(Column(column_header))
    return columns


def _rows_of(entries: Iterable[Entry], columns: Sequence[Column]) -> list[list[Cell]]:
    """Return the rows of some entries, in their order; rows without a number are left out."""
    numbers: dict[tuple[str, str], dict[str, Stat | None]] = {}
    for entry in entries:
        row = (entry.row, entry.origin)
        by_column = numbers.setdefault(row, {})
        by_column[entry.column] = entry.stat
    rows: list[list[Cell]] = []
    for (name, origin), by_column in numbers.items():
        if any(by_column.values()):
            cells = [by_column.get(column.header) for column in columns[2:]]
            rows.append(
                [
                    name,
                    origin,
                    *cells,
                ]
            )
    return rows


def _row_order(group: Group) -> tuple[object, ...]:
    """Return the sort key of a row for several settings.

    Measured rows come first, then external ones, then published ones in the paper's order.
    """
    kind, position, name = method_order(group)
    if group.kind == "measured":
        return kind, position, name, len(group.named), group.label
    return (kind,)


def accuracy_table(study: Study) -> ReportTable:
    """Tabulate Ā and A_K of every method in every setting (tab:accuracy-results).

    One row is one configuration.
    """
    compared = []
    for setting in study.settings:
        compared += study.with_published(setting)
    ordered = sorted(compared, key=_row_order)
    keys = [(group.label, group.kind) for group in ordered]
    shown = dict.fromkeys(keys)
    groups = [*study.groups, *study.published]
    entries = []
    for label, kind in shown:
        for group in groups:
            if (group.label, group.kind) == (label, kind):
                entries += _entries(study, label, group)
    columns = _accuracy_columns(study, "method")
    title = "Average accuracy Ā and final accuracy A_K in %"
    notes = study.seeds_notes(study.groups)
    rows = _rows_of(entries, columns)
    return ReportTable("accuracy", title, columns, rows, notes)


def ablation_table(study: Study) -> ReportTable:
    """Tabulate the method without one of its parts at a time (tab:ablation)."""
    families = study.varied(*ABLATIONS)
    entries = []
    groups = []
    for family in families:
        groups += family
        for group in family:
            row = f"{family[0].label}, {group.variant}"
            entries += _entries(study, row, group)
    with_ablations = {family[0].setting for family in families}
    for setting in study.settings:
        if setting not in with_ablations:
            continue
        for header, key in ACCURACY_KEYS.items():
            column = _accuracy_header(study, setting, header)
            published = published_of("tab:ablation", setting, key)
            for variant, stat in published.items():
                name = f"CIFNet, {variant or 'full method'}"
                entries.append(Entry(name, "published", column, stat))
    columns = _accuracy_columns(study, "variant")
    title = "The method without one of its parts"
    notes = study.seeds_notes(groups)
    rows = _rows_of(entries, columns)
    return ReportTable("ablation", title, columns, rows, notes)


def value_table(study: Study, key: str, name: str) -> ReportTable:
    """Tabulate the final accuracy for each value of one setting (fig:buffer_ablation).

    Args:
        study: all results.
        key: dotted name of the setting.
        name: of the table's files.
    """
    families = study.varied(key)
    columns = [Column(heading(key))]
    groups = []
    values = {}
    for family in families:
        reference = family[0]
        header = f"{study.names[reference.setting]}: {reference.label}"
        columns.append(Column(header))
        groups += family
        for group in family:
            value = group.config.get(key)
            values[str(value)] = value
    rows: list[list[Cell]] = []
    for value in sorted(values.values(), key=value_order):
        row: list[Cell] = [value_text(value)]
        for family in families:
            with_value = []
            for group in family:
                if group.config.get(key) == value:
                    with_value.append(group)
            stat = None
            if with_value:
                stat = with_value[0].stat("A_K")
            row.append(stat)
        rows.append(row)
    title = f"Final accuracy A_K in % by {heading(key)}"
    notes = study.seeds_notes(groups)
    return ReportTable(name, title, columns, rows, notes)


def sampling_table(study: Study) -> ReportTable:
    """Tabulate final accuracy for each strategy of the buffer (tab:sampling).

    The paper's numbers stand beside it.
    """
    key = "buffer.strategy"
    table = value_table(study, key, "sampling")
    families = study.varied(key)
    settings = [family[0].setting for family in families]
    for setting in dict.fromkeys(settings):
        published = published_of("tab:sampling", setting, "A_K")
        if published:
            header = f"{study.names[setting]}: CIFNet (published)"
            table.columns.append(Column(header))
            for row in table.rows:
                strategy = str(row[0])
                row.append(published.get(strategy))
    return table


# ---------------------------------------------------------------------- accuracy and costs

EFFICIENCY_COLUMNS = {
    "backbone_params": Column("backbone (M)", 2, 1e-6, with_deviation=False),
    "epochs": Column("epochs", 0, with_deviation=False),
    "train_seconds": Column("training (min)", None, 1 / 60),
    "energy_kwh": Column("energy (kWh)", None),
    "A_K": Column("A_K (%)"),
    "A_K_per_kwh": Column("A_K per kWh", None),
    "co2_kg": Column("CO₂ (kg)", None),
}
RESULT_COLUMNS = {
    "A_bar": Column("Ā (%)"),
    "A_K": Column("A_K (%)"),
    "top5": Column("top-5 (%)", collapsed=True),
    "forgetting": Column("forgetting (%)"),
    "bwt": Column("backward transfer (%)", collapsed=True),
    "forward_transfer": Column("forward transfer (%)", collapsed=True),
    "max_drop": Column("largest drop (%)", collapsed=True),
    "ece": Column("ECE (%)"),
    "nll": Column("NLL", 3),
    "set_size": Column("prediction set at 95 % (classes)", collapsed=True),
    "set_coverage": Column("coverage (%)", collapsed=True),
    "known_rejected": Column("rejected as unknown at 5 % (%)", collapsed=True),
    "unknown_auroc": Column("unknown: AUROC (%)", collapsed=True),
    "unknown_fpr95": Column("unknown: FPR95 (%)", collapsed=True),
    "train_seconds": Column("training (min)", None, 1 / 60),
    "energy_kwh": Column("energy (kWh)", None),
    "co2_kg": Column("CO₂ (kg)", None, collapsed=True),
}
"""Value of a group → its column, of the two tables that have both."""


def _conditions_notes(
    labels: Mapping[tuple[str, Conditions], ConditionsLabel],
) -> list[str]:
    """Return the meanings of the letters of :meth:`Study.condition_labels`."""
    notes = [f"{label.letter}: {label.text}." for label in labels.values()]
    if any(SHARED_MARK in label.letter for label in labels.values()):
        notes.append(SHARED_NOTE)
    return notes


def efficiency_table(study: Study, setting: Setting) -> ReportTable:
    """Tabulate parameters, minutes, energy and A_K per kWh.

    These are tab:cifar100-efficiency and tab:imagenet100-efficiency. A configuration whose seeds
    ran under different conditions has one row for each condition. Backbones that learned the same
    data stand in one table.

    Args:
        study: all results.
        setting: one of ``study.data_names``.
    """
    settings = study.on_the_same_data(setting)
    groups = []
    for group in study.with_published(*settings):
        for part in group.by_conditions():
            if part.stat("energy_kwh") or part.stat("train_seconds"):
                groups.append(part)
    labels = study.condition_labels(groups)
    rows: list[list[Cell]] = []
    for group in groups:
        if group.kind == "published":
            seeds = ""
        else:
            seeds = str(group.seeds)
        backbone = ""
        if group.kind == "measured" and len(settings) > 1:
            backbone = group.setting.backbone_title
        numbers = [group.stat(key) for key in EFFICIENCY_COLUMNS]
        conditions = group.conditions[0]
        letter = labels[group.kind, conditions].letter
        rows.append([group.label, group.kind, seeds, backbone, *numbers, letter])
    columns = [Column("method"), Column(ORIGIN), Column(SEEDS), Column("backbone")]
    columns += [*EFFICIENCY_COLUMNS.values(), Column(CONDITIONS)]
    # The letters come first, where a caption has room: they mean something in this table alone.
    conditions_notes = _conditions_notes(labels)
    notes = [*conditions_notes, TRAINING_NOTE, *study.seeds_notes(groups)]
    title = f"Accuracy and energy: {study.data_names[setting]}"
    file = f"efficiency_{study.data_slug(setting)}"
    return ReportTable(file, title, columns, rows, notes)


def results_table(study: Study, setting: Setting) -> ReportTable:
    """Tabulate everything that was measured in one setting.

    Columns that a page has no room for are collapsed.
    """
    groups = study.groups_in(setting)
    labels = study.condition_labels(groups)
    rows: list[list[Cell]] = []
    mixed = []
    for group in groups:
        own_letters = [labels[group.kind, own].letter for own in group.conditions]
        letters = dict.fromkeys(own_letters)
        numbers = [group.stat(key) for key in RESULT_COLUMNS]
        text = ", ".join(letters)
        seeds = str(group.seeds)
        rows.append([group.label, group.kind, seeds, *numbers, text])
        if len(group.conditions) > 1:
            mixed.append(group.label)
    columns = [Column("method"), Column(ORIGIN), Column(SEEDS)]
    columns += [*RESULT_COLUMNS.values(), Column(CONDITIONS)]
    conditions_notes = _conditions_notes(labels)
    notes = [f"{setting.title}.", *conditions_notes]
    if mixed:
        notes.append(
            f"Seeds of {'; '.join(mixed)} ran under different conditions: their costs stand in the"
            " table of efficiency."
        )
    notes += study.seeds_notes(groups)
    title = f"All results: {study.names[setting]}"
    file = f"results_{study.slug(setting)}"
    return ReportTable(file, title, columns, rows, notes)


# ---------------------------------------------------------------------- settings and runs


def _own_settings(group: Group) -> list[str]:
    """Return the keys of a configuration that say what its method is."""
    keys = []
    for key, value in sorted(group.config.items()):
        if group.frozen:
            is_own = key == "buffer" or key.startswith(("head.", "buffer."))
        else:
            is_own = "." not in key and key not in ("module", "head", "download")
        if is_own and (key, value) != ("buffer", "yes"):
            keys.append(key)
    return keys


def settings_table(study: Study) -> ReportTable:
    """Tabulate the reference configuration of each method in each setting."""
    rows: list[list[Cell]] = []
    for group in study.groups:
        if group.is_reference:
            keys = _own_settings(group)
            texts = [f"{key}: {value_text(group.config[key])}" for key in keys]
            text = "; ".join(texts)
            rows.append([group.setting.title, group.label, text])
    columns = [Column("setting"), Column("method"), Column("reference configuration")]
    title = "What a method's name stands for; variants say what they change"
    return ReportTable("settings", title, columns, rows)


def _class_order(run: Run) -> str:
    """Return the number that the class order was drawn from; "given" for a list of classes."""
    order = run.config["data"].get("class_order")
    if order is None:
        return "as it is"
    if isinstance(order, list):
        return "given"
    return str(order)


RUN_HEADERS = (
    "setting",
    "method",
    "seed",
    "class order",
    "Ā (%)",
    "A_K (%)",
    "machine",
    "energy measured by",
    "commit",
    "folder",
)


def runs_table(study: Study) -> ReportTable:
    """Tabulate every run that was used, with its folder and its machine."""
    rows: list[list[Cell]] = []
    for group in study.groups:
        for outcome in group.outcomes:
            run = outcome.run
            order = commit = ""
            folder = "external file"
            if run is not None:
                order = _class_order(run)
                commit_hash = str(run.summary.get("git_commit") or "")
                commit = commit_hash[:10]
                folder = str(run.folder)
            if outcome.seed is None:
                seed = ""
            else:
                seed = str(outcome.seed)
            source = None
            if outcome.values.get("energy_kwh") is not None:
                source = outcome.conditions.source
            setting = study.names[group.setting]
            row: list[Cell] = [setting, group.label, seed, order]
            for key in ACCURACY_KEYS.values():
                accuracy = outcome.values.get(key)
                row.append(without_deviation(accuracy))
            row += [outcome.conditions.machine, source, commit, folder]
            rows.append(row)
    columns = [Column(header) for header in RUN_HEADERS]
    return ReportTable("runs", "Runs", columns, rows)


# ---------------------------------------------------------------------- memory


def _millions(header: str, digits: int | None = None) -> Column:
    """Return a column of numbers in millions, which no seed changes."""
    return Column(header, digits, 1e-6, with_deviation=False)


def memory_table(study: Study, setting: Setting) -> ReportTable:
    """Tabulate the elements kept between tasks by component, and the bytes as they are stored.

    The backbone has a column of its own.

    Args:
        study: all results.
        setting: whose groups are listed.
    """
    groups = []
    for group in study.with_published(setting):
        if group.stat("state_elements"):
            groups.append(group)
    components: list[str] = []
    for group in groups:
        for name in group.components:
            if name not in components:
                components.append(name)
    columns = [Column("method"), Column(ORIGIN)]
    columns += [_millions(f"{name} (M)") for name in components]
    columns += [
        _millions("total (M)"),
        _millions("stored (MB)"),
        _millions("backbone (M)", 2),
    ]
    rows: list[list[Cell]] = []
    for group in groups:
        row: list[Cell] = [group.label, group.kind]
        for name in components:
            count = group.components.get(name)
            row.append(without_deviation(count, group.seeds))
        for key in ("state_elements", "state_bytes", "network_params"):
            row.append(group.stat(key))
        rows.append(row)
    title = f"Memory besides the backbone: {study.names[setting]}"
    file = f"memory_{study.slug(setting)}"
    return ReportTable(file, title, columns, rows)
