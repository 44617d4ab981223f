"""Sub-commands that need no Trainer: each is a function, and its signature is its command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module

from cifnet_pl.cli.parsing import OneSentence
from cifnet_pl.utilities.errors import UsageError

COMMANDS: dict[str, str] = {
    "classify": "cifnet_pl.cli.classify",
    "export": "cifnet_pl.cli.export",
    "extend": "cifnet_pl.cli.extend",
    "forget": "cifnet_pl.cli.forget",
    "info": "cifnet_pl.cli.info",
    "merge": "cifnet_pl.cli.merge",
    "report": "cifnet_pl.report",
    "sweep": "cifnet_pl.cli.sweep",
    "unpack": "cifnet_pl.cli.unpack",
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
    own, given = with_values(function, args), {}
    parser.add_function_arguments(function, skip=skipped, as_group=False, sub_configs=False)
    keywords = _without_underscores(parser)
    if name in OVERRIDES:
        own, given[OVERRIDES[name]] = split_overrides(own)
    found = {keywords.get(key, key): value for key, value in vars(parser.parse_args(own)).items()}
    function(**found, **given)


def _without_underscores(parser: OneSentence) -> dict[str, str]:
    """Rename options that end with an underscore, as their parameters do; gives each option's parameter."""
    renamed = {}
    for action in parser._actions:
        if action.dest.endswith("_"):
            parameter, action.dest = action.dest, action.dest.rstrip("_")
            renamed[action.dest] = parameter
            action.option_strings = [f"--{action.dest}"]
            parser._option_string_actions[f"--{action.dest}"] = parser._option_string_actions.pop(f"--{parameter}")
    return renamed


def with_values(function: Callable[..., object], args: Sequence[str]) -> list[str]:
    """``args`` with the value that a bare boolean leaves out."""
    parameters = inspect.signature(function).parameters
    flags = {f"--{key}" for key, parameter in parameters.items() if isinstance(parameter.default, bool)}
    pairs = zip(args, [*args, "--"][1:], strict=True)
    return [f"{word}=true" if word in flags and following.startswith("--") else word for word, following in pairs]


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
