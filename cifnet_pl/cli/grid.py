"""Turn a sweep file (a base configuration and axes of options) into one configuration per point, with a stable name."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from cifnet_pl.cli.options_of_classes import fits
from cifnet_pl.cli.sweep_axes import OWN_KEYS, axes_of, options_of, sections_of, seed_axis, slug
from cifnet_pl.utilities.errors import UsageError, unknown_name
from cifnet_pl.utilities.files import read_yaml

KEYS = ("base", "fixed", "axes", "seeds", "parts")
PART_KEYS = ("label", "fixed", "axes")
NO_EFFECT = ("experiment", "logs", "data.num_workers", "data.memory_mb", "data.cache_folder")
"""Settings that change neither the results nor what they cost: a point that was run with others is still done."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep.

    Attributes:
        name: of its experiment; ends in ``identity``.
        identity: a hash of the configuration.
        config: the whole configuration.
        labels: axis → label of the point's option; "part" and "seed" among them.
        unfit: names of the overrides that its classes do not have, and that were left out of it.
        kept: names of the overrides that the sweep file keeps its own settings against.
    """

    name: str
    identity: str
    config: dict[str, Any]
    labels: Mapping[str, str] = field(default_factory=dict, compare=False)
    unfit: tuple[str, ...] = field(default=(), compare=False)
    kept: tuple[str, ...] = field(default=(), compare=False)

    @property
    def method(self) -> str:
        """A hash that points share if they differ only in what a sweep's seed sets."""
        data = {key: value for key, value in self.config.get("data", {}).items() if key != "class_order"}
        return identity({**self.config, "data": data, "seed_everything": None})


def choose(points: Sequence[Point], only: Sequence[str], without: Sequence[str]) -> list[Point]:
    """Choose points by the labels of their options.

    Args:
        points: of a sweep.
        only: labels; of each axis that one belongs to, a point must have one of these labels.
        without: labels that a point must not have.

    Raises:
        UsageError: a label that no point has.
    """
    known = {slug(label): label for point in points for label in point.labels.values()}
    for label in [*only, *without]:
        if slug(label) not in known:
            raise unknown_name("label of the sweep", label, known.values())
    wanted, unwanted = set(map(slug, only)), set(map(slug, without))
    axes = {axis for point in points for axis, label in point.labels.items() if slug(label) in wanted}
    return [
        point for point in points
        if all(slug(point.labels.get(axis, "")) in wanted for axis in axes)
        and not unwanted & set(map(slug, point.labels.values()))
    ]  # fmt: skip


def read_points(
    path: Path, overrides: Sequence[tuple[str, str]] = (), seeds: Sequence[int] | None = None
) -> list[Point]:
    """Return the points of a sweep file, in order, each configuration once.

    Args:
        path: YAML with ``base`` (a configuration file, relative to this one), ``fixed`` (dotted name → value, for all
            points), ``axes`` (name → options, each with a ``label`` and dotted names), ``seeds`` (each sets both
            seed_everything and the class order), and ``parts`` (one for each data set, with ``label``, ``fixed`` and
            ``axes`` of its own). A point has one option of each axis. An option with ``config`` (a configuration file,
            relative to this one, or a pattern for several of them, whose names are the labels) starts from that
            file's model, trainer and way of preparing images instead of those of the base. An option with ``keep`` (a
            list of dotted names) holds these settings against overrides: a trained method keeps its network where
            the command line gives the frozen one of the others.
        overrides: (dotted name, YAML value) pairs that come last and win. An axis that makes no difference any more
            is not in the name. With data.source or data.root among them the data set is given: only the first part
            is run, on that data. One that the classes of a point do not have is left out of that point.
        seeds: in place of the file's own, or None.

    Raises:
        UsageError: a file that is missing, is not YAML or is not a sweep; the sentence says where.
    """
    sweep = sections_of(read_yaml(path), path, KEYS)
    if not isinstance(sweep.get("base"), str):
        raise UsageError(f"{path} has no base: name the configuration file that its points start from")
    base = read_yaml(path.parent / sweep["base"])
    if not isinstance(base, dict):
        raise UsageError(f"{path.parent / sweep['base']} is not a configuration: expected keys and values")
    base.setdefault("model", {"class_path": "cifnet_pl.CIFNetModule"})
    parts = sweep.get("parts") or [{}]
    if not isinstance(parts, list):
        raise UsageError(f"{path}: parts is not a list")
    common = axes_of(sweep.get("axes"), path)
    other_data = any(name in ("data.source", "data.root") for name, _ in overrides)
    points: dict[str, Point] = {}
    for settings in (sections_of(settings, path, PART_KEYS) for settings in (parts[:1] if other_data else parts)):
        over_seeds = seed_axis(sweep.get("seeds") if seeds is None else list(seeds), path)
        axes = {**axes_of(settings.get("axes"), path), **common, **over_seeds}
        fixed = {**options_of(sweep.get("fixed"), path), **options_of(settings.get("fixed"), path)}
        label = [str(settings["label"])] if "label" in settings and not other_data else []
        for point in _product(path, base, fixed, axes, overrides, label):
            points.setdefault(point.identity, point)
    return list(points.values())


