"""Read a run's configuration: the setting (data, protocol, backbone), all else that makes a method,
and their names.
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
"""Data source → name of the data set, as in the paper's tables. Other sources keep their own
name.
"""

NOT_SETTINGS = (
    "seed_everything", "data.class_order", "experiment", "logs", "ckpt_path", "weights_only", "download",
    "data.cache", "data.cache_folder", "data.num_workers", "data.unknown",
    "data.on_corrupt", "energy.enabled", "energy.tracking_mode", "predictions.every_task",
    "checkpoint.every_minutes", "trainer.accelerator", "trainer.devices",
    "trainer.num_nodes", "trainer.enable_model_summary", "trainer.enable_progress_bar", "trainer.log_every_n_steps",
)  # fmt: skip
"""Keys of ``config.yaml`` that do not make another configuration: seeds, names, and how the same
was computed.
"""

OF_SETTING = (
    "data.source", "data.root", "data.classes_per_task", "data.initial_classes", "data.max_tasks", "data.image_size",
    "data.tune", "backbone", "architecture",
)  # fmt: skip
"""Keys that belong to the setting; the others belong to the method."""


# ---------------------------------------------------------------------- the setting


@dataclass(frozen=True, order=True)
class Setting:
    """The setting that methods must share to be compared: data set, task protocol and backbone.

    Attributes:
        dataset: its name, as in the paper where it is one of the paper's.
        n_tasks, n_classes: numbers of tasks and of classes learned; few are sorted before many.
        backbone: name of the frozen network, with its architecture where one was given.
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
        """What two runs must share for their test images to be the same: all but the network and
        its images' size.
        """
        return self.dataset, self.protocol, self.n_tasks, self.n_classes, self.tune

    @property
    def network(self) -> str:
        """Backbone and size of its images in words."""
        if self.image_size:
            return f"{self.backbone}, {self.image_size} px"
        return self.backbone

    @property
    def short(self) -> str:
        """Data set and protocol, for a column of a table; says so where no test image was used."""
        if self.tune:
            tuned = f", on {100 * self.tune:g} % of the training images (tuning)"
        else:
            tuned = ""
        return f"{self.dataset}, {self.protocol} cls/task{tuned}"

    @property
    def title(self) -> str:
        """Data set, protocol, images and backbone in words."""
        return (
            f"{self.short} ({number_of(self.n_tasks, 'task')}, {self.n_classes} classes),"
            f" {self.network}"
        )


def notes_of(settings: Sequence[Setting]) -> list[str]:
    """Return notes about the labels that the backbones of ``settings`` were trained on, once
    each.
    """
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
"""λ of the paper's head below which its weights follow noise where there are about as many images
as features.
"""


def about_small_ridge(runs: Iterable[Run]) -> list[str]:
    """Warn of runs of the paper's head with a small λ that learned half to twice as many images as
    there are features.

    There ridge regression interpolates at its worst (Belkin et al., 2019), and more so the more of
    these images a class is fitted to: variants without a buffer, or with locked neurons, then come
        out better than the whole method.

    Args:
        runs: complete ones.

    Returns:
        One sentence for each number of images, width and λ.
    """
    notes: dict[str, None] = {}
    for run in runs:
        head = run.summary.get("head_settings") or {}
        images = run.summary.get("learned_images") or 0
        width = head.get("in_features") or 0
        ridge = head.get("ridge")
        close = run.summary.get("head") == "CIFNetHead" and width / 2 <= images <= 2 * width
        if close and isinstance(ridge, float) and ridge < SMALL_RIDGE:
            sentence = (
                f"{images:,} images were learned, about as many as an embedding has numbers"
                f" ({width:,}): with λ = {ridge:g} the weights follow noise there, and variants"
                " that see fewer images, without buffer or locked, can come out better than the"
                " whole method. Take --model.head.ridge 1 or gcv, or more images"
            )
            notes[sentence] = None
    return list(notes)


