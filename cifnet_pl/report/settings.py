"""Read a run's configuration: its setting (data, protocol, backbone), its method, and their names.

All keys that do not belong to the setting belong to the method.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from lightning.pytorch import Trainer

from cifnet_pl import heads, iterative
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.learning.callbacks import EnergyMonitor, TaskCheckpoint
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.report.runs import Run
from cifnet_pl.utilities.files import flatten
from cifnet_pl.utilities.plugins import defaults_of, title_of
from cifnet_pl.utilities.text import number_of, printable, slug

DATASETS = {
    "cifar100": "CIFAR-100",
    "torchvision:CIFAR100": "CIFAR-100",
    "CIFAR100": "CIFAR-100",
    "imagenet100": "ImageNet-100",
    "core50": "CORe50",
    "tinyimagenet": "Tiny-ImageNet",
}
"""Data source → name of the data set in the paper's tables; other sources keep their own name."""

IGNORED_KEYS = (
    "seed_everything", "data.class_order", "experiment", "logs", "ckpt_path", "weights_only",
    "download", "data.cache", "data.cache_folder", "data.num_workers", "data.unknown",
    "data.on_corrupt", "energy.enabled", "energy.tracking_mode", "predictions.every_task",
    "checkpoint.every_minutes", "trainer.accelerator", "trainer.devices", "trainer.num_nodes",
    "trainer.enable_model_summary", "trainer.enable_progress_bar", "trainer.log_every_n_steps",
)  # fmt: skip
"""Keys of ``config.yaml`` that do not make another configuration: seeds, names, where it ran."""

SETTING_KEYS = (
    "data.source", "data.root", "data.classes_per_task", "data.initial_classes", "data.max_tasks",
    "data.image_size", "data.tune", "backbone", "architecture",
)  # fmt: skip
"""Keys that belong to the setting; the others belong to the method."""


# ---------------------------------------------------------------------- the setting


@dataclass(frozen=True, order=True)
class Setting:
    """The setting that methods must share to be compared: data set, task protocol and backbone.

    Attributes:
        dataset: its name, as in the paper where it is one of the paper's.
        n_tasks, n_classes: numbers of tasks and of classes learned; few are sorted before many.
        backbone: name of the frozen backbone, with its architecture where one was given.
        image_size: side in pixels as given, or 0 for the weights' own.
        root: folder of the data, which tells apart data sets of one name.
        tune: share of the training images that accuracies are measured on in place of the test
            images, or 0.
        protocol: classes of each task, e.g. "10", or "50 + 10" with a larger first task.
    """

    dataset: str
    n_tasks: int
    n_classes: int
    backbone: str
    image_size: int
    root: str
    tune: float
    protocol: str

    @property
    def data(self) -> tuple[Any, ...]:
        """Key of the test images: equal for two runs with the same ones."""
        return self.dataset, self.protocol, self.n_tasks, self.n_classes, self.tune

    @property
    def backbone_title(self) -> str:
        """Backbone and size of its images, for tables."""
        if self.image_size:
            return f"{self.backbone}, {self.image_size} px"
        return self.backbone

    @property
    def short(self) -> str:
        """Data set and protocol, for a column; says so where no test image was used."""
        name = f"{self.dataset}, {self.protocol} cls/task"
        if self.tune:
            percent = 100 * self.tune
            name = f"{name}, on {percent:g} % of the training images (tuning)"
        return name

    @property
    def title(self) -> str:
        """Data set, protocol, images and backbone."""
        tasks = number_of(self.n_tasks, "task")
        return (
            f"{self.short} ({tasks}, {self.n_classes} classes), {self.backbone_title}"
        )


def backbone_notes(settings: Sequence[Setting]) -> list[str]:
    """Return a note for each backbone about the labels that it was trained on."""
    notes = []
    for name in dict.fromkeys(setting.backbone for setting in settings):
        if name.startswith(("embedded:", "torchvision:")):
            notes.append(
                f"Backbone {name} was trained on ImageNet labels, which the paper avoids: it uses"
                " self-supervised backbones, so that no label of a later class was ever seen."
            )
        elif name.startswith("timm:"):
            notes.append(
                f"Backbone {name}: see its model card for the labels that it was trained on."
            )
    return notes


SMALL_RIDGE = 1.0
"""λ of CIFNetHead below which its weights follow noise where samples are as many as features."""


