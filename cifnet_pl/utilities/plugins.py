"""Import plug-ins by name: custom heads, sources, backbones and trained methods.

A plug-in is named ``module.name``, where the module is installed, on ``PYTHONPATH`` or a file in
the current folder, or by the name of an entry point of an installed package. A name that the user
gives, also in a configuration, is imported; one in a model only with the user's ``--trust``.
"""

import hashlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.text import one_line, printable

OWN = "cifnet_pl"
GROUPS = ("heads", "backbones", "sources", "methods")
"""Kinds of parts; an installed package offers them as entry points of the group
``cifnet_pl.<kind>``.
"""


def import_name(factory: Callable[..., Any]) -> str:
    """Return the name of a class or function in files: its own, or its import path if outside."""
    inside = factory.__module__.split(".")[0] == OWN
    if inside:
        return factory.__qualname__
    return f"{factory.__module__}.{factory.__qualname__}"


def title_of(part: type) -> str:
    """Return the name of a head or method in tables and figures: its ``title`` or class name."""
    return str(getattr(part, "title", "")) or re.sub(
        "(Head|Module)$", "", part.__name__
    )


@cache
def defaults_of(part: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of a callable's arguments that are a text, a number or null.

    Seeds are left out, and whether there is a head or a buffer.
    """
    defaults = {}
    for name, argument in inspect.signature(part).parameters.items():
        is_plain = isinstance(argument.default, str | int | float | None)
        if is_plain and name not in ("head", "buffer", "seed"):
            defaults[name] = argument.default
    return defaults


@cache
def code_hash(name: str) -> str | None:
    """Return the SHA-256 of the file of an imported plug-in when first asked; None without one.

    Args:
        name: ``module.name``.
    """
    module = sys.modules.get(name.rpartition(".")[0])
    file = getattr(module, "__file__", None)
    if file:
        content = Path(file).read_bytes()
        return hashlib.sha256(content).hexdigest()
    return None


def failure(error: BaseException) -> str:
    """Return an error on one line with the plug-in's own line of code that raised it."""
    text = f"{type(error).__name__}: {one_line(error)}"
    libraries = (str(Path(__file__).parents[1]), "site-packages", "dist-packages")
    frames = traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        if not any(place in frame.filename for place in libraries):
            return f"{text} ({Path(frame.filename).name}, line {frame.lineno})"
    return text


def names_import(name: str) -> bool:
    """Return whether ``name`` has the form of an import, ``module.name``."""
    return re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", name) is not None


def entry_point(kind: str, name: str) -> str | None:
    """Find what an installed package offers under a name; nothing is imported.

    Args:
        kind: one of ``GROUPS``.
        name: of the entry point.

    Returns:
        Its import, ``module.name``; None if no package offers it.
    """
    for point in entry_points(group=f"{OWN}.{kind}", name=name):
        return f"{point.module}.{point.attr}"
    return None


def offered(kind: str) -> list[str]:
    """Return the names of all entry points of a kind."""
    return sorted(entry_points(group=f"{OWN}.{kind}").names)


def import_part(kind: str, name: str) -> bool:
    """Import a custom class, so that it is found by its name; return whether there is one.

    Args:
        kind: one of ``GROUPS``.
        name: ``module.name``, or the name under which an installed package offers it.

    Raises:
        UsageError: it cannot be imported.
    """
    factory = name if "." in name else entry_point(kind, name)
    if factory is not None:
        import_object(factory)
    return factory is not None


def optional(package: str, needed_by: str, extra: str) -> Any:
    """Import a package that is not among the dependencies.

    Args:
        package: its name in Python.
        needed_by: the option or the files that need it.
        extra: the extra of this package that installs it.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return import_module(package)
    except ImportError:
        install = f"pip install 'cifnet_pl[{extra}]'"
        raise UsageError(
            f"{needed_by} needs the package {package}: {install}"
        ) from None


@contextmanager
def current_folder_importable() -> Iterator[None]:
    """Within the block, files of the current folder can be imported, after all that is installed.

    At other times a folder of images must not run code that happens to be in it.
    """
    folder = os.getcwd()
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def import_object(name: str) -> Any:
    """Import ``module.name``, installed or in the current folder, which runs the module's code.

    Args:
        name: of a custom class or function.

    Returns:
        The class or function.

    Raises:
        UsageError: there is no such module, it has no such name, or it fails while it is imported.
    """
    if not names_import(name):
        raise UsageError(
            f"'{printable(name)}' names no import, expected module.name, e.g. my_parts.MyHead"
        )
    module, _, attribute = name.rpartition(".")
    try:
        with current_folder_importable():
            return getattr(import_module(module), attribute)
    except Exception as error:  # custom code may fail in any way
        hint = ""
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(
            f"{error.name}."
        ):
            hint = "; install it, put its folder on PYTHONPATH, or run the command in its folder"
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise UsageError(f"cannot import {name}: {reason}{hint}") from error