def setting_of(run: Run) -> Setting:
    """Return the setting of a run."""
    flat = configuration(run)
    source = str(flat.get("data.source", ""))
    root = printable(str(flat.get("data.root") or ""))
    if source == "folder":
        name = PurePath(root).name
    else:
        name = source.removeprefix("torchvision:")
    backbone = str(flat.get("backbone") or run.summary.get("backbone") or "no backbone")
    architecture = flat.get("architecture")
    initial = flat.get("data.initial_classes")
    per_task = flat.get("data.classes_per_task")
    if isinstance(per_task, list):
        protocol = ", ".join(map(str, per_task))
    else:
        protocol = str(per_task)
    return Setting(
        dataset=DATASETS.get(source, name or source),
        n_tasks=run.summary["n_tasks"],
        n_classes=run.summary["n_classes"],
        backbone=f"{backbone} ({architecture})" if architecture else backbone,
        image_size=flat.get("data.image_size") or 0,
        root=root,
        tune=flat.get("data.tune") or 0.0,
        protocol=f"{initial} + {protocol}" if initial else protocol,
    )


def distinct_names(settings: Sequence[Setting], networks: bool) -> dict[Setting, str]:
    """Return a name for each setting; where settings of one name differ, what they differ in is
    added.

    Args:
        settings: of a report.
        networks: whether they may differ in backbone and size of images too.
    """
    extras: list[Callable[[Setting], str]] = [
        lambda s: f"{s.n_tasks} tasks", lambda s: f"{s.n_classes} classes", lambda s: s.root
    ]  # fmt: skip
    if networks:
        extras = [
            lambda s: s.backbone,
            lambda s: f"{s.image_size} px" if s.image_size else "own size",
            *extras,
        ]
    names = {setting: setting.short for setting in settings}
    for extra in extras:
        said = {
            name: {extra(s) for s, other in names.items() if other == name}
            for name in names.values()
        }
        names = {
            s: f"{name}, {extra(s)}" if len(said[name]) > 1 else name for s, name in names.items()
        }
    return names


def file_name(names: Mapping[Setting, str], setting: Setting) -> str:
    """Return a setting's name for a file; names that differ in other characters alone get a
    number.
    """
    plain = {other: slug(name.lower()) for other, name in names.items()}
    number = [other for other in plain if plain[other] == plain[setting]].index(setting)
    return plain[setting] + (f"_{number + 1}" if number else "")


# ---------------------------------------------------------------------- the configuration


def configuration(run: Run) -> dict[str, Any]:
    """Return the run's settings by dotted name, without seeds and names of folders.

    ``model.init_args.head.init_args.ridge`` becomes ``head.ridge``, and so on for the buffer. A
    buffer that the head had no use for is left out. What the run did not write, as one from plain
    Python, is the default.

    Args:
        run: a complete run.
    """
    model = _section(run.config.get("model"))
    head = str(run.summary["head"])
    arguments = dict(_section(model.get("init_args")))
    given = _section(arguments.pop("head", None))
    buffer = arguments.pop("buffer", None)
    options = given.get("init_args")
    if not isinstance(
        options, Mapping
    ):  # the head was left to its defaults, which the summary spells out
        learned = run.summary.get("head_settings") or {}
        options = {
            k: v
            for k, v in learned.items()
            if k != "in_features" and not str(v).startswith("seed ")
        }
    parts = {
        key: value for key, value in run.config.items() if key not in ("model", "lightning.pytorch")
    }
    flat = {**flatten(parts), "module": model.get("class_path"), **flatten(arguments), "head": head}
    flat.update(flatten(options, "head."))
    if isinstance(buffer, Mapping) and run.summary.get("buffer_settings") is not None:
        flat.update({"buffer": "yes", **flatten(_section(buffer.get("init_args")), "buffer.")})
    elif getattr(heads.HEADS.get(head), "uses_buffer", False):
        flat["buffer"] = None
    left = {
        k: v
        for k, v in defaults(run.summary).items()
        if flat.get("buffer") == "yes" or not k.startswith("buffer.")
    }
    flat = {**left, **flat}
    callbacks = flat.get("trainer.callbacks")
    if isinstance(callbacks, list):
        flat["trainer.callbacks"] = [
            c for c in callbacks if "ActivationTable" not in str(c)
        ] or None
    if isinstance(run.config["data"].get("class_order"), list):
        flat["data.order"] = run.config["data"]["class_order"]
    return {
        key: value
        for key, value in flat.items()
        if key not in NOT_SETTINGS and key.split(".")[-1] != "seed"
    }


