"""Hold all results of a report as one table: a row for each run and task.

Two runs are of one configuration if they differ only by what a seed draws and by where they ran. A
configuration is named by its method and by the settings in which it differs from a reference.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePath
from statistics import mode
from typing import Any

import pandas as pd

from cifnet_pl import heads
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.learning.columns import COLUMNS, Column, custom_column
from cifnet_pl.report.external_results import published_rows, read_external
from cifnet_pl.report.runs import (
    NUMBERS,
    Row,
    Run,
    Settings,
    find_missing,
    natural_order,
    read_runs,
)
from cifnet_pl.utilities.errors import DataError
from cifnet_pl.utilities.files import expanded, flatten, rendered
from cifnet_pl.utilities.plugins import defaults_of, title_of
from cifnet_pl.utilities.text import number_of, printable

DATASETS = {
    "cifar100": "CIFAR-100",
    "CIFAR100": "CIFAR-100",
    "imagenet100": "ImageNet-100",
    "core50": "CORe50",
    "tinyimagenet": "Tiny-ImageNet",
}
"""Data source → name of the data set in the paper's tables; other sources keep their own name."""

IGNORED_KEYS = (
    "seed", "download", "head", "buffer", "data.class_order", "data.download", "data.cache",
    "data.cache_folder", "data.num_workers", "data.unknown", "data.on_corrupt",
    "head.in_features", "data.source", "data.root", "data.classes_per_task",
    "data.initial_classes", "data.max_tasks", "data.image_size", "data.tune", "backbone",
    "architecture",
)  # fmt: skip
"""Settings that tell no two configurations apart: seeds, data, and where it ran."""

TRAINER_KEYS = (
    "precision", "limit_train_batches", "limit_val_batches", "gradient_clip_val", "max_time",
)  # fmt: skip
"""Options of the trainer that tell configurations apart; the default of each is null."""

DATA_COLUMNS = ["dataset", "n_tasks", "n_classes", "protocol", "tune", "root"]
"""Columns that two runs must share to have the same test images."""

METHODS = {kind.__name__: title_of(kind) for kind in heads.HEADS.values()}
# To ask the trained methods themselves would import Lightning, which takes seconds.
METHODS |= {
    "FinetuneModule": "Fine-tuning",
    "ReplayModule": "Replay",
    "ICaRLModule": "iCaRL",
    "WAModule": "WA",
    "PODNetModule": "PODNet",
    "DERModule": "DER",
    "FOSTERModule": "FOSTER",
    "MEMOModule": "MEMO",
    "CREATEModule": "CREATE",
    "TagFexModule": "TagFex",
}
"""Class of a head or trained method → its name in tables, in the order of the rows."""

JOINT = "Joint logistic regression (bound)"
"""Logistic regression on all embeddings ever seen: a reference, not a method for streams."""

BUFFER_DEFAULTS = {"buffer": "yes"}
BUFFER_DEFAULTS |= flatten({"buffer": defaults_of(CalibrationBuffer)})

DEFAULTS = {
    "calibrate": False, "engine": "auto", "data.val_fraction": 0.2, "data.split_seed": 0,
}  # fmt: skip
"""Defaults, other than null, of settings that an older run may not have written."""

SETTING_TEXTS = {
    "buffer: None": "no buffer",
    "buffer: yes": "with buffer",
    "buffer.oversample: False": "no oversampling",
    "buffer.strategy: herding": "herding buffer",
    "buffer.strategy: kmeans": "k-means buffer",
    "buffer.strategy: centroid": "centroid buffer",
    "head.update_past: False": "locked old neurons",
    "head.weighting: released": "released weighting",
    "head.ridge: gcv": "λ by GCV",
}
"""Setting and value → their text in a method's name, others as by :func:`setting_text`."""

ABLATIONS = {
    "buffer": None,
    "buffer.oversample": False,
    "head.update_past": False,
    "head.weighting": "released",
}
"""Settings that each take a part of the method away at this value (tab:ablation).

A method's name always mentions them, whether or not there is anything to compare it with.
"""

SYMBOLS = {
    "head.ridge": "λ",
    "buffer.capacity": "buffer",
    "buffer.per_class": "buffer per class",
}
"""Setting → its name before a value."""


