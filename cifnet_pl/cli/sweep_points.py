"""Read the points of a sweep file: each is a whole configuration with a name."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictInt,
    ValidationError,
)

from cifnet_pl.cli.parsing import arguments_of
from cifnet_pl.utilities.errors import UsageError, prefixed, unknown_name
from cifnet_pl.utilities.files import read_yaml
from cifnet_pl.utilities.run_folders import NAME_BYTES
from cifnet_pl.utilities.text import slug

NO_EFFECT = ("experiment", "logs")
NO_EFFECT_DATA = ("num_workers", "cache_folder")
"""Settings that do not change the results: a point that was run with others is still complete."""

CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
"""Steps of a dotted name that lead into a class."""

OWN_SETTINGS = ("model.backbone", "model.architecture")
"""Settings of an option's own configuration that the command line does not change.

A trained method keeps its backbone where the command line gives the frozen one of the others.
"""

Overrides = Sequence[tuple[str, str]]


class Option(BaseModel):
    """An option of an axis; all other entries are settings by dotted name.

    Attributes:
        label: in the name of a point; that of the file where ``config`` is given.
        config: a configuration file, relative to the sweep's, or a pattern for several of them. A
            point takes its model, trainer and preparation of images from it, instead of from the
            base, and keeps its ``OWN_SETTINGS``.
    """

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)

    label: str = ""
    config: str | None = None
    _start: dict[str, Any] = PrivateAttr(default_factory=dict)

    def variants(self, folder: Path) -> list[Option]:
        """Return the option with the content of its file, once per file of its pattern.

        Args:
            folder: of the sweep file.

        Raises:
            UsageError: no such file, or it has no model.
        """
        if self.config is None:
            return [self]
        pattern = folder / self.config
        variants = []
        for file in sorted(pattern.parent.glob(pattern.name)):
            content = read_yaml(file)
            if not isinstance(content, dict) or not isinstance(
                content.get("model"), dict
            ):
                raise UsageError(f"{file} is not a configuration with a model")
            variant = self.model_copy(update={"label": self.label or file.stem})
            variant._start = content
            variants.append(variant)
        if not variants:
            raise UsageError(f"no file is called {self.config}")
        return variants


class SweepSettings(BaseModel):
    """Entries that a sweep file and each of its blocks may have.

    Attributes:
        fixed: dotted name → value, for all points.
        axes: name → options; a point has one option of each axis.
    """

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    fixed: dict[str, Any] = {}
    axes: dict[str, Annotated[list[Option], Field(min_length=1)]] = {}


class SweepBlock(SweepSettings):
    """A part of a sweep, such as that of one data set; its label is in the names of its points."""

    label: str | None = None


class Sweep(SweepSettings):
    """The content of a sweep file.

    Attributes:
        base: configuration file, relative to this one.
        seeds: each sets both seed_everything and the class order.
        parts: blocks with settings and axes of their own.
    """

    base: str
    seeds: Annotated[list[StrictInt], Field(min_length=1)] | None = None
    parts: list[SweepBlock] = [SweepBlock()]


@dataclass
class Point:
    """One run of a sweep.

    Attributes:
        config: the whole configuration.
        labels: axis → label of the point's option; "part" and "seed" among them.
        ignored: names of the overrides that do not hold for it: its classes do not have them, or
            its option has settings of its own.
    """

    config: dict[str, Any]
    labels: Mapping[str, str]
    ignored: Sequence[str] = ()

    @cached_property
    def identity(self) -> str:
        """Ten hexadecimal digits that two points share only if they give the same run."""
        plain = {
            key: value for key, value in self.config.items() if key not in NO_EFFECT
        }
        data = plain.get("data", {})
        plain["data"] = {
            key: value for key, value in data.items() if key not in NO_EFFECT_DATA
        }
        text = json.dumps(plain, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def name(self) -> str:
        """The name of its experiment; it ends in ``identity``."""
        return "-".join([*map(name_of_label, self.labels.values()), self.identity])

    @property
    def title(self) -> str:
        """The labels of its options but for the seed, or its name where there are none."""
        labels = [label for axis, label in self.labels.items() if axis != "seed"]
        return " ".join(labels) or self.name


def read_points(
    path: Path, overrides: Overrides = (), seeds: Sequence[int] | None = None
) -> list[Point]:
    """Return the points of a sweep file, in order, each configuration once.

    Args:
        path: YAML as :class:`Sweep` has it.
        overrides: (dotted name, YAML value) pairs that come last and win. With data.source or
            data.root among them, only the first part is run, on that data.
        seeds: in place of the file's own, or None.

    Raises:
        UsageError: a file that is missing, is not YAML or is not a sweep; the sentence says where.
    """
    sweep = _read_sweep(path)
    base = _read_base(path.parent / sweep.base)
    seed_options = [
        _seed_option(seed) for seed in dict.fromkeys(seeds or sweep.seeds or ())
    ]
    given_data = any(name in ("data.source", "data.root") for name, _ in overrides)
    points: dict[str, Point] = {}
    for part in sweep.parts[:1] if given_data else sweep.parts:
        axes: dict[str, list[Option]] = {}
        if part.label and not given_data:
            axes["part"] = [Option(label=part.label)]
        axes |= {**part.axes, **sweep.axes}
        if seed_options:
            axes["seed"] = seed_options
        with prefixed(str(path)):
            for name, options in axes.items():
                axes[name] = _variants(name, options, path.parent)
            fixed = {**sweep.fixed, **part.fixed}
            _check_count(len(points), axes.values())
            for chosen in itertools.product(*axes.values()):
                labels = {
                    axis: one.label for axis, one in zip(axes, chosen, strict=True)
                }
                point = _point(base, fixed, chosen, labels, overrides)
                if len(point.name.encode()) > NAME_BYTES:
                    raise UsageError(
                        f"the name of point {point.name[:40]}… has more than {NAME_BYTES} bytes:"
                        " make the labels shorter"
                    )
                points.setdefault(point.identity, point)
    return list(points.values())


POINTS = 10_000
"""Points of a sweep file."""


def _check_count(before: int, axes: Iterable[Sequence[Option]]) -> None:
    """Raise UsageError for more points than ``POINTS``."""
    count = before + math.prod(map(len, axes))
    if count > POINTS:
        raise UsageError(
            f"{count:,} points, expected at most {POINTS:,}: split the file"
        )


def _read_sweep(path: Path) -> Sweep:
    try:
        return Sweep.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "this"
        raise UsageError(f"{path}: {where}: {first['msg']}") from error


def _read_base(path: Path) -> dict[str, Any]:
    base = read_yaml(path)
    if not isinstance(base, dict):
        raise UsageError(f"{path} is not a configuration: expected keys and values")
    base.setdefault("model", {"class_path": "cifnet_pl.CIFNetModule"})
    return base


def _seed_option(seed: int) -> Option:
    settings = {"label": f"s{seed}", "seed_everything": seed, "data.class_order": seed}
    return Option.model_validate(settings)


def _variants(axis: str, options: Sequence[Option], folder: Path) -> list[Option]:
    """Return the variants of an axis's options; UsageError unless their labels differ."""
    variants: list[Option] = []
    for option in options:
        variants += option.variants(folder)
    labels = [name_of_label(option.label) for option in variants]
    if "" in labels:
        raise UsageError(f"axis {axis}: an option has no label")
    if len(set(labels)) < len(labels):
        raise UsageError(f"axis {axis}: two options have the same label")
    return variants