def defaults(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of every setting that has one, by dotted name; of the head or method as
    the run has them.

    Args:
        summary: of a run.
    """
    known = {**heads.HEADS, **{method.__name__: method for method in iterative.METHODS}}.get(
        str(summary["head"])
    )
    own = summary.get("defaults") or (defaults_of(known) if known else {})
    if is_frozen(summary):
        own = {
            **defaults_of(CIFNetModule),
            **{f"head.{name}": value for name, value in own.items()},
        }
    parts = {
        "trainer.": Trainer, "data.": CIFNetDataModule, "energy.": EnergyMonitor, "checkpoint.": TaskCheckpoint,
        "buffer.": CalibrationBuffer,
    }  # fmt: skip
    return {
        **own,
        **{
            prefix + name: v
            for prefix, part in parts.items()
            for name, v in defaults_of(part).items()
        },
    }


def is_frozen(summary: Mapping[str, Any]) -> bool:
    """Return whether a run learned a head on a frozen network: a method that trains its network has
    none.
    """
    return summary.get("head_settings") is not None


def _section(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    return {}


# ---------------------------------------------------------------------- names in tables and figures

METHODS = {kind.__name__: title_of(kind) for kind in (*heads.HEADS.values(), *iterative.METHODS)}
"""Class of a head, or of a module that trains the network → its name in tables, in the order of the
rows.
"""

JOINT = "Joint logistic regression (bound)"
"""Logistic regression on all embeddings ever seen: a reference, not a way to learn a stream."""

ALL_EMBEDDINGS = 10_000_000
"""A buffer of this capacity keeps every embedding: logistic regression on it is the joint bound."""

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
    ("calibrate", True): "calibrated",
    ("calibrate", False): "not calibrated",
}
"""(setting, value) → how a method's name says so; other settings are named by :func:`words`."""

LACKING = {
    "buffer": None,
    "buffer.oversample": False,
    "head.update_past": False,
    "head.weighting": "released",
}
"""Settings that a method's name always mentions at this value, whether or not there is anything to
compare it with.

A change of one of them takes a part of the method away (tab:ablation), each by itself.
"""

SHORT = {"head.ridge": "λ", "buffer.capacity": "buffer", "buffer.per_class": "buffer per class"}
"""Setting → its name before a value."""

LONG = {"head.ridge": "ridge λ", "buffer.capacity": "size of the buffer (embeddings)"}
"""Setting of a figure of the paper → its name as a heading or the label of an axis; others have
their own.
"""


def method_of(run: Run) -> str:
    """Return the name of a run's method: the title of its head or module."""
    head = str(run.summary["head"])
    buffer = run.summary.get("buffer_settings") or {}
    if head == "LogisticHead" and (buffer.get("capacity") or 0) >= ALL_EMBEDDINGS:
        return JOINT
    return str(run.summary.get("title") or METHODS.get(head, head))


def words(key: str, value: Any) -> str:
    """Return a setting and its value as part of a method's name.

    Args:
        key: dotted name of the setting.
        value: of the setting.

    Example:
        >>> words("head.ridge", 0.01)
        'λ 0.01'
    """
    known = WORDS.get((key, value)) if isinstance(value, str | bool | None) else None
    if known is not None:
        return known
    if isinstance(value, float):
        shown = f"{value:g}"
    else:
        shown = value_name(value)
    return f"{SHORT.get(key) or key.split('.')[-1].replace('_', ' ')} {shown}"


def heading(key: str) -> str:
    """Return a setting as a heading or the label of an axis."""
    return LONG.get(key, key)


def value_name(value: Any) -> str:
    """Return a setting's value as it is shown under its heading."""
    if isinstance(value, bool | None):
        return {None: "none", True: "yes", False: "no"}[value]
    return str(value)