ACCURACY_DIGITS = 8
"""Decimals of a percentage that are not rounding."""

WARNINGS = Path(__file__).parent / "templates" / "warnings.txt"


# ---------------------------------------------------------------------- the table


@dataclass(frozen=True)
class Results:
    """All results of a report.

    Attributes:
        table: a row for each run and task, in the order of tables. Columns of a task are ``task``,
            ``classes_seen`` and ``A_k``; all others are the same in all rows of a run: numbers of
            ``summary.json`` by their names there, what tells runs apart (``setting``, ``data``,
            ``backbone``, ``method``, ``label``, ``config``, ``pair``, ``machine``,
            ``energy_from``), ``origin``: "measured", "external" or "published", and ``answers``,
            equal for runs of a configuration that are one measurement: of the same class order,
            with the same accuracy after every task, as where no seed changes a method.
        left_out: a sentence for each folder that was not read, or not used.
        missing: a sentence for each point of a sweep that has no complete run.
    """

    table: pd.DataFrame
    left_out: list[str]
    missing: list[str]

    @cached_property
    def measured(self) -> pd.DataFrame:
        """The last row of each run of this package."""
        return last_rows(self.table).query("origin == 'measured'")

    def columns(self, table: str) -> list[Column]:
        """Return the columns of a table of the report, custom metrics included.

        Args:
            table: one of :attr:`Column.tables <cifnet_pl.learning.columns.Column>`.
        """
        every = [*COLUMNS, *custom_columns(self.table)]
        return [column for column in every if table in column.tables.split()]

    @cached_property
    def settings(self) -> list[str]:
        """Names of the settings, in order."""
        in_order = self.measured.sort_values([*DATA_COLUMNS, "backbone"])
        return list(in_order["setting"].unique())

    @cached_property
    def data(self) -> list[str]:
        """Names of the data sets with their protocols, in order."""
        in_order = self.measured.sort_values(DATA_COLUMNS)
        return list(in_order["data"].unique())

    def compared(self) -> pd.DataFrame:
        """Return the rows of one configuration for each method and setting, and of all others."""
        return self.table.query("changed == ''")

    def families(self, *keys: str) -> list[pd.DataFrame]:
        """Return the rows of each reference and of its variants that differ from it in one setting.

        Args:
            keys: dotted names of the settings that may differ.
        """
        families = []
        inner = self.table.query("origin != 'external'")
        for _, rows in inner.groupby(["setting", "method"], sort=False):
            family = rows[rows["changed"].isin(["", *keys])]
            if family.query("origin == 'measured'")["changed"].any():
                families.append(family)
        return families

    def other_keys(self) -> list[str]:
        """Return the settings, beyond the paper's ablations, that runs vary by themselves."""
        changed = set(self.measured["changed"])
        changed -= {"", *ABLATIONS, "buffer.capacity", "buffer.strategy"}
        return sorted(key for key in changed if " " not in key)


def custom_columns(table: pd.DataFrame) -> list[Column]:
    """Return the columns of the custom metrics that some runs have measured."""
    prefix = custom_column("").run
    names = table.filter(like=prefix)
    return [custom_column(name.removeprefix(prefix)) for name in names]