def small_ridge_messages(runs: Iterable[Run]) -> list[str]:
    """Warn of runs of CIFNetHead with a small λ and about as many samples as features.

    "About" is half to twice as many. There ridge regression interpolates at its worst (Belkin et
    al., 2019), and more so the more of these images a class is fitted to. Variants without a
    buffer, or with locked neurons, then come out better than the full method.

    Args:
        runs: complete ones.

    Returns:
        One sentence for each number of images, width and λ.
    """
    messages: dict[str, None] = {}
    for run in runs:
        settings = run.summary.get("head_settings") or {}
        images = run.summary.get("learned_images") or 0
        width = settings.get("in_features") or 0
        ridge = settings.get("ridge")
        is_small = isinstance(ridge, float) and ridge < SMALL_RIDGE
        is_cifnet = run.summary.get("head") == "CIFNetHead"
        is_comparable = width / 2 <= images <= 2 * width
        if is_cifnet and is_small and is_comparable:
            message = (
                f"{images:,} images were learned with {width:,} features: with as many images as"
                f" features and λ = {ridge:g} the weights follow noise. Variants that see fewer"
                " images (no buffer, locked neurons) can come out better than the full method. Set"
                " --model.head.ridge 1 or gcv, or learn more images"
            )
            messages[message] = None
    return list(messages)


def setting_of(run: Run) -> Setting:
    """Return the setting of a run."""
    flat = configuration(run)
    source = str(flat.get("data.source", ""))
    folder = str(flat.get("data.root") or "")
    root = printable(folder)
    name = source.removeprefix("torchvision:")
    if source == "folder":
        name = PurePath(root).name
    recorded = run.summary.get("backbone")
    backbone = str(flat.get("backbone") or recorded or "no backbone")
    architecture = flat.get("architecture")
    if architecture:
        backbone = f"{backbone} ({architecture})"
    per_task = flat.get("data.classes_per_task")
    protocol = str(per_task)
    if isinstance(per_task, list):
        protocol = ", ".join(map(str, per_task))
    initial = flat.get("data.initial_classes")
    if initial:
        protocol = f"{initial} + {protocol}"
    return Setting(
        dataset=DATASETS.get(source, name or source),
        n_tasks=run.summary["n_tasks"],
        n_classes=run.summary["n_classes"],
        backbone=backbone,
        image_size=flat.get("data.image_size") or 0,
        root=root,
        tune=flat.get("data.tune") or 0.0,
        protocol=protocol,
    )


def _size_text(setting: Setting) -> str:
    if setting.image_size:
        return f"{setting.image_size} px"
    return "own size"


Describe = Callable[[Setting], str]
DATA_DESCRIPTIONS: tuple[Describe, ...] = (
    lambda setting: f"{setting.n_tasks} tasks",
    lambda setting: f"{setting.n_classes} classes",
    lambda setting: setting.root,
)
BACKBONE_DESCRIPTIONS: tuple[Describe, ...] = (
    lambda setting: setting.backbone,
    _size_text,
)
"""Suffixes of the names of settings that have the same short name."""


def distinct_names(settings: Sequence[Setting], backbones: bool) -> dict[Setting, str]:
    """Return a name for each setting; what settings of one name differ in is added.

    Args:
        settings: of a report.
        backbones: whether they may differ in backbone and size of images too.
    """
    names = {setting: setting.short for setting in settings}
    descriptions = DATA_DESCRIPTIONS
    if backbones:
        descriptions = BACKBONE_DESCRIPTIONS + DATA_DESCRIPTIONS
    for describe in descriptions:
        found: dict[str, set[str]] = {}
        for setting, name in names.items():
            described_as = describe(setting)
            found.setdefault(name, set()).add(described_as)
        for setting, name in names.items():
            if len(found[name]) > 1:
                description = describe(setting)
                names[setting] = f"{name}, {description}"
    return names


def file_name(names: Mapping[Setting, str], setting: Setting) -> str:
    """Return a setting's name for a file; names that differ in special characters get a number."""
    own = slug(names[setting].lower())
    alike = []
    for other, name in names.items():
        if slug(name.lower()) == own:
            alike.append(other)
    position = alike.index(setting)
    if position:
        return f"{own}_{position + 1}"
    return own


# ---------------------------------------------------------------------- the configuration


def configuration(run: Run) -> dict[str, Any]:
    """Return the run's settings by dotted name, without seeds and names of folders.

    ``model.init_args.head.init_args.ridge`` becomes ``head.ridge``, and so on for the buffer. A
    buffer that the head had no use for is left out. What the run did not write, as one from plain
    Python, is the default.

    Args:
        run: a complete run.
    """
    summary = run.summary
    head = str(summary["head"])
    model = _section(run.config.get("model"))
    arguments = dict(_section(model.get("init_args")))
    head_section = _section(arguments.pop("head", None))
    buffer = arguments.pop("buffer", None)
    parts = dict(run.config)
    parts.pop("model", None)
    parts.pop("lightning.pytorch", None)
    flat = flatten(parts)
    flat["module"] = model.get("class_path")
    flat.update(flatten(arguments))
    flat["head"] = head
    options = _head_options(head_section, summary)
    flat.update(flatten(options, "head."))
    if isinstance(buffer, Mapping) and summary.get("buffer_settings") is not None:
        flat["buffer"] = "yes"
        options = _section(buffer.get("init_args"))
        flat.update(flatten(options, "buffer."))
    elif getattr(heads.HEADS.get(head), "uses_buffer", False):
        flat["buffer"] = None
    for key, value in default_settings(summary).items():
        if flat.get("buffer") == "yes" or not key.startswith("buffer."):
            flat.setdefault(key, value)
    callbacks = flat.get("trainer.callbacks")
    if isinstance(callbacks, list):
        flat["trainer.callbacks"] = _without_recorders(callbacks)
    class_order = run.config["data"].get("class_order")
    if isinstance(class_order, list):
        flat["data.order"] = class_order
    return {key: value for key, value in flat.items() if not _is_ignored(key)}


