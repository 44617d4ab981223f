"""The points of a sweep file: each is a whole configuration with a name."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from cifnet_pl.cli.parsing import arguments_of
from cifnet_pl.utilities.errors import UsageError, unknown_name
from cifnet_pl.utilities.files import read_yaml
from cifnet_pl.utilities.text import slug

KEYS = ("base", "fixed", "axes", "seeds", "parts")
PART_KEYS = ("label", "fixed", "axes")
OWN_KEYS = ("label", "config", "keep")
"""Keys of an option that are not settings."""

NO_EFFECT = ("experiment", "logs", "data.num_workers", "data.cache_folder")
"""Settings that do not change the results: a point that was run with others is still done."""

INNER = ("class_path", "init_args", "dict_kwargs")
"""Parts of the name of an option that lead into a class."""

Axes = dict[str, list[dict[str, Any]]]
"""Name of an axis → its options, each with a ``label`` and settings by dotted name."""


@dataclass
class Point:
    """One run of a sweep.

    Attributes:
        config: the whole configuration.
        labels: axis → label of the point's option; "part" and "seed" among them.
        unfit: names of the overrides that its classes do not have, and that were left out of it.
        kept: names of the overrides that the sweep file keeps its own settings against.
        named_by: axes whose labels are in its name.
    """

    config: dict[str, Any]
    labels: Mapping[str, str]
    unfit: Sequence[str] = ()
    kept: Sequence[str] = ()
    named_by: Sequence[str] = ()

    @cached_property
    def identity(self) -> str:
        """A hash of the configuration."""
        return identity(self.config)

    @property
    def name(self) -> str:
        """The name of its experiment; it ends in ``identity``."""
        return "-".join([*(short(self.labels[axis]) for axis in self.named_by), self.identity])

    @property
    def title(self) -> str:
        """The labels of its options but for the seed, or its name where there are none."""
        return " ".join(label for axis, label in self.labels.items() if axis != "seed") or self.name


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
    sweep = _sections(read_yaml(path), path, KEYS)
    if not isinstance(sweep.get("base"), str):
        raise UsageError(f"{path} has no base: name the configuration file that its points start from")
    base = read_yaml(path.parent / sweep["base"])
    if not isinstance(base, dict):
        raise UsageError(f"{path.parent / sweep['base']} is not a configuration: expected keys and values")
    base.setdefault("model", {"class_path": "cifnet_pl.CIFNetModule"})
    parts = sweep.get("parts") or [{}]
    if not isinstance(parts, list):
        raise UsageError(f"{path}: parts is not a list")
    common, over_seeds = _axes(sweep.get("axes"), path), _seeds(sweep.get("seeds") if seeds is None else seeds, path)
    other_data = any(name in ("data.source", "data.root") for name, _ in overrides)
    points: dict[str, Point] = {}
    for part in parts[:1] if other_data else parts:
        settings = _sections(part, path, PART_KEYS)
        own: Axes = {"part": [{"label": settings["label"]}]} if "label" in settings and not other_data else {}
        axes = {**own, **_axes(settings.get("axes"), path), **common, **over_seeds}
        fixed = {**_options(sweep.get("fixed"), path), **_options(settings.get("fixed"), path)}
        for point in _product(path, base, fixed, axes, overrides):
            points.setdefault(point.identity, point)
    return list(points.values())


def choose(points: Sequence[Point], only: Sequence[str], without: Sequence[str]) -> list[Point]:
    """Choose points by the labels of their options.

    Args:
        points: of a sweep.
        only: labels; of each axis that one belongs to, a point must have one of these labels.
        without: labels that a point must not have.

    Raises:
        UsageError: a label that no point has.
    """
    known = {short(label): label for point in points for label in point.labels.values()}
    for label in [*only, *without]:
        if short(label) not in known:
            raise unknown_name("label of the sweep", label, known.values())
    wanted, unwanted = set(map(short, only)), set(map(short, without))
    axes = {axis for point in points for axis, label in point.labels.items() if short(label) in wanted}
    return [
        point
        for point in points
        if all(short(point.labels.get(axis, "")) in wanted for axis in axes)
        and not unwanted & set(map(short, point.labels.values()))
    ]


def short(label: str) -> str:
    """Return a label for a file's name: letters, digits, dots and plus signs."""
    return slug(label, keep="A-Z.+")