def last_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the last row of each run."""
    return rows.drop_duplicates("run", keep="last")


def read_results(
    paths: Sequence[str | Path],
    external: str | Path | None = None,
) -> Results:
    """Read runs and external results as one table, with the paper's numbers.

    Args:
        paths: run folders, or folders that hold them at any depth.
        external: CSV file of methods run elsewhere, or None.

    Raises:
        UsageError: a path that does not exist, or external results that belong to no setting.
        DataError: there is no complete run, or the CSV file is not as it should be.
    """
    folders = [expanded(path) for path in paths]
    complete, left_out = read_runs(folders)
    if not complete:
        reasons = [*left_out, "there is no run folder"]
        raise DataError(
            f"no finished run in {', '.join(map(str, paths))} ({reasons[0]})"
        )
    every = table_of_runs(complete)
    # The same seed on another machine, or with the cache, is another measurement of costs.
    identity = ["setting", "configuration", "pair", "machine", "energy_from"]
    runs = every.drop_duplicates(identity, keep="last")
    for folder in every["run"].drop(runs.index):
        left_out.append(f"{folder}: a later run of the same configuration and seed")
    runs = with_labels(runs)
    columns = ["task", "classes_seen", "A_k"]
    tasks = {str(run.folder): run.tasks[columns] for run in complete}
    by_run = pd.concat(tasks, names=["run"]).reset_index("run")
    measured = runs.merge(by_run, on="run", how="left")
    rows = measured.to_dict("records")
    settings = runs.drop_duplicates("setting")
    if external is not None:
        rows += read_external(expanded(external), settings)
    for setting in settings.to_dict("records"):
        rows += published_rows(setting)
    table = pd.DataFrame(rows, columns=measured.columns)
    table["answers"] = table["answers"].fillna(table["pair"])
    numbers = [*NUMBERS, *(column.run for column in custom_columns(table)), "A_k"]
    table = table.astype(dict.fromkeys(numbers, float))
    seen = table.groupby(["setting", "task"])["classes_seen"].transform("first")
    table["classes_seen"] = seen
    return Results(table, left_out, find_missing(folders, complete))


def table_of_runs(runs: Iterable[Run]) -> pd.DataFrame:
    """Return a row for each run: what it measured, and what tells it from others."""
    rows = []
    for run in runs:
        config = configuration(run)
        row = run.summary | setting_of(run) | _circumstances(run) | _memory(run)
        row |= {"run": str(run.folder), "origin": "measured", "method": method_of(run)}
        row |= {"config": config, "configuration": repr(sorted(config.items()))}
        row["defaults"] = default_settings(run)
        accuracies = pd.Series(row["A_k"], dtype=float).round(ACCURACY_DIGITS).tolist()
        row["answers"] = f"{row['class_order']}: {accuracies}"
        rows.append(row)
    table = pd.DataFrame(rows).drop(columns="A_k")
    table = table.reindex(columns=table.columns.union([*NUMBERS, "data_fingerprint"]))
    # On another machine the same images are in another folder, which makes no other data.
    known_as = table["data_fingerprint"].combine_first(table["run"])
    for column in ("dataset", "root"):
        table[column] = table.groupby(known_as)[column].transform("first")
    data = ["n_tasks", "n_classes", "root"]
    table["data"] = _distinct_names(table, data)
    table["setting"] = _distinct_names(table, ["backbone", *data])
    return table


def _distinct_names(table: pd.DataFrame, columns: Sequence[str]) -> pd.Series:
    """Return the data and protocol of each row; what rows of one name differ in is added."""
    names = table["dataset"] + ", " + table["protocol"] + " cls/task" + table["tune"]
    texts = {"n_tasks": "{} tasks", "n_classes": "{} classes"}
    for column in columns:
        text = texts.get(column, "{}")
        described = table[column].map(text.format)
        is_shared = described.groupby(names).transform("nunique") > 1
        names = names.where(~is_shared, names + ", " + described)
    return names


def setting_of(run: Run) -> Row:
    """Return the data set, protocol and backbone that methods must share to be compared."""
    data = run.config["data"]
    source = str(data["source"]).removeprefix("torchvision:")
    root = printable(str(data.get("root") or ""))
    dataset = DATASETS.get(source, source)
    if source == "folder":
        dataset = PurePath(root).name or source
    protocol = str(data.get("classes_per_task")).strip("[]")
    if data.get("initial_classes"):
        protocol = f"{data['initial_classes']} + {protocol}"
    tune = ""
    if data.get("tune"):
        tune = f", on {data['tune']:.3g} of the training images (tuning)"
    arguments = run.config["model"]["init_args"]
    backbone = str(arguments.get("backbone") or run.summary.get("backbone"))
    if arguments.get("architecture"):
        backbone = f"{backbone} ({arguments['architecture']})"
    if data.get("image_size"):
        backbone = f"{backbone}, {data['image_size']} px"
    return {
        "dataset": dataset,
        "protocol": protocol,
        "tune": tune,
        "root": root,
        "backbone": backbone,
    }


def _circumstances(run: Run) -> Row:
    """Return what a seed draws, where a run ran, and how its energy was measured."""
    summary = run.summary
    seed = summary.get("seed")
    order = run.config["data"].get("class_order")
    if order is None:
        order = "as it is"
    if isinstance(order, list):
        order = "given"
    machine = str(summary.get("machine") or summary.get("device") or "")
    if "threads" in summary:
        machine = f"{machine}, {number_of(summary['threads'], 'thread')}"
    energy_from = summary.get("energy_source") or "not measured"
    if summary.get("energy_counts_other_processes"):
        energy_from += "; other processes counted"
    if summary.get("cached_images"):
        energy_from += "; embeddings from the cache"
    return {
        "seed": str(seed),
        "class_order": str(order),
        "pair": f"{seed} {order}",
        "machine": machine,
        "energy_from": energy_from,
        "commit": str(summary.get("git_commit") or "")[:10],
    }


def _memory(run: Run) -> Row:
    """Return the elements kept between tasks by component, and their bytes.

    One network stands apart for all methods. The parameters of a method whose network grows with
    the tasks are those of all branches, so one network is taken from them.
    """
    summary = run.summary
    # The run may be of a version that did not write these.
    network = summary.get("network_params") or summary.get("backbone_params", 0)
    widths = summary.get("state_bytes_per_element", {})
    components = dict(summary.get("state_components", {}))
    if "parameters" in components:
        components["parameters"] -= network
    components = {name: count for name, count in components.items() if count > 0}
    sizes = [count * widths.get(name, 4) for name, count in components.items()]
    return {
        "components": components,
        "state_bytes": float(sum(sizes)),
        "network_params": network,
    }


# ---------------------------------------------------------------------- configurations


def configuration(run: Run) -> Settings:
    """Return the settings of a run's method by dotted name, such as ``head.ridge``.

    What a seed draws, where it ran and what it learned are left out, and so is a buffer that the
    head had no use for. What the run did not write, as one from plain Python, is the default.

    Args:
        run: a complete run.
    """
    summary = run.summary
    buffer = summary.get("buffer_settings")
    own = {"head": summary.get("head_settings"), "buffer": buffer}
    arguments = run.config["model"]["init_args"] | own
    trainer = run.config.get("trainer") or {}
    sections = {
        "data": run.config["data"],
        "trainer": {key: trainer.get(key) for key in TRAINER_KEYS},
    }
    every = flatten(sections)
    # None is the default.
    given = {key: value for key, value in every.items() if value is not None}
    settings = default_settings(run) | flatten(arguments) | given
    config = {}
    for key, value in settings.items():
        is_used = buffer or not key.startswith("buffer.")
        is_drawn = key.endswith(".seed") or str(value).startswith("seed ")
        if is_used and not is_drawn and key not in IGNORED_KEYS:
            config[key] = value
    config["head"] = summary["head"]
    if buffer:
        config["buffer"] = "yes"
    elif getattr(heads.HEADS.get(summary["head"]), "uses_buffer", False):
        config["buffer"] = None
    order = run.config["data"].get("class_order")
    if isinstance(order, list):
        config["data.order"] = order
    return config


def default_settings(run: Run) -> Settings:
    """Return the default of every setting that has one, by dotted name.

    Args:
        run: its summary has the defaults of its own head or method.
    """
    own = run.summary.get("defaults") or {}
    if run.summary.get("head_settings") is not None:  # a head on a frozen backbone
        own = {"head": own}
    return BUFFER_DEFAULTS | DEFAULTS | flatten(own)


def differences(a: Settings, b: Settings) -> Settings:
    """Return the settings of ``b`` that differ from ``a``, with their values.

    Of a buffer that only ``b`` has, those are listed that are not its defaults.

    Args:
        a, b: settings by dotted name.
    """
    changed = {}
    for key in sorted(a.keys() | b.keys()):
        if key in BUFFER_DEFAULTS and key not in b:
            continue
        old = a.get(key, BUFFER_DEFAULTS.get(key))
        new = b.get(key)
        if repr(old) != repr(new):
            changed[key] = new
    return changed


# ---------------------------------------------------------------------- names


def method_of(run: Run) -> str:
    """Return the name of a run's method: the title of its head or module."""
    head = run.summary["head"]
    buffer = run.summary.get("buffer_settings") or {}
    learned = run.summary.get("learned_images")
    if head == "LogisticHead" and learned and (buffer.get("capacity") or 0) >= learned:
        return JOINT
    known = METHODS.get(head, head)
    return str(run.summary.get("title") or known)


