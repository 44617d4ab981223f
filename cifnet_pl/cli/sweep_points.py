"""Read the points of a sweep file: each is a whole configuration with a name."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, StrictInt, ValidationError

from cifnet_pl.cli.parsing import arguments_of
from cifnet_pl.utilities.errors import UsageError, explained, prefixed, unknown_name
from cifnet_pl.utilities.files import flatten, read_yaml
from cifnet_pl.utilities.text import listed, slug

NO_EFFECT = ("experiment", "logs", "data.num_workers", "data.cache_folder")
"""Settings that do not change the results: a point that was run with others is still complete."""

CLASS_KEYS = ("class_path", "init_args", "dict_kwargs")
"""Steps of a dotted name that may be left out."""

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


class SweepBlock(BaseModel):
    """A part of a sweep, such as that of one data set.

    Attributes:
        label: in the names of its points.
        fixed: dotted name → value, for all points.
        axes: name → options; a point has one option of each axis.
    """

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    label: str | None = None
    fixed: dict[str, Any] = {}
    axes: dict[str, Annotated[list[Option], Field(min_length=1)]] = {}


class Sweep(SweepBlock):
    """The content of a sweep file, whose settings and axes hold for all its parts.

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
        settings = flatten(self.config)
        for name in NO_EFFECT:
            settings.pop(name, None)
        text = json.dumps(settings, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:10]

    @property
    def name(self) -> str:
        """The name of its experiment; it ends in ``identity``."""
        return "-".join([*self.labels.values(), self.identity])


def read_points(
    path: Path, overrides: Overrides = (), seeds: Sequence[int] = ()
) -> list[Point]:
    """Return the points of a sweep file, in order, each configuration once.

    Args:
        path: YAML as :class:`Sweep` has it.
        overrides: (dotted name, YAML value) pairs that come last and win. With data.source or
            data.root among them, only the first part is run, on that data.
        seeds: in place of the file's own, where there are any.

    Raises:
        UsageError: a file that is missing, is not YAML or is not a sweep; the sentence says where.
    """
    try:
        sweep = Sweep.model_validate(read_yaml(path))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "this"
        raise UsageError(f"{path}: {where}: {first['msg']}") from error
    base = {"model": {"class_path": "cifnet_pl.CIFNetModule"}}
    base |= _read_config(path.parent / sweep.base)
    seed_options = [_seed_option(seed) for seed in seeds or sweep.seeds or ()]
    points: dict[str, Point] = {}
    given_data = {"data.source", "data.root"} & dict(overrides).keys()
    for part in sweep.parts[:1] if given_data else sweep.parts:
        axes: dict[str, list[Option]] = {}
        if part.label and not given_data:
            axes["part"] = [Option(label=part.label)]
        axes |= {**part.axes, **sweep.axes}
        if seed_options:
            axes["seed"] = seed_options
        with prefixed(str(path)):
            expanded = [_expanded(*axis, path.parent) for axis in axes.items()]
        for options in itertools.product(*expanded):
            settings = [sweep.fixed, part.fixed]
            settings += [option.model_extra or {} for option in options]
            config = _config(base, options, settings)
            labels = {}
            for axis, option in zip(axes, options, strict=True):
                labels[axis] = option.label
            own_config = any(option.config for option in options)
            ignored = _override(config, overrides, own_config)
            point = Point(config, labels, ignored)
            points.setdefault(point.identity, point)
    return list(points.values())


