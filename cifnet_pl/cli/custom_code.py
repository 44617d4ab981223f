"""Decide which custom code a command may import.

Importing a module runs its code. A name on the command line is the user's word for it. A name in a
configuration file is not, unless the command has ``--trust``, or a run on this machine wrote the
file: it then has the hash of a configuration that :func:`remember_configuration` was given.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import read_yaml
from cifnet_pl.utilities.plugins import find_module, import_module_of, names_import
from cifnet_pl.utilities.text import listed, printable

CONFIGURABLE_MODULES = ("cifnet_pl", "lightning", "torch", "torchmetrics")
"""Packages whose classes a configuration file may name without being custom code.

Classes of any other package are custom code, which runs only where the user allowed it."""

CODE_OPTION = re.compile(
    r"--(model|data\.(source|stream)|trainer\.(accelerator|callbacks|logger|plugins|profiler"
    r"|strategy))(\.[\w.]+)?\+?"
)
"""Options whose values may name a class or function."""

CONFIG_ENDINGS = (".yaml", ".yml", ".json")

CACHE_VARIABLE = "CIFNET_CACHE"
"""Environment variable that names another folder than ``~/.cache/cifnet_pl``."""

OWN_CONFIGURATIONS = "own_configurations.txt"
"""Hashes of the configurations with custom code that runs on this machine wrote."""


def split_trust(args: Sequence[str]) -> tuple[list[str], bool]:
    """Separate ``--trust`` from the other arguments.

    Args:
        args: arguments of the command line.

    Example:
        >>> split_trust(["fit", "--trust", "--data.root", "images"])
        (['fit', '--data.root', 'images'], True)
    """
    others: list[str] = []
    trust = False
    values = {"true": True, "false": False}
    previous = ""
    for word in args:
        name, _, value = word.partition("=")
        if name == "--trust":
            trust = values.get(value.lower(), True)
        elif previous == "--trust" and word.lower() in values:
            trust = values[word.lower()]
        else:
            others.append(word)
        previous = word
    return others, trust


def import_custom_code(args: Sequence[str], trust: bool) -> None:
    """Import the custom code of a command, as far as it is in the current folder.

    Args:
        args: arguments of the command line, with the paths of configuration files.
        trust: whether configuration files may name custom code.

    Raises:
        UsageError: a configuration file names custom code without ``trust``, or a module of the
            current folder fails.
    """
    named = names_on_command_line(args)
    for path in _files(args):
        names = names_in(read_yaml(path, "configuration file"), path.parent)
        if not (trust or is_own_configuration(path)):
            refuse(path, names - named)
        named |= names
    import_from_current_folder(named)


def import_from_current_folder(names: Iterable[str]) -> None:
    """Import the modules of custom code that are in the current folder and not installed.

    Args:
        names: of classes and functions, ``module.name``.

    Raises:
        UsageError: a module fails.
    """
    for name in sorted(names):
        if find_module(name) == "current folder":
            import_module_of(name)


def refuse(origin: object, names: Iterable[str]) -> None:
    """Raise UsageError if a file names custom code that the user did not name.

    Args:
        origin: the file.
        names: of classes and functions.
    """
    if names:
        shown = listed([printable(name) for name in sorted(names)])
        raise UsageError(
            f"{origin} names code from outside cifnet_pl, {shown}: add --trust if you know that"
            " code and trust it"
        )


def names_on_command_line(args: Sequence[str]) -> set[str]:
    """Return the custom classes and functions that options name.

    Args:
        args: arguments of the command line.
    """
    names: set[str] = set()
    for key, value in _options(args):
        if CODE_OPTION.fullmatch(key.removesuffix(".help")):
            with suppress(yaml.YAMLError):
                names |= names_in(yaml.safe_load(value))
    return names


def names_in(content: Any, folder: Path | None = None) -> set[str]:
    """Return the custom classes and functions that a configuration names, anywhere in it.

    Args:
        content: of the configuration.
        folder: of the file; files that it names are read, too. None to read none.
    """
    names: set[str] = set()
    for text in _strings(content):
        path = Path(text) if folder is None else folder / text
        if folder is not None and path.suffix in CONFIG_ENDINGS and path.is_file():
            with suppress(UsageError):
                names |= names_in(read_yaml(path), path.parent)
            continue
        for name in re.findall(r"import:([\w.]+)", text) or [text]:
            listed_module = name.partition(".")[0] in CONFIGURABLE_MODULES
            if names_import(name) and not listed_module and find_module(name):
                names.add(name)
    return names


def _strings(content: Any) -> Iterator[str]:
    if isinstance(content, str):
        yield content
    elif isinstance(content, dict):
        for inner in content.values():
            yield from _strings(inner)
    elif isinstance(content, list):
        for inner in content:
            yield from _strings(inner)


def _options(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options with their values."""
    for word, following in zip(args, [*args[1:], ""], strict=True):
        key, equals, value = word.partition("=")
        if word.startswith("-"):
            yield key, value if equals else following


def _files(args: Sequence[str]) -> list[Path]:
    """Return the configuration files of a command line: of ``--config``, and of sections."""
    paths = []
    for key, value in _options(args):
        path = Path(value)
        is_config = key in ("--config", "-c") or path.suffix in CONFIG_ENDINGS
        if is_config and path.is_file():
            paths.append(path)
    return paths


# ---------------------------------------------------------------------- own configurations


def remember_configuration(text: str) -> None:
    """Remember that a run on this machine wrote a configuration, if it names custom code.

    Args:
        text: content of the file.
    """
    if names_in(yaml.safe_load(text)):
        with suppress(OSError, RuntimeError):  # read-only, or no home folder
            path = _own_configurations()
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{_hash(text.encode())}\n")


def is_own_configuration(path: Path) -> bool:
    """Return whether a run on this machine wrote a configuration file."""
    try:
        hashes = _own_configurations().read_text(encoding="utf-8").split()
    except (OSError, RuntimeError, UnicodeDecodeError):
        return False
    return _hash(path.read_bytes()) in hashes


def _own_configurations() -> Path:
    cache = os.environ.get(CACHE_VARIABLE) or "~/.cache/cifnet_pl"
    return Path(cache).expanduser() / OWN_CONFIGURATIONS


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
