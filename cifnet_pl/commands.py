"""Sub-commands that need no Trainer: each is a function, and its signature is its command line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jsonargparse import ArgumentParser

COMMANDS: dict[str, Callable[..., object]] = {}
"""Name → function; parameters become options, ``Args:`` of the docstring their help."""

POSITIONAL: dict[str, str] = {}
"""Name of a command → its parameter that is given by position, a list of strings."""


def run_command(name: str, args: Sequence[str]) -> None:
    """Parse ``args`` by the signature of command ``name`` and call it."""
    function = COMMANDS[name]
    parser = ArgumentParser(prog=f"cifnet {name}", description=(function.__doc__ or "").split("\n")[0])
    skipped: set[str | int] = {POSITIONAL[name]} if name in POSITIONAL else set()
    for parameter in skipped:
        parser.add_argument(str(parameter), nargs="+")
    parser.add_function_arguments(function, skip=skipped, as_group=False, sub_configs=False)
    function(**vars(parser.parse_args(list(args))))
