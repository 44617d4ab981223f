"""The tables of a report, in the paper's layout where the paper has the table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cifnet_pl.report.groups import HEADS, WORDS, Group, Stat
from cifnet_pl.report.markup import Cell, Column, Table
from cifnet_pl.report.settings import Setting
from cifnet_pl.report.study import ABLATIONS, BYTES, Study, notes_of, strategy_name, variant_name

SEEDS = "Mean ± standard deviation over seeds; a seed sets both seed_everything and the class order."
BEST = "Bold: best of the column."
PUBLISHED = "Rows marked published are the paper's own numbers (means of three seeds), not measured here."
ACCURACY = (("Ā", "A_bar"), ("A_K", "A_K"))


def all_tables(study: Study) -> dict[str, list[Table]]:
    """Section of the report → its tables; sections without any are left out."""
    each = study.settings
    sections = {
        "Accuracy": [accuracy_table(study)],
        "Efficiency": [efficiency_table(study, s) for s in each],
        "Memory": [*(memory_table(study, s) for s in each), buffer_bytes_table(study)],
        "Ablation": [ablation_table(study)],
        "Buffer": [buffer_size_table(study), sampling_table(study)],
        "Other settings": [sweep_table(study, key) for key in study.other_keys()],
        "All results": [results_table(study, s) for s in each],
        "Settings": [settings_table(study)],
        "Runs": [runs_table(study)],
    }
    kept = {name: [table.without_empty() for table in tables if table.rows] for name, tables in sections.items()}
    return {name: tables for name, tables in kept.items() if tables}


def accuracy_table(study: Study) -> Table:
    """Ā and A_K of every method in every setting (tab:accuracy-results)."""
    columns = [Column("method"), Column("numbers")]
    for setting in study.settings:
        columns += [Column(f"{study.names[setting]}: {header}", 2, "max") for header, _ in ACCURACY]
    shown = {s: {(g.label, g.kind): g for g in study.with_published(s)} for s in study.settings}
    keys = _ordered([group for s in study.settings for group in study.with_published(s)])
    rows: list[list[Cell]] = []
    for key in keys:
        cells: list[Cell] = [*key]
        for setting in study.settings:
            group = shown[setting].get(key)
            cells += [group.stat(name) if group else None for _, name in ACCURACY]
        rows.append(cells)
    notes = [SEEDS, BEST, *([PUBLISHED] if study.published else []), *study.notes]
    return Table("accuracy", "Average accuracy Ā and final accuracy A_K in %", columns, rows, notes)


def _ordered(groups: Sequence[Group]) -> list[tuple[str, str]]:
    """(label, kind) of each method once: measured, external, published; heads in their order."""
    known, kinds = list(HEADS.values()), ["measured", "external", "published"]
    names = {(group.label, group.kind): group.name for group in groups}

    def place(key: tuple[str, str]) -> tuple[int, int]:
        own = key[1] == "measured" and names[key] in known
        return kinds.index(key[1]), known.index(names[key]) if own else len(known)

    return sorted(names, key=place)


def efficiency_table(study: Study, setting: Setting) -> Table:
    """Parameters, minutes, energy and A_K per kWh (tab:cifar100-efficiency, tab:imagenet100-efficiency)."""
    columns = [
        Column("method"),
        Column("numbers"),
        Column("parameters (M)", 2, "min", 1e-6, False),
        Column("epochs", 0),
        Column("training (min)", None, "min", 1 / 60),
        Column("energy (kWh)", None, "min"),
        Column("A_K (%)", 2, "max"),
        Column("A_K per kWh", None, "max"),
        Column("energy measured by"),
    ]
    names = ("backbone_params", "epochs", "train_seconds", "energy_kwh", "A_K", "A_K_per_kwh")
    groups = [g for g in study.with_published(setting) if g.stat("energy_kwh") or g.stat("train_seconds")]
    rows: list[list[Cell]] = [[g.label, g.kind, *(g.stat(name) for name in names), g.energy_source] for g in groups]
    notes = [
        "Training: all tasks, without evaluation. Epochs: passes over the images of a task.",
        SEEDS,
        BEST,
        *_setting_notes(study, setting, groups),
    ]
    title = f"Accuracy and energy: {study.names[setting]}"
    return Table(f"efficiency_{study.slug(setting)}", title, columns, rows, notes)


def _setting_notes(study: Study, setting: Setting, groups: Sequence[Group]) -> list[str]:
    published = [PUBLISHED] if any(group.kind == "published" for group in groups) else []
    return published + study.cache_note(groups) + ([setting.note] if setting.note else [])


def memory_table(study: Study, setting: Setting) -> Table:
    """Numbers kept between tasks, by component (tab:memory_breakdown)."""
    groups = [group for group in study.with_published(setting) if group.stat("state_elements")]
    parts = list(dict.fromkeys(part for group in groups for part in group.components))
    columns = [Column("method"), Column("numbers")]
    columns += [Column(f"{part} (M)", None, None, 1e-6) for part in parts]
    columns += [Column("total (M)", None, "min", 1e-6, False), Column("total (MB)", None, "min", BYTES * 1e-6, False)]
    rows: list[list[Cell]] = []
    for group in groups:
        own: list[Cell] = [
            Stat(group.components[part], None, len(group.outcomes)) if part in group.components else None
            for part in parts
        ]
        rows.append([group.label, group.kind, *own, group.stat("state_elements"), group.stat("state_elements")])
    notes = [f"After the last task; M: millions of numbers; MB at {BYTES} bytes each, as in the paper."]
    title = f"Memory of the classifier: {study.names[setting]}"
    notes += [PUBLISHED] if any(group.kind == "published" for group in groups) else []
    return Table(f"memory_{study.slug(setting)}", title, columns, rows, notes)


def buffered(study: Study) -> list[Group]:
    """References that keep a buffer and know the size of their images; one for each data set and size."""
    found: dict[Any, Group] = {}
    for group in (group for group in study.groups if group.is_reference and raw_images(group) is not None):
        found.setdefault((group.setting.dataset, raw_images(group)), group)
    return list(found.values())


def raw_images(group: Group) -> tuple[int, int, int] | None:
    """(samples, features, side in pixels) of a group's buffer after the last task; None where not known."""
    run = group.outcomes[0].run if group.outcomes else None
    if run is None or not run.summary.get("buffer_elements") or not run.summary.get("image_size"):
        return None
    features = (run.summary.get("head_settings") or {}).get("in_features")
    if not features:
        return None
    return int(run.summary["buffer_elements"]) // int(features), int(features), int(run.summary["image_size"])


