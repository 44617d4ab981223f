"""Read the parts of a sweep file: its sections, its axes with their options, and the axis over seeds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import read_yaml

OWN_KEYS = ("label", "config", "keep")
"""Keys of an option that are not settings."""


def sections_of(content: Any, path: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Return a sweep, or one of its parts.

    Args:
        content: what the file has.
        path: of the file, for errors.
        keys: that may occur.

    Raises:
        UsageError: it is no mapping, or has another key.
    """
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a sweep: expected {', '.join(keys)}")
    unknown = [key for key in content if key not in keys]
    if unknown:
        raise UsageError(f"{path}: '{unknown[0]}' is not a part of a sweep, expected {', '.join(keys)}")
    return content


def options_of(content: Any, path: Path) -> dict[str, Any]:
    """Return a mapping of dotted names to values; nothing is an empty one.

    Raises:
        UsageError: it is something else.
    """
    if content is None:
        return {}
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise UsageError(f"{path}: '{content}' is not a set of options, expected dotted names and values")
    return content


def axes_of(content: Any, path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the options of each axis, those with a pattern of configurations once for each file.

    Raises:
        UsageError: an axis or an option that is none, or two options with one label.
    """
    axes = {}
    for name, options in options_of(content, path).items():
        if not isinstance(options, list) or not options:
            raise UsageError(f"{path}: axis {name} has no options, expected a list")
        axes[name] = [variant for option in options for variant in _with_configs(_option(option, path), path)]
        labels = [str(option.get("label", "")) for option in axes[name]]
        if "" in labels:
            raise UsageError(f"{path}: an option of axis {name} has no label")
        if len(set(map(slug, labels))) < len(labels):
            raise UsageError(f"{path}: two options of axis {name} have the same label")
    return axes


def _option(content: Any, path: Path) -> dict[str, Any]:
    option = options_of(content, path)
    kept = option.get("keep", [])
    if not isinstance(kept, list) or not all(isinstance(name, str) for name in kept):
        raise UsageError(f"{path}: keep is '{kept}', expected a list of dotted names, such as [model.backbone]")
    return option


def _with_configs(option: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """Return an option with the content of its ``config``.

    A pattern gives one option for each file, labelled by its name.

    Raises:
        UsageError: no such file, or it is not a configuration with a model.
    """
    if "config" not in option:
        return [option]
    pattern = str(option["config"])
    folder, _, name = pattern.rpartition("/")
    files = sorted((path.parent / folder).glob(name)) if "*" in name else [path.parent / pattern]
    variants = []
    for file in files:
        content = read_yaml(file)
        if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
            raise UsageError(f"{path}: {file} is not a configuration with a model")
        variants.append({"label": file.stem, **option, "config": content})
    if not variants:
        raise UsageError(f"{path}: no file is called {pattern}")
    return variants


def seed_axis(seeds: Any, path: Path) -> dict[str, list[dict[str, Any]]]:
    """Return an axis over seeds: each sets the seed of the run and that of the class order."""
    if seeds is None:
        return {}
    if not isinstance(seeds, list) or not seeds or not all(type(seed) is int for seed in seeds):
        raise UsageError(f"{path}: seeds is '{seeds}', expected a list of integers")
    return {"seed": [{"label": f"s{s}", "seed_everything": s, "data.class_order": s} for s in dict.fromkeys(seeds)]}


def slug(label: str) -> str:
    """Return a label for a file's name: letters, digits, dots and plus signs."""
    return re.sub(r"[^A-Za-z0-9.+]+", "_", label).strip("_")