def choose(
    points: Sequence[Point], only: Sequence[str], without: Sequence[str]
) -> list[Point]:
    """Choose points by the labels of their options.

    Args:
        points: of a sweep.
        only: labels; of each axis that one belongs to, a point must have one of these labels.
        without: labels that a point must not have.

    Raises:
        UsageError: a label that no point has.
    """
    known: dict[str, str] = {}
    axes: dict[str, str] = {}
    for point in points:
        for axis, label in point.labels.items():
            known[name_of_label(label)] = label
            axes[name_of_label(label)] = axis
    for label in [*only, *without]:
        if name_of_label(label) not in known:
            raise unknown_name("label of the sweep", label, known.values())
    wanted = {name_of_label(label) for label in only}
    unwanted = {name_of_label(label) for label in without}
    chosen = []
    for point in points:
        own = {name_of_label(label) for label in point.labels.values()}
        named_axes = {axes[label] for label in wanted}
        found_axes = {axes[label] for label in wanted & own}
        if named_axes == found_axes and not unwanted & own:
            chosen.append(point)
    return chosen


def name_of_label(label: str) -> str:
    """Return a label for a file's name: letters, digits, dots and plus signs."""
    return slug(label, keep="A-Z.+")


# ---------------------------------------------------------------------- configurations