def buffer_megabytes(samples: int, features: int, side: int) -> tuple[float, float, float]:
    """Megabytes of the embeddings (float32), of as many images as bytes, and as float32 (the paper's count)."""
    pixels = samples * 3 * side * side
    return samples * features * 4e-6, pixels * 1e-6, pixels * 4e-6


def buffer_bytes_table(study: Study) -> Table:
    """A buffer of embeddings against as many raw images (the paper: 4.1 MB against 1206 MB)."""
    headers = ("embeddings (MB)", "images, uint8 (MB)", "images, float32 (MB)")
    columns = [Column("setting"), Column("method"), Column("samples", 0), Column("width", 0), Column("pixels", 0)]
    columns += [Column(header, None) for header in headers]
    rows: list[list[Cell]] = []
    for group in buffered(study):
        shape = raw_images(group)
        assert shape is not None
        numbers = [*map(float, shape), *buffer_megabytes(*shape)]
        rows.append([study.names[group.setting], group.name, *(Stat(x, None, len(group.outcomes)) for x in numbers)])
    if rows:
        paper = [Stat(x, None, 3) for x in (2000.0, 512.0, 224.0, 4.10)]
        rows.append(["ImageNet-100 (published)", "CIFNet", *paper, None, Stat(1206.40, None, 3)])
    notes = ["The same samples kept as embeddings (float32), as raw images (bytes), and as float32 images."]
    return Table("buffer_bytes", "A buffer of embeddings against as many raw images", columns, rows, notes)


def ablation_table(study: Study) -> Table:
    """The method without one of its parts, each at a time (tab:ablation)."""
    families = study.varied(*ABLATIONS)
    settings = [s for s in study.settings if any(family[0].setting == s for family in families)]
    columns = [Column("variant"), Column("numbers")]
    cells: dict[tuple[str, str, str], dict[tuple[Setting, str], Stat | None]] = {}
    for family in families:
        for group in family:
            own = cells.setdefault((group.name, variant_name(group), "measured"), {})
            own.update({(group.setting, name): group.stat(name) for _, name in ACCURACY})
    for setting in settings:
        columns += [Column(f"{study.names[setting]}: {header}", 2, "max") for header, _ in ACCURACY]
        for _, name in ACCURACY:
            for variant, value in study.published_of("tab:ablation", setting, name).items():
                cells.setdefault(("CIFNet", variant or "full method", "published"), {})[setting, name] = value
    rows: list[list[Cell]] = [
        [f"{method}, {variant}", kind, *(own.get((s, name)) for s in settings for _, name in ACCURACY)]
        for (method, variant, kind), own in cells.items()
    ]
    published = [PUBLISHED] if any(key[2] == "published" for key in cells) else []
    notes = [SEEDS, *published, *notes_of(settings)]
    return Table("ablation", "The method without one of its parts", columns, rows, notes)


def buffer_size_table(study: Study) -> Table:
    """Final accuracy for each size of the buffer (fig:buffer_ablation)."""
    return _by_value(study, "buffer.capacity", "buffer_size", "Final accuracy A_K in % by size of the buffer")


def sweep_table(study: Study, key: str) -> Table:
    """Final accuracy for each value of one setting."""
    name = key.replace(".", "_")
    return _by_value(study, key, name, f"Final accuracy A_K in % by {key}")