def identity(config: Mapping[str, Any]) -> str:
    """Return ten hexadecimal digits that two configurations share only if they give the same run."""
    plain = copy.deepcopy(dict(config))
    for name in NO_EFFECT:
        section, _, key = name.rpartition(".")
        holder = plain.get(section) if section else plain
        if isinstance(holder, dict):
            holder.pop(key, None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:10]


# ---------------------------------------------------------------------- parts of the file


def _sections(content: Any, path: Path, keys: Sequence[str]) -> dict[str, Any]:
    unknown = [key for key in content if key not in keys] if isinstance(content, dict) else []
    if not isinstance(content, dict) or unknown:
        what = f"'{unknown[0]}' is not a part of a sweep" if unknown else "it is not a sweep"
        raise UsageError(f"{path}: {what}, expected {', '.join(keys)}")
    return content


def _options(content: Any, path: Path) -> dict[str, Any]:
    """Return a mapping of dotted names to values; nothing is an empty one."""
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UsageError(f"{path}: '{content}' is not a set of options, expected dotted names and values")
    return content


def _axes(content: Any, path: Path) -> Axes:
    """Return the options of each axis, those with a pattern of configurations once for each file."""
    axes = {}
    for name, options in _options(content, path).items():
        if not isinstance(options, list) or not options:
            raise UsageError(f"{path}: axis {name} has no options, expected a list")
        axes[name] = [variant for option in options for variant in _variants(_options(option, path), path)]
        labels = [short(str(option.get("label", ""))) for option in axes[name]]
        if "" in labels:
            raise UsageError(f"{path}: an option of axis {name} has no label")
        if len(set(labels)) < len(labels):
            raise UsageError(f"{path}: two options of axis {name} have the same label")
    return axes