def with_labels(runs: pd.DataFrame) -> pd.DataFrame:
    """Name the configuration of each run by what is unusual for its method, and sort by it.

    The reference of a setting, which its ablations are variants of, has the most usual settings;
    its label says what is not usual. The new columns are ``label``, ``variant`` (what differs from
    the reference of the setting), and ``changed``: the keys of these settings.

    Args:
        runs: a row for each run.
    """
    known = [*METHODS.values(), JOINT]
    found = {}
    for method, family in runs.groupby("method", sort=False):
        usual = usual_settings(family)
        position = [*known, method].index(method)  # last where it is not known
        unusual = family["config"].map(partial(differences, usual))
        for _, same in family.groupby("setting", sort=False):
            nearest = unusual[same.index].map(len).idxmin()
            reference = same["config"][nearest]
            for index, config in same["config"].items():
                named = _text(method, config, unusual[index])
                changes = differences(reference, config)
                variant = _text(method, config, changes)
                found[index] = {
                    "label": ", ".join(filter(None, [method, named])),
                    "variant": variant or "full method",
                    "changed": " ".join(changes),
                    "order": (
                        position,
                        method,
                        len(changes),
                        [*changes, natural_order(variant)],
                    ),
                }
    labels = pd.DataFrame.from_dict(found, orient="index")
    return runs.join(labels).sort_values("order", kind="stable")