def _by_value(study: Study, key: str, name: str, title: str) -> Table:
    families = study.varied(key)
    values = {str(g.config.get(key)): g.config.get(key) for family in families for g in family}
    ordered = sorted(
        values.values(), key=lambda v: (not isinstance(v, int | float), v if isinstance(v, int | float) else 0, str(v))
    )
    columns = [Column(key.removeprefix("buffer."))]
    columns += [Column(f"{study.names[f[0].setting]}: {f[0].name}", 2, "max") for f in families]
    rows: list[list[Cell]] = []
    for value in ordered:
        found = [next((g for g in family if g.config.get(key) == value), None) for family in families]
        rows.append([_value_name(key, value), *(g.stat("A_K") if g else None for g in found)])
    notes = [SEEDS, BEST, *notes_of([family[0].setting for family in families])]
    return Table(name, title, columns, rows, notes)


def _value_name(key: str, value: object) -> str:
    if key == "buffer.strategy":
        return strategy_name(value)
    return WORDS.get((key, value), str(value)) if isinstance(value, str | bool | None) else str(value)


def sampling_table(study: Study) -> Table:
    """Final accuracy for each strategy of the buffer (tab:sampling), with the paper's numbers beside it."""
    table = _by_value(study, "buffer.strategy", "sampling", "Final accuracy A_K in % by selection of the buffer")
    families = study.varied("buffer.strategy")
    for setting in dict.fromkeys(family[0].setting for family in families):
        values = study.published_of("tab:sampling", setting, "A_K")
        if values:
            table.columns.append(Column(f"{study.names[setting]}: CIFNet (published)", 2, "max"))
            by_name = {strategy_name(variant): value for variant, value in values.items()}
            for row in table.rows:
                row.append(by_name.get(str(row[0])))
            table.notes.insert(0, "Columns marked published are the paper's own numbers, not measured here.")
    return table


def results_table(study: Study, setting: Setting) -> Table:
    """Everything that was measured in one setting."""
    columns = [
        Column("method"), Column("numbers"), Column("seeds"), Column("Ā (%)", 2, "max"), Column("A_K (%)", 2, "max"),
        Column("forgetting (%)", 2, "min"), Column("backward transfer (%)", 2, "max"),
        Column("largest drop (%)", 2, "min"), Column("ECE (%)", 2, "min"), Column("NLL", 3, "min"),
        Column("training (min)", None, "min", 1 / 60), Column("energy (kWh)", None, "min"),
        Column("energy measured by"), Column("state (M)", None, "min", 1e-6, False),
    ]  # fmt: skip
    first = ("A_bar", "A_K", "forgetting", "bwt", "max_drop", "ece", "nll", "train_seconds", "energy_kwh")
    rows: list[list[Cell]] = [
        [g.label, g.kind, str(len(g.outcomes)), *(g.stat(name) for name in first), g.energy_source,
         g.stat("state_elements")]
        for g in study.of(setting)
    ]  # fmt: skip
    notes = [f"{setting.title}.", SEEDS, BEST, *_setting_notes(study, setting, study.of(setting))]
    return Table(f"results_{study.slug(setting)}", f"All results: {study.names[setting]}", columns, rows, notes)


def settings_table(study: Study) -> Table:
    """The reference configuration of each head in each setting."""
    rows: list[list[Cell]] = []
    for group in (g for g in study.groups if g.is_reference):
        shown = {k: v for k, v in group.config.items() if k.startswith(("head.", "buffer.")) or k == "buffer"}
        if str(group.head).endswith("Module"):  # it has no head, and settings of its own
            shown = {k: v for k, v in group.config.items() if "." not in k and k not in ("module", "head", "download")}
        if shown.get("buffer") == "yes":
            del shown["buffer"]
        text = ", ".join(f"{k.removeprefix('head.')}={'none' if v is None else v}" for k, v in sorted(shown.items()))
        rows.append([group.setting.title, group.label, text])
    columns = [Column("setting"), Column("method"), Column("reference configuration")]
    return Table("settings", "What a method's name stands for; variants say what they change", columns, rows)


def runs_table(study: Study) -> Table:
    """Every run that was used, with its folder."""
    rows: list[list[Cell]] = []
    for group in study.groups:
        for outcome in group.outcomes:
            folder = str(outcome.run.folder) if outcome.run else "external file"
            values: list[Cell] = [
                Stat(v, None, 1) if (v := outcome.values.get(n)) is not None else None for _, n in ACCURACY
            ]
            seed = "" if outcome.seed is None else str(outcome.seed)
            rows.append([study.names[group.setting], group.label, seed, *values, folder])
    columns = [
        Column("setting"),
        Column("method"),
        Column("seed"),
        Column("Ā (%)"),
        Column("A_K (%)"),
        Column("folder"),
    ]
    return Table("runs", "Runs", columns, rows)