def _product(
    path: Path,
    base: Mapping[str, Any],
    fixed: Mapping[str, Any],
    axes: Mapping[str, list[dict[str, Any]]],
    overrides: Sequence[tuple[str, str]],
    label: list[str],
) -> list[Point]:
    """Return all combinations of one option of each axis."""
    points = []
    for options in itertools.product(*axes.values()):
        config = copy.deepcopy(dict(base))
        for option in options:
            _start_from(config, option.get("config"))
        for name, value in [*fixed.items(), *(pair for option in options for pair in option.items())]:
            if name not in OWN_KEYS:
                put(config, name, copy.deepcopy(value), str(path))
        left_out = _override(config, overrides, [name for option in options for name in option.get("keep", ())])
        points.append(([str(option["label"]) for option in options], identity(config), config, *left_out))
    shown = [i for i in range(len(axes)) if _matters(i, [(labels, content) for labels, content, *_ in points])]
    return [
        Point(
            "-".join([*map(slug, label + [labels[i] for i in shown]), content]) or content, content, config,
            {**({"part": label[0]} if label else {}), **dict(zip(axes, labels, strict=True))}, unfit, kept,
        )
        for labels, content, config, unfit, kept in points
    ]  # fmt: skip


def _override(
    config: dict[str, Any], overrides: Sequence[tuple[str, str]], own: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Put overrides into a configuration.

    Returns:
        Names of those that its classes do not have, and of those that are among its ``own`` settings.
    """
    unfit, kept = [], []
    for name, value in overrides:
        if _within(name, own):
            kept.append(name)
        elif fits(config, name):
            put(config, name, _value(name, value), "command line")
        else:
            unfit.append(name)
    return tuple(unfit), tuple(kept)


def _within(name: str, settings: Sequence[str]) -> bool:
    """Return whether a dotted name is one of some settings or in one of them, with or without ``init_args``."""
    plain = name.replace(".init_args", "") + "."
    return any(plain.startswith(own.replace(".init_args", "") + ".") for own in settings)


def _start_from(config: dict[str, Any], other: Mapping[str, Any] | None) -> None:
    """Copy the sections of another configuration into one; names and seeds stay those of the sweep."""
    for section, content in (other or {}).items():
        if section == "data":
            config["data"] = {**config.get("data", {}), **copy.deepcopy(content)}
        elif section not in ("experiment", "logs", "seed_everything"):
            config[section] = copy.deepcopy(content)


def _matters(axis: int, points: Sequence[tuple[list[str], str]]) -> bool:
    """Return whether points that differ in one axis only are different configurations."""
    others: dict[tuple[str, ...], set[str]] = {}
    for labels, content in points:
        others.setdefault((*labels[:axis], *labels[axis + 1 :]), set()).add(content)
    options = {labels[axis] for labels, _ in points}
    return len(options) < 2 or any(len(content) > 1 for content in others.values())


def identity(config: Mapping[str, Any]) -> str:
    """Return ten hexadecimal digits that two configurations share only if they give the same run."""
    plain = copy.deepcopy(dict(config))
    for name in NO_EFFECT:
        section, _, key = name.rpartition(".")
        holder = plain.get(section) if section else plain
        if isinstance(holder, dict):
            holder.pop(key, None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:10]


def put(config: dict[str, Any], name: str, value: Any, where: str) -> None:
    """Set a dotted name in a configuration; ``init_args`` may be left out of the name, as on the command line.

    A mapping is merged into the one that is there, unless it names a class: then it replaces it.

    Args:
        config: it is changed in place.
        name: dotted name.
        value: of the setting.
        where: the file or command line, for errors.

    Raises:
        UsageError: the name leads through something that has no settings.

    Example:
        >>> config = {"model": {"head": {"class_path": "RidgeHead", "init_args": {}}}}
        >>> put(config, "model.head.ridge", 0.1, "grid.yaml")
        >>> config["model"]["head"]["init_args"]
        {'ridge': 0.1}
    """
    *path, last = name.split(".")
    node: Any = config
    for step in path:
        node = _arguments(node, step)
        node = node.setdefault(step, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise UsageError(f"{where}: {name} cannot be set, there is no {step} that has settings")
    node = _arguments(node, last)
    old = node.get(last)
    if isinstance(old, dict) and isinstance(value, dict) and "class_path" not in value:
        for key, inner in value.items():
            put(old, str(key), inner, where)
    else:
        node[last] = value


def value_at(config: Mapping[str, Any], name: str) -> Any:
    """Return the value of a dotted name, None where there is none; ``init_args`` may be left out of the name."""
    node: Any = config
    for step in name.split("."):
        node = _arguments(node, step)
        node = node.get(step) if isinstance(node, dict) else None
    return node


def _arguments(node: Any, name: str) -> Any:
    if isinstance(node, dict) and "class_path" in node and name not in ("class_path", "init_args", "dict_kwargs"):
        if not isinstance(node.get("init_args"), dict):
            node["init_args"] = {}
        return node["init_args"]
    return node


def _value(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--{name} is '{text}', which is not a YAML value") from error