def _point(
    base: Mapping[str, Any],
    fixed: Mapping[str, Any],
    options: Sequence[Option],
    labels: Mapping[str, str],
    overrides: Overrides,
) -> Point:
    """Return the point that has one option of each axis."""
    config = copy.deepcopy(dict(base))
    for option in options:
        _start_from(config, option._start)
    for settings in (fixed, *(option.model_extra or {} for option in options)):
        for name, value in settings.items():
            put(config, name, copy.deepcopy(value))
    keeps_own = any(option.config is not None for option in options)
    ignored = []
    for name, text in overrides:
        if (keeps_own and _is_own_setting(name)) or not fits(config, name):
            ignored.append(name)
            continue
        try:
            put(config, name, yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise UsageError(
                f"--{name} is '{text}', which is not a YAML value"
            ) from error
    return Point(config, labels, ignored)


def _is_own_setting(name: str) -> bool:
    plain = f"{name.replace('.init_args', '')}."
    return any(plain.startswith(f"{setting}.") for setting in OWN_SETTINGS)


def _start_from(config: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Copy the sections of another configuration; names and seeds stay those of the sweep."""
    for section, content in other.items():
        if section == "data":
            config["data"] = {**config.get("data", {}), **copy.deepcopy(content)}
        elif section not in ("experiment", "logs", "seed_everything"):
            config[section] = copy.deepcopy(content)


def fits(config: Mapping[str, Any], name: str) -> bool:
    """Return whether the classes of a configuration have an option; RidgeHead has no oversampling.

    A class that cannot be imported is taken to have every option: ``fit`` reports what is wrong
    with it.

    Args:
        config: a configuration.
        name: dotted name of the option.
    """
    section, *path = name.split(".")
    steps = [step for step in path if step not in CLASS_KEYS]
    if section == "data" and steps:
        return steps[0] in (
            arguments_of("cifnet_pl.data.datamodule.CIFNetDataModule") or ()
        )
    node = config.get("model") if section == "model" else {}
    for step in steps:
        if not isinstance(node, Mapping):
            return False  # it leads into something without settings, such as a buffer that is null
        if "class_path" in node:
            known = arguments_of(str(node["class_path"]))
            if known is not None and step not in known:
                return False
            node = node.get("init_args") or {}
        node = node.get(step, {})
    return True


def put(config: dict[str, Any], name: str, value: Any) -> None:
    """Set a dotted name in a configuration; ``init_args`` may be left out of the name.

    A mapping is merged into the one that is there, unless it names a class: then it replaces it.

    Args:
        config: it is changed in place.
        name: dotted name.
        value: of the setting.

    Raises:
        UsageError: the name leads through something that has no settings.

    Example:
        >>> config = {"model": {"head": {"class_path": "RidgeHead", "init_args": {}}}}
        >>> put(config, "model.head.ridge", 0.1)
        >>> config["model"]["head"]["init_args"]
        {'ridge': 0.1}
    """
    *path, last = name.split(".")
    node: Any = config
    for step in path:
        node = _settings(node, step)
        node = node.setdefault(step, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise UsageError(
                f"{name} cannot be set, there is no {step} that has settings"
            )
    node = _settings(node, last)
    old = node.get(last)
    if isinstance(old, dict) and isinstance(value, dict) and "class_path" not in value:
        for key, inner in value.items():
            put(old, str(key), inner)
    else:
        node[last] = value


def _settings(node: Any, name: str) -> Any:
    if isinstance(node, dict) and "class_path" in node and name not in CLASS_KEYS:
        if not isinstance(node.get("init_args"), dict):
            node["init_args"] = {}
        return node["init_args"]
    return node


def ignored_overrides(overrides: Overrides, points: Sequence[Point]) -> list[str]:
    """Return a sentence for each override that does not hold for some points.

    Raises:
        UsageError: one that holds for no point.
    """
    sentences = []
    for name, _ in overrides:
        without = [point for point in points if name in point.ignored]
        count = len(points) - len(without)
        if not count:
            raise UsageError(
                f"--{name} fits no point: their classes have no such option, or their own"
                " configurations set it"
            )
        if without:
            titles = "; ".join(dict.fromkeys(point.title for point in without))
            sentences.append(
                f"--{name} is for {count} of {len(points)} points, not for: {titles}"
            )
    return sentences
