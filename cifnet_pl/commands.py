"""Sub-commands that need no Trainer: each is a function, and its signature is its command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module

from cifnet_pl.errors import UsageError
from cifnet_pl.parsing import OneSentence

COMMANDS: dict[str, str] = {
    "classify": "cifnet_pl.classify",
    "export": "cifnet_pl.export",
    "extend": "cifnet_pl.extend",
    "forget": "cifnet_pl.forget",
    "info": "cifnet_pl.info",
    "merge": "cifnet_pl.merge",
    "report": "cifnet_pl.report",
    "sweep": "cifnet_pl.sweep",
    "unpack": "cifnet_pl.unpack",
}
"""Name → module that has a function of that name; parameters become options, ``Args:`` of the docstring their help.

A parameter that ends with an underscore (``class_``) is an option without it; a bare ``--name`` of a boolean is true.
"""

POSITIONAL: dict[str, str] = {"merge": "models", "report": "runs", "sweep": "files"}
"""Name of a command → its parameter that is given by position, a list of strings."""

OVERRIDES: dict[str, str] = {"sweep": "overrides"}
"""Name of a command → its parameter that takes the options with a dot in their name, as (name, value) pairs."""


def run_command(name: str, args: Sequence[str]) -> None:
    """Parse ``args`` by the signature of command ``name`` and call it."""
    function: Callable[..., object] = getattr(import_module(COMMANDS[name]), name)
    parser = OneSentence(prog=f"cifnet {name}", description=(function.__doc__ or "").split("\n")[0])
    skipped: set[str | int] = {table[name] for table in (POSITIONAL, OVERRIDES) if name in table}
    if name in POSITIONAL:
        parser.add_argument(POSITIONAL[name], nargs="+")
    own, given = with_keywords(function, args), {}
    parser.add_function_arguments(function, skip=skipped, as_group=False, sub_configs=False)
    if name in OVERRIDES:
        own, given[OVERRIDES[name]] = split_overrides(own)
    function(**vars(parser.parse_args(own)), **given)


def with_keywords(function: Callable[..., object], args: Sequence[str]) -> list[str]:
    """``args`` as jsonargparse wants them: underscores of keywords added, and bare booleans given their value."""
    parameters = inspect.signature(function).parameters
    keywords = {f"--{key[:-1]}": f"--{key}" for key in parameters if key.endswith("_")}
    flags = {f"--{key}" for key, parameter in parameters.items() if isinstance(parameter.default, bool)}
    own = []
    for word, following in zip(args, [*args[1:], "--"], strict=True):
        option, equals, value = word.partition("=")
        bare = word in flags and following.startswith("--")
        own.append(f"{word}=true" if bare else f"{keywords.get(option, option)}{equals}{value}")
    return own


def split_overrides(args: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Options with a dot in their name (``--data.root DIR`` or ``--data.root=DIR``) apart from the others.

    Raises:
        UsageError: such an option without a value.
    """
    own, overrides = [], []
    words = iter(args)
    for word in words:
        name, equals, value = word.partition("=")
        if not (name.startswith("--") and "." in name):
            own.append(word)
            continue
        given = value if equals else next(words, None)
        if given is None:
            raise UsageError(f"{name} has no value")
        overrides.append((name.removeprefix("--"), given))
    return own, overrides