def _read_config(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a configuration: expected keys and values")
    return content


def _seed_option(seed: int) -> Option:
    settings = {"seed_everything": seed, "data.class_order": seed}
    return Option.model_validate({"label": f"s{seed}", **settings})


def _expanded(axis: str, options: Sequence[Option], folder: Path) -> list[Option]:
    """Return an axis's options, one for each file of a pattern, with labels for names of files.

    Raises:
        UsageError: no such file, or an option without a label of its own.
    """
    expanded: dict[str, Option] = {}
    for option in options:
        files: list[Path | None] = [None]
        if option.config is not None:
            pattern = folder / option.config
            files = [*sorted(pattern.parent.glob(pattern.name))]
        if not files:
            raise UsageError(f"no file is called {option.config}")
        for file in files:
            name = option.label or (file.stem if file else "")
            label = slug(name, keep="A-Z.+")
            if label in ("", *expanded):
                raise UsageError(
                    f"axis {axis}: an option has no label, or that of another one"
                )
            update = {"label": label, "config": file and str(file)}
            expanded[label] = option.model_copy(update=update)
    return list(expanded.values())


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
    axes: dict[str, str] = {}
    for point in points:
        for axis, label in point.labels.items():
            axes[label] = axis
    for label in (*only, *without):
        if label not in axes:
            raise unknown_name("label of the sweep", label, axes)
    wanted_axes = {axes[label] for label in only}
    chosen = []
    for point in points:
        own = set(point.labels.values())
        found_axes = {axes[label] for label in own.intersection(only)}
        if found_axes == wanted_axes and own.isdisjoint(without):
            chosen.append(point)
    return chosen


# ---------------------------------------------------------------------- configurations


def _config(
    base: Mapping[str, Any],
    options: Sequence[Option],
    settings: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the configuration of a point.

    Args:
        base: that the point starts from.
        options: of the point; names and seeds of their files are not taken over.
        settings: by dotted name; the last one wins.

    Raises:
        UsageError: a class has no such setting.
    """
    config = copy.deepcopy(dict(base))
    for option in options:
        if option.config is None:
            continue
        own = _read_config(Path(option.config))
        for name in ("experiment", "logs", "seed_everything"):
            own.pop(name, None)
        data = {**config.get("data", {}), **own.get("data", {})}
        config |= {**own, "data": data}
    for group in settings:
        for name, value in group.items():
            if not put(config, name, copy.deepcopy(value)):
                raise UsageError(f"{name} cannot be set: there is no such option")
    return config


def _override(
    config: dict[str, Any], overrides: Overrides, own_config: bool
) -> list[str]:
    """Set overrides in a configuration; return the names of those that do not hold for it."""
    ignored = []
    for name, text in overrides:
        is_own = name.replace(".init_args", "") in OWN_SETTINGS and own_config
        with explained(UsageError, f"--{name} is '{text}', no YAML", yaml.YAMLError):
            value = yaml.safe_load(text)
        if is_own or not put(config, name, value):
            ignored.append(name)
    return ignored


def put(config: dict[str, Any], name: str, value: Any) -> bool:
    """Set a dotted name in a configuration; ``init_args`` may be left out of the name.

    A mapping is merged into the one that is there, unless it names a class: then it replaces it.

    Args:
        config: it is changed in place.
        name: dotted name.
        value: of the setting.

    Returns:
        Whether there is such a setting: no class on the way lacks it, as RidgeHead lacks
        oversampling, and no part is null. ``fit`` reports a class that cannot be imported.

    Example:
        >>> config = {"model": {"head": {"class_path": "RidgeHead", "init_args": {}}}}
        >>> put(config, "model.head.ridge", 0.1)
        True
        >>> config["model"]["head"]["init_args"]
        {'ridge': 0.1}
    """
    *path, last = name.split(".")
    path = [step for step in path if step not in CLASS_KEYS]
    node: Any = config
    for step in path:
        node = _settings(config, node, step)
        if node is None:
            return False
        node = node.setdefault(step, {})
    node = _settings(config, node, last)
    if node is None:
        return False
    old = node.get(last)
    if isinstance(old, dict) and isinstance(value, dict) and "class_path" not in value:
        for key, inner in value.items():
            put(old, str(key), inner)
    else:
        node[last] = value
    return True


def _settings(config: dict[str, Any], node: Any, name: str) -> dict[str, Any] | None:
    """Return the part of ``node`` in which a setting stands; None if it does not have it."""
    if not isinstance(node, dict):
        return None
    known = None
    if "class_path" in node and name not in CLASS_KEYS:
        known = arguments_of(str(node["class_path"]))
        node["init_args"] = node.get("init_args") or {}
        node = node["init_args"]
    elif node is config.get("data"):
        known = arguments_of("cifnet_pl.data.datamodule.CIFNetDataModule")
    if known is not None and name not in known:
        return None
    return cast(dict[str, Any], node)


def ignored_overrides(overrides: Overrides, points: Sequence[Point]) -> list[str]:
    """Return a sentence for each override that does not hold for some points.

    Raises:
        UsageError: one that holds for no point.
    """
    sentences = []
    for name, _ in overrides:
        without = [point.name for point in points if name in point.ignored]
        count = len(points) - len(without)
        if not count:
            raise UsageError(
                f"--{name} fits no point: their classes have no such option, or their own"
                " configurations set it"
            )
        if without:
            sentences.append(
                f"--{name} is for {count} of {len(points)} points, not for: {listed(without)}"
            )
    return sentences