def usual_settings(family: pd.DataFrame) -> Settings:
    """Return the value of each setting that most runs of a method have; defaults win ties."""
    values: dict[str, list[Any]] = {}
    for config in family["config"]:
        for key, value in config.items():
            values.setdefault(key, []).append(value)
    defaults = family["defaults"].iloc[0]
    usual = {}
    for key, found in values.items():
        default = repr(defaults.get(key))
        by_text = {repr(value): value for value in found}
        # The mode is the first of the most frequent.
        default_first = sorted(map(repr, found), key=default.__ne__)
        usual[key] = by_text[mode(default_first)]
    return usual


def _text(method: str, config: Settings, changes: Settings) -> str:
    """Return settings, and the parts that a configuration lacks, as text."""
    mentioned = set(changes)
    if method != JOINT:  # it keeps its buffer for another purpose
        lacking = [key for key in ABLATIONS if config.get(key, "") == ABLATIONS[key]]
        mentioned |= set(lacking)
    texts = [setting_text(key, config.get(key)) for key in sorted(mentioned)]
    return ", ".join(texts)


def setting_text(key: str, value: Any) -> str:
    """Return a setting and its value as part of a method's name.

    Args:
        key: dotted name of the setting.
        value: of the setting.

    Example:
        >>> setting_text("head.ridge", 0.01)
        'λ 0.01'
    """
    own_text = SETTING_TEXTS.get(f"{key}: {value}")
    if own_text is not None:
        return own_text
    last_name = key.split(".")[-1]
    name = SYMBOLS.get(key) or last_name.replace("_", " ")
    if isinstance(value, float):
        return f"{name} {value:g}"
    return f"{name} {value_text(value)}"


def value_text(value: Any) -> str:
    """Return a setting's value as it is shown under its heading."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return {True: "yes", False: "no"}[value]
    return printable(str(value))


# ---------------------------------------------------------------------- what a reader must know


def warnings(results: Results) -> list[str]:
    """Return the sentences at the top of a report: what is missing, and what to be careful of."""
    known = results.measured.dropna(subset="data_fingerprint")
    firsts = known.drop_duplicates(["setting", "data_fingerprint"])
    text = rendered(
        WARNINGS,
        missing=results.missing,
        runs_by_setting=firsts.groupby("setting")["run"].agg(list),
        backbones=results.measured["backbone"].unique(),
        left_out=results.left_out,
    )
    return text.splitlines()
