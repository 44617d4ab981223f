"""Tell whether a configuration's classes have an option: a ridge head has no ``oversample``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from typing import Any

SHORT_NAMES = ("cifnet_pl", "cifnet_pl.heads", "cifnet_pl.data.streams", "cifnet_pl.iterative")
"""Modules in which a class without a module is looked up, as the command line does."""

OPEN = ("trainer", "energy", "checkpoint")
"""Sections that every configuration has."""


def fits(config: Mapping[str, Any], name: str) -> bool:
    """Return whether the classes of a configuration have an option.

    A class that cannot be imported is taken to have every option: ``fit`` reports what is wrong with it.

    Args:
        config: a configuration.
        name: dotted name of the option.
    """
    section, *path = name.split(".")
    if section in OPEN or not path:
        return True
    node = config.get(section)
    if section == "data":
        return path[0] in (_parameters("cifnet_pl.data.CIFNetDataModule") or ())
    for depth, key in enumerate(path):
        if key in ("class_path", "init_args", "dict_kwargs"):
            node = node.get(key) if isinstance(node, Mapping) else None
            continue
        if isinstance(node, Mapping) and "class_path" in node:
            known = _parameters(str(node["class_path"]))
            if known is not None and key not in known:
                return False
            node = node.get("init_args") or {}
        last = depth == len(path) - 1
        if not last and isinstance(node, Mapping) and key in node and not isinstance(node[key], Mapping):
            return False  # it leads into something without settings, such as a buffer that is null
        node = node.get(key, {}) if isinstance(node, Mapping) else {}
    return True


@cache
def _parameters(class_path: str) -> frozenset[str] | None:
    """Return the options of a class, and of the classes that it passes options on to; None if it cannot be found."""
    module, _, name = class_path.rpartition(".")
    for module_name in [module] if module else SHORT_NAMES:
        try:
            kind = getattr(import_module(module_name), name, None)
        except ImportError:
            continue
        if isinstance(kind, type):
            return frozenset(_named(kind))
    return None


def _named(kind: type) -> set[str]:
    names: set[str] = set()
    for owner in kind.__mro__:
        constructor = vars(owner).get("__init__")
        parameters = (
            inspect.signature(constructor).parameters if constructor is not None and owner is not object else {}
        )
        names |= {key for key, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        if parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            break
    return names - {"self"}
