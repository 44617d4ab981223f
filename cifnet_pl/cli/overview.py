"""``cifnet --help``: print all commands with one line each, without importing any of them."""

from __future__ import annotations

from importlib.metadata import version

from cifnet_pl.cli.commands import COMMANDS, RUNS

HELP = ("-h", "--help", "help")
VERSION = ("-V", "--version")


def overview() -> str:
    """Return the text of ``cifnet --help``."""
    lines = {**RUNS, **{name: command.summary for name, command in COMMANDS.items()}}
    width = max(map(len, lines))
    return "\n".join(
        [
            "usage: cifnet COMMAND [options]",
            "",
            "Class-incremental learning without training: a frozen backbone and a closed-form classifier.",
            "",
            "A run over a stream of tasks:",
            *(f"  {name:<{width}}  {lines[name]}" for name in RUNS),
            "",
            "A learned model (--model takes a run's folder, a checkpoint or a bundle), and several runs:",
            *(f"  {name:<{width}}  {lines[name]}" for name in sorted(COMMANDS)),
            "",
            "cifnet COMMAND --help explains the options of a command; cifnet --version shows the version.",
        ]
    )


def own_version() -> str:
    """Return the text of ``cifnet --version``."""
    return f"cifnet_pl {version('cifnet_pl')}"
