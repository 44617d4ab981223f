"""Decide which custom code a command may import.

Importing a module runs its code. A name on the command line is the user's word for it. A name in a
configuration file is not, unless the command has ``--trust``, or a run on this machine wrote the
file: it then has the hash of a configuration that :func:`remember_configuration` was given.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import read_yaml, user_cache
from cifnet_pl.utilities.plugins import find_module, import_module_of, names_import
from cifnet_pl.utilities.text import listed, printable

CONFIGURABLE_MODULES = ("cifnet_pl", "lightning", "torch", "torchmetrics")
"""Packages whose classes a configuration file may name without being custom code.

Classes of any other package are custom code, which runs only where the user allowed it."""

CODE_SECTIONS = (
    ("model",),
    ("data", "source"),
    ("data", "stream"),
    *(
        ("trainer", name)
        for name in (
            "accelerator",
            "callbacks",
            "logger",
            "plugins",
            "profiler",
            "strategy",
        )
    ),
)
"""Keys of a configuration below which a text may name a class or function."""

PLAIN_TYPE = re.compile(
    r"(typing|Optional|Union|os|PathLike|_PATH|Path|pathlib|str|int|float|bool|None|NoneType|class"
    r"|list|List|dict|Dict|[^\w]+)*"
)
"""Annotation of a parameter that takes a text as it is, and imports nothing."""

SUBCOMMANDS = ("fit", "validate", "test", "predict")
"""Sub-commands, whose sections a configuration of all of them has below their names."""

CONFIG_ENDINGS = (".yaml", ".yml", ".json")

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
    """Check that all custom code of a command is named by the user or trusted, then import it.

    Only modules of the current folder are imported.

    Args:
        args: arguments of the command line, with the paths of configuration files.
        trust: whether configuration files may name custom code.

    Raises:
        UsageError: a configuration file names custom code without ``trust``, or a module of the
            current folder fails.
    """
    named = names_on_command_line(args)
    for path, keys in _files(args):
        content = read_yaml(path, "configuration file")
        names = names_in(content, path.parent, keys)
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
    """Raise UsageError if there are names of custom code.

    Args:
        origin: what names them, such as a file, or "the sweep".
        names: of classes and functions that the user neither named nor trusts.
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
        if key.startswith("--"):
            with suppress(yaml.YAMLError):
                content = yaml.safe_load(value)
                names |= names_in(content, keys=_keys(key))
    return names


def names_in(
    content: Any, folder: Path | None = None, keys: tuple[str, ...] = ()
) -> set[str]:
    """Return the custom classes and functions that a configuration names.

    These are texts that the reader of configurations would import: of any ``class_path``, and of
    the sections that take classes. Names of images, classes and experiments may look the same.

    Args:
        content: of the configuration, or of a part of it.
        folder: of the file; files that it names are read, too. None to read none.
        keys: those that lead to the part.
    """
    names: set[str] = set()
    for named in _texts(content, keys):
        path = Path(named.text) if folder is None else folder / named.text
        if folder is not None and path.suffix in CONFIG_ENDINGS and path.is_file():
            with suppress(UsageError):
                names |= names_in(read_yaml(path), path.parent, named.keys)
            continue
        imports = re.findall(r"import:([\w.]+)", named.text)
        if not imports and named.may_be_code:
            imports = [named.text]
        names.update(filter(_is_custom, imports))
    return names


def _is_custom(name: str) -> bool:
    """Return whether a name is that of an import from another package than the listed ones."""
    listed_module = name.partition(".")[0] in CONFIGURABLE_MODULES
    return names_import(name) and not listed_module and find_module(name) is not None


class NamedText(NamedTuple):
    """A text of a configuration.

    Attributes:
        text: the text.
        keys: those that lead to it.
        owner: ``class_path`` whose ``init_args`` it is one of; "" if there is none.
    """

    text: str
    keys: tuple[str, ...]
    owner: str

    @property
    def may_be_code(self) -> bool:
        """Whether the reader of configurations would import the text where it names an import."""
        if self.keys[-1:] == ("class_path",):
            return True
        if not any(self.keys[: len(keys)] == keys for keys in CODE_SECTIONS):
            return False
        return not _is_custom(self.text) or not _takes_plain_text(
            self.owner, self.keys[-1]
        )


def _texts(content: Any, keys: tuple[str, ...], owner: str = "") -> Iterator[NamedText]:
    """Yield the texts of a configuration."""
    if isinstance(content, str):
        yield NamedText(content, keys, owner)
    elif isinstance(content, dict):
        class_path = str(content.get("class_path", ""))
        for key, inner in content.items():
            inner_keys = (*keys, *_keys(str(key)))
            inner_owner = class_path if inner_keys[-1:] == ("init_args",) else ""
            if keys[-1:] == ("init_args",):
                inner_owner = owner
            yield from _texts(inner, inner_keys, inner_owner)
    elif isinstance(content, list):
        for inner in content:
            yield from _texts(inner, keys)


def _keys(option: str) -> tuple[str, ...]:
    """Return the keys of an option, or of a key with dots in it.

    Example:
        >>> _keys("--trainer.callbacks+"), _keys("init_args")
        (('trainer', 'callbacks'), ('init_args',))
    """
    plain = option.removeprefix("--").removesuffix("+").removesuffix(".help")
    keys = tuple(plain.removesuffix("+").split("."))
    return keys[1:] if keys[0] in SUBCOMMANDS else keys


def _takes_plain_text(owner: str, parameter: str) -> bool:
    """Return whether a class of a listed package takes a parameter as a text.

    Args:
        owner: its ``class_path``.
        parameter: name of the parameter.
    """
    module, _, name = owner.rpartition(".")
    if module.partition(".")[0] not in CONFIGURABLE_MODULES:
        return False
    try:
        parameters = signature(getattr(import_module(module), name)).parameters
        annotation = parameters[parameter].annotation
    except (ImportError, AttributeError, KeyError, TypeError, ValueError):
        return False
    return PLAIN_TYPE.fullmatch(str(annotation)) is not None


def _options(args: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options with their values."""
    for word, following in zip(args, [*args[1:], ""], strict=True):
        key, equals, value = word.partition("=")
        if word.startswith("-"):
            yield key, value if equals else following


class ConfigFile(NamedTuple):
    """A configuration file of a command line.

    Attributes:
        path: of the file.
        keys: those of the section that it holds; none for a whole configuration.
    """

    path: Path
    keys: tuple[str, ...]


def _files(args: Sequence[str]) -> list[ConfigFile]:
    """Return the configuration files of a command line: of ``--config``, and of sections."""
    files = []
    for key, value in _options(args):
        path = Path(value)
        is_whole = key in ("--config", "-c")
        if (is_whole or path.suffix in CONFIG_ENDINGS) and path.is_file():
            files.append(ConfigFile(path, () if is_whole else _keys(key)))
    return files


# ---------------------------------------------------------------------- own configurations


def remember_configuration(text: str) -> None:
    """Remember that a run on this machine wrote a configuration, if it names custom code.

    Args:
        text: content of the file.
    """
    if names_in(yaml.safe_load(text)):
        with suppress(OSError, UsageError):  # read-only, or no home folder
            path = _own_configurations()
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(f"{_hash(text.encode())}\n")


def is_own_configuration(path: Path) -> bool:
    """Return whether a run on this machine wrote a configuration file."""
    try:
        hashes = _own_configurations().read_text(encoding="utf-8").split()
    except (OSError, UsageError, UnicodeDecodeError):
        return False
    return _hash(path.read_bytes()) in hashes


def _own_configurations() -> Path:
    return user_cache() / OWN_CONFIGURATIONS


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