def _without_recorders(callbacks: Sequence[Any]) -> list[Any] | None:
    """Return the callbacks that can change results; None if there are none."""
    others = []
    for callback in callbacks:
        if "ActivationTable" not in str(callback):
            others.append(callback)
    return others or None


def _is_ignored(key: str) -> bool:
    last_name = key.split(".")[-1]
    return key in IGNORED_KEYS or last_name == "seed"


def _head_options(
    section: Mapping[str, Any], summary: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the options of a head; those of the summary if the configuration has none."""
    options = section.get("init_args")
    if isinstance(options, Mapping):
        return options
    learned = dict(summary.get("head_settings") or {})
    learned.pop("in_features", None)
    options = {}
    for key, value in learned.items():
        if not str(value).startswith("seed "):
            options[key] = value
    return options


def default_settings(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of every setting that has one, by dotted name.

    Args:
        summary: of a run; it may have the defaults of its own head or method.
    """
    classes: dict[str, Any] = dict(heads.HEADS)
    trained = {method.__name__: method for method in iterative.METHODS}
    classes.update(trained)
    known = classes.get(str(summary["head"]))
    own = summary.get("defaults")
    if not own:
        if known:
            own = defaults_of(known)
        else:
            own = {}
    settings = dict(own)
    if has_frozen_backbone(summary):
        settings = dict(defaults_of(CIFNetModule))
        own_settings = {f"head.{name}": value for name, value in own.items()}
        settings.update(own_settings)
    sections = {
        "trainer": Trainer,
        "data": CIFNetDataModule,
        "buffer": CalibrationBuffer,
    }
    sections.update({"energy": EnergyMonitor, "checkpoint": TaskCheckpoint})
    for section, part in sections.items():
        for name, value in defaults_of(part).items():
            settings[f"{section}.{name}"] = value
    return settings


def has_frozen_backbone(summary: Mapping[str, Any]) -> bool:
    """Return whether a run learned a head on a frozen backbone: trained methods have no head."""
    return summary.get("head_settings") is not None


def _section(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {}


# ---------------------------------------------------------------------- names in tables and figures

METHODS = {
    kind.__name__: title_of(kind)
    for kind in (*heads.HEADS.values(), *iterative.METHODS)
}
"""Class of a head or trained method → its name in tables, in the order of the rows."""

JOINT = "Joint logistic regression (bound)"
"""Logistic regression on all embeddings ever seen: a reference, not a method for streams."""

ALL_EMBEDDINGS = 10_000_000
"""A buffer of this capacity keeps every embedding: logistic regression on it is the joint bound."""

SETTING_TEXTS: dict[tuple[str, Any], str] = {
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
    ("calibrate", True): "calibrated",
    ("calibrate", False): "not calibrated",
}
"""(setting, value) → its text in a method's name; others are named by :func:`setting_text`."""

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

HEADINGS = {
    "head.ridge": "ridge λ",
    "buffer.capacity": "size of the buffer (embeddings)",
}
"""Setting of a figure of the paper → its name as a heading; others have their dotted name."""


def method_of(run: Run) -> str:
    """Return the name of a run's method: the title of its head or module."""
    head = str(run.summary["head"])
    buffer = run.summary.get("buffer_settings") or {}
    capacity = buffer.get("capacity") or 0
    if head == "LogisticHead" and capacity >= ALL_EMBEDDINGS:
        return JOINT
    known = METHODS.get(head, head)
    return str(run.summary.get("title") or known)


def setting_text(key: str, value: Any) -> str:
    """Return a setting and its value as part of a method's name.

    Args:
        key: dotted name of the setting.
        value: of the setting.

    Example:
        >>> setting_text("head.ridge", 0.01)
        'λ 0.01'
    """
    if isinstance(value, str | bool | None) and (key, value) in SETTING_TEXTS:
        return SETTING_TEXTS[key, value]
    last_name = key.split(".")[-1]
    name = SYMBOLS.get(key) or last_name.replace("_", " ")
    if isinstance(value, float):
        return f"{name} {value:g}"
    return f"{name} {value_text(value)}"


def heading(key: str) -> str:
    """Return a setting as a heading or the label of an axis."""
    return HEADINGS.get(key, key)


def value_text(value: Any) -> str:
    """Return a setting's value as it is shown under its heading."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        if value:
            return "yes"
        return "no"
    return str(value)
