"""The sub-commands, and their help.

Commands that need no Trainer are functions: their signature is the command line. The help of
``fit``, ``validate``, ``test`` and ``predict`` shows the usual options on one screen, and others by
topic.
"""

import inspect
import re
import textwrap
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import dropwhile
from pathlib import Path
from typing import Literal

import docstring_parser
from jsonargparse import DefaultHelpFormatter

from cifnet_pl.cli.parsing import MODULES_OF_SHORT_NAMES, OneSentence, options_in
from cifnet_pl.utilities.errors import UsageError, unknown_name

TRAINER_COMMANDS: dict[str, str] = {
    "fit": "Learn all tasks of a data source in turn, and evaluate after each.",
    "validate": "Evaluate a checkpoint on held-out images of all classes it learned.",
    "test": "The same as validate: a class-incremental run has one held-out set.",
    "predict": "Predict the held-out images, into predictions.csv of the run.",
}
"""Sub-command that needs a Trainer (:mod:`cifnet_pl.cli.lightning_cli`) → its summary."""


COMMANDS = (
    "audit",
    "classify",
    "configs",
    "embed",
    "evaluate",
    "export",
    "extend",
    "forget",
    "info",
    "merge",
    "report",
    "serve",
    "sums",
    "sweep",
    "unpack",
    "watch",
)
"""Any other sub-command: the name of a module of this folder, and of its function.

The function's parameters become options, and ``Args:`` of its docstring their help. These modules
import torch inside their functions, so that help and errors in options do not wait for it.
"""

TEXTS = Path(__file__).parent / "help"
"""Folder of the texts of help that no parser makes."""

BY_POSITION = ("files", "models", "runs")
"""Parameters that are given by position."""

OVERRIDES = "overrides"
"""Parameter that takes the options with a dot in their name, as (name, value) pairs."""

Engine = Literal["auto", "torch", "onnxruntime"]
"""Engine that runs the backbone (:data:`cifnet_pl.backbones.engines.EngineChoice`, for modules that
import no torch).
"""


def run_command(command: str, args: Sequence[str]) -> None:
    """Parse the arguments of a command by its signature, and call it.

    Args:
        command: its name.
        args: arguments of the command line after the name.

    Raises:
        UsageError: an option or a value that the command does not have.
    """
    function = getattr(import_module(f"cifnet_pl.cli.{command}"), command)
    more = {}
    if OVERRIDES in inspect.signature(function).parameters:
        words = list(options_in(args))
        args = [word for word, value in words if value is None]
        pairs = [(word.removeprefix("--"), value) for word, value in words if value]
        more[OVERRIDES] = pairs
    if "" in args:
        raise UsageError("an argument is empty: give a value")
    options = vars(parser_of(function).parse_args(args))
    function(**options, **more)


class CommandHelp(RawDescriptionHelpFormatter, DefaultHelpFormatter):
    """The form of a command's help: jsonargparse's, but the lines of examples are kept."""


def parser_of(function: Callable[..., object]) -> OneSentence:
    """Return the parser of a command, made from its signature and docstring.

    Texts are taken as they are, and not as YAML, in which "#" would begin a comment.

    Args:
        function: of the command's name.
    """
    command = function.__name__
    help_text = docstring_parser.parse(function.__doc__ or "")
    summary = textwrap.fill(help_text.short_description or "")
    parser = OneSentence(
        prog=f"cifnet {command}",
        description=f"{summary}\n\n{examples(command)}",
        formatter_class=CommandHelp,
        parser_mode="json",
    )
    helps = {part.arg_name: part.description for part in help_text.params}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.name == OVERRIDES:
            continue
        name = parameter.name.rstrip("_")  # of class_, as class is a keyword of Python
        kind = parameter.annotation
        options = {"help": helps.get(parameter.name), "type": kind}
        if kind == Sequence[str]:
            # Several values, in one option or several.
            options |= {"type": str, "nargs": "+", "action": "extend"}
        elif kind is bool:
            options |= {"nargs": "?", "const": True}
        if name in BY_POSITION:
            parser.add_argument(name, **options)
            continue
        if parameter.default is parameter.empty:
            options["required"] = True
        else:
            options["default"] = parameter.default
        spellings = dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"])
        action = parser.add_argument(*spellings, dest=parameter.name, **options)
        action.metavar = action.metavar or name.upper()
    return parser


def examples(command: str) -> str:
    """Return the section of a command's help that shows how it is called.

    Args:
        command: its name.
    """
    lines = (TEXTS / "examples.txt").read_text(encoding="utf-8").splitlines()
    own = [f"  {line}" for line in lines if line.split()[1] == command]
    return "\n".join(["examples:", *own])


def overview() -> str:
    """Return the text of ``cifnet --help``."""
    runs = [f"  {name:<8}  {summary}" for name, summary in TRAINER_COMMANDS.items()]
    text = (TEXTS / "overview.txt").read_text(encoding="utf-8")
    return text.rstrip().format(runs="\n".join(runs))


# ---------------------------------------------------------------------- help of fit and the like

HELP = {"-h", "--help"}

TOPICS = ("model", "data", "trainer", "energy", "predictions", "checkpoint", "all")
"""Topics that may follow ``--help``: the sections of a configuration."""


def usual_help(command: str) -> str:
    """Return the help of a sub-command that needs a Trainer: the options that most runs need."""
    text = (TEXTS / "run.txt").read_text(encoding="utf-8")
    return text.rstrip().format(
        command=command,
        summary=TRAINER_COMMANDS[command],
        examples=examples(command),
        topics=", ".join(TOPICS),
    )


def topic_of(words: Sequence[str]) -> str:
    """Return the topic on which help is asked for, "" for the usual options.

    Args:
        words: of the command line after the sub-command, ``HELP`` among them.

    Raises:
        UsageError: an unknown topic.
    """
    following = list(dropwhile(lambda word: word not in HELP, words))
    topic = following[1] if len(following) > 1 else ""
    if topic and topic not in TOPICS:
        raise unknown_name("topic of --help", topic, TOPICS)
    return topic


def help_on_topic(text: str, topic: str) -> str:
    """Return a parser's help on one topic, without internal classes and markup.

    Args:
        text: the whole help.
        topic: one of ``TOPICS``.
    """
    text = re.sub(r":\w+:`~?([^`]+)`", r"\1", text).replace("``", "")
    public = "|".join(MODULES_OF_SHORT_NAMES)
    internal = rf"\b(?!(?:{public})\.[A-Z])cifnet_pl(?:\.[a-z_0-9]+)*\.[A-Z]\w+,\s+"
    text = re.sub(rf"{internal}|\blightning\.LightningModule,\s+", "", text)
    sections = text.strip().split("\n\n")
    if topic == "all":
        # Lightning's own options last.
        sections.sort(key=lambda section: "\n  --trainer" in section)
    else:
        sections = [section for section in sections if f"\n  --{topic}" in section]
    return "\n\n".join(sections) + "\n"
