"""The sub-commands, and their help.

Commands that need no Trainer are functions: their signature is the command line. The help of
``fit``, ``validate``, ``test`` and ``predict`` shows the usual options on one screen, and others by
topic.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

import docstring_parser
from jsonargparse import DefaultHelpFormatter

from cifnet_pl.cli.parsing import MODULES_OF_SHORT_NAMES, OneSentence
from cifnet_pl.utilities.errors import UsageError, unknown_name
from cifnet_pl.utilities.text import wrapped

TRAINER_COMMANDS: dict[str, str] = {
    "fit": "Learn all tasks of a data source in turn, and evaluate after each.",
    "validate": "Evaluate a checkpoint on held-out images of all classes it learned.",
    "test": "The same as validate: a class-incremental run has one held-out set.",
    "predict": "Predict the held-out images, into predictions.csv of the run.",
}
"""Sub-command that needs a Trainer (:mod:`cifnet_pl.cli.lightning_cli`) → its summary."""


class Command(NamedTuple):
    """The module of a sub-command, and its summary."""

    module: str
    summary: str


COMMANDS: dict[str, Command] = {
    "audit": Command(
        "cifnet_pl.cli.audit",
        "Make a page about label errors, outliers and confusions.",
    ),
    "classify": Command("cifnet_pl.cli.classify", "Classify images, into a CSV file."),
    "configs": Command(
        "cifnet_pl.cli.configs", "List the configurations that come with the package."
    ),
    "embed": Command(
        "cifnet_pl.cli.embed", "Write the embeddings of images into one file."
    ),
    "evaluate": Command(
        "cifnet_pl.cli.evaluate", "Measure a model on labelled images."
    ),
    "export": Command(
        "cifnet_pl.cli.export", "Write a model as a bundle, or as one ONNX graph."
    ),
    "extend": Command(
        "cifnet_pl.cli.extend", "Add new classes to a model, without the old images."
    ),
    "forget": Command(
        "cifnet_pl.cli.forget", "Remove a class from a model, with its images exactly."
    ),
    "info": Command(
        "cifnet_pl.cli.info", "Show the classes, accuracy and costs of a model."
    ),
    "merge": Command(
        "cifnet_pl.cli.merge",
        "Add up what several models learned from different images.",
    ),
    "report": Command(
        "cifnet_pl.cli.report", "Make tables and figures of finished runs."
    ),
    "serve": Command(
        "cifnet_pl.serving.serve",
        "Start a page and an HTTP service to query and update a model.",
    ),
    "sums": Command(
        "cifnet_pl.cli.sums", "Make files of sums of parts of a large set, for merge."
    ),
    "sweep": Command("cifnet_pl.cli.sweep", "Run a grid of runs, one after another."),
    "unpack": Command(
        "cifnet_pl.cli.unpack", "Write the images of a data source as class folders."
    ),
    "watch": Command(
        "cifnet_pl.cli.watch",
        "Classify new images of a folder, into CSV and a webhook.",
    ),
}
"""Any other sub-command → the module with a function of its name, and its summary.

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
    function = _function(command)
    parameters = inspect.signature(function, eval_str=True).parameters
    more: dict[str, Any] = {}
    if OVERRIDES in parameters:
        args, more[OVERRIDES] = split_overrides(args)
    for option, value in vars(parser_of(command).parse_args(args)).items():
        if value == "" or (isinstance(value, list) and "" in value):
            name = f"one of the {option}" if option in BY_POSITION else f"--{option}"
            raise UsageError(f"{name} is empty: give a value")
        name = (
            option if option in parameters else f"{option}_"
        )  # a keyword of Python, such as class
        if value == "null" and parameters[name].annotation == str | None:
            value = None
        more[name] = value
    function(**more)


def _function(command: str) -> Callable[..., object]:
    module = import_module(COMMANDS[command].module)
    function: Callable[..., object] = getattr(module, command)
    return function