def _variants(option: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """Return an option with the content of its ``config``; a pattern gives one for each file, labelled by its name."""
    kept = option.get("keep", [])
    if not isinstance(kept, list) or not all(isinstance(name, str) for name in kept):
        raise UsageError(f"{path}: keep is '{kept}', expected a list of dotted names, such as [model.backbone]")
    if "config" not in option:
        return [option]
    pattern = path.parent / str(option["config"])
    files = sorted(pattern.parent.glob(pattern.name)) if "*" in pattern.name else [pattern]
    if not files:
        raise UsageError(f"{path}: no file is called {option['config']}")
    variants = []
    for file in files:
        content = read_yaml(file)
        if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
            raise UsageError(f"{path}: {file} is not a configuration with a model")
        variants.append({"label": file.stem, **option, "config": content})
    return variants


def _seeds(seeds: Any, path: Path) -> Axes:
    """Return an axis over seeds: each sets the seed of the run and that of the class order."""
    if seeds is None:
        return {}
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise UsageError(f"{path}: seeds is '{seeds}', expected a list of integers")
    return {"seed": [{"label": f"s{s}", "seed_everything": s, "data.class_order": s} for s in dict.fromkeys(seeds)]}


# ---------------------------------------------------------------------- configurations


def _product(
    path: Path, base: Mapping[str, Any], fixed: Mapping[str, Any], axes: Axes, overrides: Sequence[tuple[str, str]]
) -> list[Point]:
    """Return all combinations of one option of each axis."""
    points = []
    for options in itertools.product(*axes.values()):
        config, own = copy.deepcopy(dict(base)), list[str]()
        for option in options:
            _start_from(config, option.get("config") or {})
            own += option.get("keep", ())
        for settings in (fixed, *options):
            for name, value in settings.items():
                if name not in OWN_KEYS:
                    put(config, name, copy.deepcopy(value), str(path))
        unfit, kept = _override(config, overrides, own)
        labels = {axis: str(option["label"]) for axis, option in zip(axes, options, strict=True)}
        points.append(Point(config, labels, unfit, kept))
    named_by = [axis for axis in axes if _matters(axis, points)]
    return [replace(point, named_by=named_by) for point in points]


def _matters(axis: str, points: Sequence[Point]) -> bool:
    """Return whether points that differ in one axis only are different configurations."""
    others: dict[tuple[str, ...], set[str]] = {}
    for point in points:
        rest = tuple(label for name, label in point.labels.items() if name != axis)
        others.setdefault(rest, set()).add(point.identity)
    return len({point.labels[axis] for point in points}) < 2 or any(len(found) > 1 for found in others.values())


def _start_from(config: dict[str, Any], other: Mapping[str, Any]) -> None:
    """Copy the sections of another configuration into one; names and seeds stay those of the sweep."""
    for section, content in other.items():
        if section == "data":
            config["data"] = {**config.get("data", {}), **copy.deepcopy(content)}
        elif section not in ("experiment", "logs", "seed_everything"):
            config[section] = copy.deepcopy(content)


def _override(
    config: dict[str, Any], overrides: Sequence[tuple[str, str]], own: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Put overrides into a configuration.

    Returns:
        Names of those that its classes do not have, and of those that are among its ``own`` settings.
    """
    unfit, kept = [], []
    for name, text in overrides:
        plain = f"{name.replace('.init_args', '')}."
        if any(plain.startswith(f"{setting.replace('.init_args', '')}.") for setting in own):
            kept.append(name)
        elif not fits(config, name):
            unfit.append(name)
        else:
            try:
                put(config, name, yaml.safe_load(text), "command line")
            except yaml.YAMLError as error:
                raise UsageError(f"--{name} is '{text}', which is not a YAML value") from error
    return unfit, kept


def fits(config: Mapping[str, Any], name: str) -> bool:
    """Return whether the classes of a configuration have an option: a ridge head has no ``oversample``.

    A class that cannot be imported is taken to have every option: ``fit`` reports what is wrong with it.

    Args:
        config: a configuration.
        name: dotted name of the option.
    """
    section, *path = name.split(".")
    steps = [step for step in path if step not in INNER]
    if section == "data" and steps:
        return steps[0] in (arguments_of("cifnet_pl.data.CIFNetDataModule") or ())
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
        node = _settings(node, step)
        node = node.setdefault(step, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise UsageError(f"{where}: {name} cannot be set, there is no {step} that has settings")
    node = _settings(node, last)
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
        node = _settings(node, step)
        node = node.get(step) if isinstance(node, dict) else None
    return node


def _settings(node: Any, name: str) -> Any:
    if isinstance(node, dict) and "class_path" in node and name not in INNER:
        if not isinstance(node.get("init_args"), dict):
            node["init_args"] = {}
        return node["init_args"]
    return node


# ---------------------------------------------------------------------- what is said of the points


def left_out_overrides(overrides: Sequence[tuple[str, str]], points: Sequence[Point]) -> list[str]:
    """Return a sentence for each override that some points do not have, and for each setting that some keep.

    Raises:
        UsageError: one that holds for no point.
    """
    sentences = _kept_settings(points)
    for name, _ in overrides:
        fitting = [point for point in points if name not in (*point.unfit, *point.kept)]
        if not fitting:
            kept = any(name in point.kept for point in points)
            reason = "the sweep keeps what its own file says" if kept else "none of their classes has such an option"
            raise UsageError(f"--{name} fits no point: {reason}")
        others = dict.fromkeys(point.title for point in points if name in point.unfit)
        if others:
            sentences.append(f"--{name} is for {len(fitting)} of {len(points)} points, not for: {'; '.join(others)}")
    return sentences


def _kept_settings(points: Sequence[Point]) -> list[str]:
    """Return which points keep which settings against the overrides, in a sentence for all that are alike."""
    keeping: dict[tuple[str, str], dict[str, None]] = {}
    for point in points:
        if point.kept:
            own = [f"{name} {value}" for name in point.kept if (value := value_at(point.config, name)) is not None]
            given = ", ".join(f"--{name}" for name in point.kept)
            keeping.setdefault((", ".join(own) or "their own settings", given), {})[point.title] = None
    return [
        f"{', '.join(titles)} keep {own}; the command line holds for the others ({given})"
        for (own, given), titles in keeping.items()
    ]
