"""Sweep files: a base configuration and axes of options → one whole configuration per point, with a stable name."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import read_yaml

KEYS = ("base", "fixed", "axes", "seeds", "parts")
PART_KEYS = ("label", "fixed", "axes")
NO_EFFECT = ("experiment", "logs", "data.num_workers", "data.memory_mb", "data.cache_folder")
"""Settings that change neither the results nor what they cost: a point that was run with others is still done."""


@dataclass(frozen=True)
class Point:
    """One run of a sweep. ``name`` is its experiment's; it ends in ``identity``, a hash of the configuration."""

    name: str
    identity: str
    config: dict[str, Any]


def read_points(path: Path, overrides: Sequence[tuple[str, str]] = ()) -> list[Point]:
    """The points of a sweep file, in order, each configuration once.

    Args:
        path: YAML with ``base`` (a configuration file, relative to this one), ``fixed`` (dotted name → value, for all
            points), ``axes`` (name → options, each with a ``label`` and dotted names), ``seeds`` (each sets both
            seed_everything and the class order), and ``parts`` (one for each data set, with ``label``, ``fixed`` and
            ``axes`` of its own). A point has one option of each axis.
        overrides: (dotted name, YAML value) pairs that come last and win. An axis that makes no difference any more
            is not in the name. With data.source or data.root among them the data set is given: only the first part
            is run, on that data.

    Raises:
        UsageError: a file that is missing, is not YAML or is not a sweep; the sentence says where.
    """
    sweep = _mapping(read_yaml(path), path, KEYS)
    if not isinstance(sweep.get("base"), str):
        raise UsageError(f"{path} has no base: name the configuration file that its points start from")
    base = read_yaml(path.parent / sweep["base"])
    if not isinstance(base, dict):
        raise UsageError(f"{path.parent / sweep['base']} is not a configuration: expected keys and values")
    base.setdefault("model", {"class_path": "cifnet_pl.CIFNetModule"})
    parts = sweep.get("parts") or [{}]
    if not isinstance(parts, list):
        raise UsageError(f"{path}: parts is not a list")
    common = _axes(sweep.get("axes"), path)
    other_data = any(name in ("data.source", "data.root") for name, _ in overrides)
    points: dict[str, Point] = {}
    for part in (_mapping(part, path, PART_KEYS) for part in (parts[:1] if other_data else parts)):
        axes = {**_axes(part.get("axes"), path), **common, **_seed_axis(sweep.get("seeds"), path)}
        fixed = {**_options(sweep.get("fixed"), path), **_options(part.get("fixed"), path)}
        label = [str(part["label"])] if "label" in part and not other_data else []
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
    """All combinations of one option of each axis."""
    found = []
    for options in itertools.product(*axes.values()):
        config = copy.deepcopy(dict(base))
        for name, value in [*fixed.items(), *(pair for option in options for pair in option.items())]:
            if name != "label":
                put(config, name, copy.deepcopy(value), str(path))
        for name, value in overrides:
            put(config, name, _value(name, value), "command line")
        found.append(([str(option["label"]) for option in options], identity(config), config))
    kept = [i for i in range(len(axes)) if _matters(i, [(labels, own) for labels, own, _ in found])]
    return [
        Point("-".join([*map(_slug, label + [labels[i] for i in kept]), own]) or own, own, config)
        for labels, own, config in found
    ]


def _matters(axis: int, points: Sequence[tuple[list[str], str]]) -> bool:
    """Whether points that differ in one axis only are different configurations."""
    others: dict[tuple[str, ...], set[str]] = {}
    for labels, own in points:
        others.setdefault((*labels[:axis], *labels[axis + 1 :]), set()).add(own)
    options = {labels[axis] for labels, _ in points}
    return len(options) < 2 or any(len(own) > 1 for own in others.values())


def identity(config: Mapping[str, Any]) -> str:
    """Ten hexadecimal digits that two configurations share only if they give the same run."""
    plain = copy.deepcopy(dict(config))
    for name in NO_EFFECT:
        section, _, key = name.rpartition(".")
        holder = plain.get(section) if section else plain
        if isinstance(holder, dict):
            holder.pop(key, None)
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:10]


def put(config: dict[str, Any], name: str, value: Any, where: str) -> None:
    """Set a dotted name in a configuration; ``init_args`` may be left out of it, as on the command line.

    A mapping is merged into the one that is there, unless it names a class: then it takes its place.

    Raises:
        UsageError: the name leads through something that has no parts.
    """
    *path, last = name.split(".")
    node: Any = config
    for part in path:
        node = _arguments(node, part)
        node = node.setdefault(part, {}) if isinstance(node, dict) else None
        if not isinstance(node, dict):
            raise UsageError(f"{where}: {name} cannot be set, there is no {part} that has settings")
    node = _arguments(node, last)
    old = node.get(last)
    if isinstance(old, dict) and isinstance(value, dict) and "class_path" not in value:
        for key, inner in value.items():
            put(old, str(key), inner, where)
    else:
        node[last] = value


def _arguments(node: Any, part: str) -> Any:
    if isinstance(node, dict) and "class_path" in node and part not in ("class_path", "init_args", "dict_kwargs"):
        if not isinstance(node.get("init_args"), dict):
            node["init_args"] = {}
        return node["init_args"]
    return node


# ---------------------------------------------------------------------- reading


def _mapping(content: Any, path: Path, keys: Sequence[str]) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a sweep: expected {', '.join(keys)}")
    unknown = [key for key in content if key not in keys]
    if unknown:
        raise UsageError(f"{path}: '{unknown[0]}' is not a part of a sweep, expected {', '.join(keys)}")
    return content


def _options(content: Any, path: Path) -> dict[str, Any]:
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UsageError(f"{path}: '{content}' is not a set of options, expected dotted names and values")
    return content


def _axes(content: Any, path: Path) -> dict[str, list[dict[str, Any]]]:
    axes = {}
    for name, options in _options(content, path).items():
        if not isinstance(options, list) or not options:
            raise UsageError(f"{path}: axis {name} has no options, expected a list")
        axes[name] = [_options(option, path) for option in options]
        labels = [str(option.get("label", "")) for option in axes[name]]
        if "" in labels:
            raise UsageError(f"{path}: an option of axis {name} has no label")
        if len(set(map(_slug, labels))) < len(labels):
            raise UsageError(f"{path}: two options of axis {name} have the same label")
    return axes


def _seed_axis(seeds: Any, path: Path) -> dict[str, list[dict[str, Any]]]:
    """An axis over seeds: each sets the seed of the run and that of the class order."""
    if seeds is None:
        return {}
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise UsageError(f"{path}: seeds is '{seeds}', expected a list of integers")
    return {"seed": [{"label": f"s{s}", "seed_everything": s, "data.class_order": s} for s in dict.fromkeys(seeds)]}


def _value(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--{name} is '{text}', which is not a YAML value") from error


def _slug(label: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+]+", "_", label).strip("_")