class CommandHelp(DefaultHelpFormatter):
    """The form of a command's help: jsonargparse's, but the lines of examples are kept."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        summary, shown = text.split("\n\n")
        filled = super()._fill_text(summary, width, indent)
        return f"{filled}\n\n{shown}"


def parser_of(command: str) -> OneSentence:
    """Return the parser of a command, made from its signature and docstring.

    Args:
        command: its name.
    """
    function = _function(command)
    help_text = docstring_parser.parse(function.__doc__ or "")
    parser = OneSentence(
        prog=f"cifnet {command}",
        description=f"{help_text.short_description}\n\n{examples(command)}",
        formatter_class=CommandHelp,
    )
    helps = {part.arg_name: part.description for part in help_text.params}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        if parameter.name != OVERRIDES:
            _add(parser, parameter, helps.get(parameter.name))
    return parser


def examples(command: str) -> str:
    """Return the section of a command's help that shows how it is called.

    Args:
        command: its name.
    """
    lines = (TEXTS / "examples.txt").read_text(encoding="utf-8").splitlines()
    own = [f"  {line}" for line in lines if line.split()[1] == command]
    return "\n".join(["examples:", *own])


def _add(
    parser: OneSentence, parameter: inspect.Parameter, help_text: str | None
) -> None:
    """Add a parameter of a command's function to its options.

    A text is taken as it is, and not as YAML, in which "#" would begin a comment.
    """
    kind = parameter.annotation
    required = parameter.default is parameter.empty
    options: dict[str, Any] = {"help": help_text, "type": kind}
    if not required:
        options["default"] = parameter.default
    if parameter.name in BY_POSITION:
        options |= {"type": str, "nargs": "+"}
        parser.add_argument(parameter.name, **options)
        return
    # Several values, in one option or several.
    if kind in (
        list[str],
        list[str] | None,
    ):
        options |= {"type": str, "nargs": "+", "action": "extend"}
    elif kind == str | None:
        options["type"] = str
    elif kind is bool:
        options |= {"nargs": "?", "const": True}
    name = parameter.name.rstrip("_")
    if "_" in name:
        spellings = [name, name.replace("_", "-")]
    else:
        spellings = [name]
    if name == "engine":  # as runs have it
        spellings.append("model.engine")
        options["metavar"] = "ENGINE"  # its values twice would not fit a terminal
    spelled = [f"--{spelling}" for spelling in spellings]
    parser.add_argument(*spelled, dest=name, required=required, **options)


def split_overrides(args: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Separate the options with a dot in their name, such as ``--data.root DIR``, from the others.

    Args:
        args: arguments of the command line.

    Returns:
        The other arguments, and (name, value) pairs.

    Raises:
        UsageError: such an option without a value.

    Example:
        >>> split_overrides(["grid.yaml", "--data.root", "images", "--dry_run"])
        (['grid.yaml', '--dry_run'], [('data.root', 'images')])
    """
    arguments = []
    overrides = []
    remaining = iter(args)
    for word in remaining:
        name, equals, value = word.partition("=")
        if not (name.startswith("--") and "." in name):
            arguments.append(word)
            continue
        text = value if equals else next(remaining, None)
        if text is None:
            raise UsageError(f"{name} has no value")
        overrides.append((name.removeprefix("--"), text))
    return arguments, overrides


def overview() -> str:
    """Return the text of ``cifnet --help``."""
    runs = [f"  {name:<8}  {summary}" for name, summary in TRAINER_COMMANDS.items()]
    others = [f"  {name:<8}  {command.summary}" for name, command in COMMANDS.items()]
    text = (TEXTS / "overview.txt").read_text(encoding="utf-8").rstrip()
    return wrapped(text.format(runs="\n".join(runs), others="\n".join(others)))


# ---------------------------------------------------------------------- help of fit and the like

TOPICS = ("model", "data", "trainer", "energy", "predictions", "checkpoint", "all")
"""Topics that may follow ``--help``: the sections of a configuration."""


def usual_help(command: str) -> str:
    """Return the help of a sub-command that needs a Trainer: the options that most runs need."""
    text = (TEXTS / "run.txt").read_text(encoding="utf-8").rstrip()
    filled = text.format(
        command=command,
        summary=TRAINER_COMMANDS[command],
        examples=examples(command),
        topics=", ".join(TOPICS),
    )
    return wrapped(filled)


def topic_of(words: Sequence[str]) -> tuple[bool, str | None]:
    """Return whether help is asked for, and on which topic; None for the usual options.

    Args:
        words: of the command line after the sub-command.

    Raises:
        UsageError: an unknown topic.
    """
    following = iter(words)
    if not any(word in ("-h", "--help") for word in following):
        return False, None
    topic = next(following, None)
    if topic is not None and topic not in TOPICS:
        raise unknown_name("topic of --help", topic, TOPICS)
    return True, topic


def help_on_topic(text: str, topic: str) -> str:
    """Return a parser's help on one topic, without internal classes and markup.

    Args:
        text: the whole help.
        topic: one of ``TOPICS``.
    """
    text = re.sub(r":\w+:`~?([^`]+)`", r"\1", text).replace("``", "")

    def named(found: re.Match[str]) -> str:
        if found[1] in MODULES_OF_SHORT_NAMES:
            return found[0]
        return ""

    text = re.sub(r"\b(cifnet_pl(?:\.[a-z_0-9]+)*)\.[A-Z]\w+,\s+", named, text)
    text = re.sub(r"\blightning\.LightningModule,\s+", "", text)
    sections = text.strip().split("\n\n")
    if topic == "all":
        sections.sort(
            key=lambda section: _is_on_topic(section, "trainer")
        )  # Lightning's last
    else:
        sections = [section for section in sections if _is_on_topic(section, topic)]
    return "\n\n".join(sections) + "\n"


def _is_on_topic(section: str, topic: str) -> bool:
    return re.search(rf"^  --{topic}\b", section, re.MULTILINE) is not None
