"""Sub-commands that need no Trainer: each is a function, and its signature is its command line."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import docstring_parser

from cifnet_pl.cli.parsing import OneSentence
from cifnet_pl.utilities.errors import UsageError

RUNS: dict[str, str] = {
    "fit": "Learn all tasks of a data source, one after the other, and evaluate after each.",
    "validate": "Evaluate a checkpoint on the held-out images of all classes that it has learned.",
    "test": "The same as validate: a class-incremental run has one held-out set.",
    "predict": "Predict the held-out images of all classes learned, into predictions.csv of the run's folder.",
}
"""Name of a sub-command that needs a Trainer (:mod:`cifnet_pl.cli.lightning_cli`) → what it does, in one line."""

COMMANDS: dict[str, tuple[str, str]] = {
    "audit": ("cifnet_pl.cli.audit", "Make a page about doubtful labels, odd photos, confusions."),
    "classify": ("cifnet_pl.cli.classify", "Name what is on photos, into a CSV file."),
    "configs": ("cifnet_pl.cli.configs", "List the configurations that come with the package."),
    "embed": ("cifnet_pl.cli.embed", "Turn photos into vectors, in one file."),
    "evaluate": ("cifnet_pl.cli.evaluate", "Say how well a model names labelled photos."),
    "export": ("cifnet_pl.cli.export", "Write a model as a bundle, or as one ONNX graph."),
    "extend": ("cifnet_pl.cli.extend", "Teach a model new classes from photos, without any old photo."),
    "forget": ("cifnet_pl.cli.forget", "Remove a class from a model, with its photos exactly."),
    "info": ("cifnet_pl.cli.info", "Show what a model knows, and what it has cost."),
    "merge": ("cifnet_pl.cli.merge", "Add up what several models learned from different photos."),
    "report": ("cifnet_pl.report", "Make tables and figures of finished runs."),
    "serve": ("cifnet_pl.serving.serve", "Open a page and an HTTP service to ask a model, teach it, and undo."),
    "sums": ("cifnet_pl.cli.sums", "Make files of sums of parts of a large set, for merge."),
    "sweep": ("cifnet_pl.cli.sweep", "Run a grid of runs, one after another."),
    "watch": ("cifnet_pl.cli.watch", "Name new photos of a folder, into a CSV file and to a webhook."),
    "unpack": ("cifnet_pl.cli.unpack", "Write the images of a data source as class folders."),
}
"""Name of any other sub-command → module with a function of its name, and what it does, in one line.

The function's parameters become options, and ``Args:`` of its docstring their help. These modules import torch inside
their functions, so that help and errors in options do not wait for it.
"""

BY_POSITION = ("files", "models", "runs")
"""Parameters that are given by position."""

OVERRIDES = "overrides"
"""Parameter that takes the options with a dot in their name, as (name, value) pairs."""

Engine = Literal["auto", "torch", "onnxruntime"]
"""What may run the network (:data:`cifnet_pl.backbones.engines.EngineChoice`, for modules that import no torch)."""


def run_command(command: str, args: Sequence[str]) -> None:
    """Parse the arguments of a command by its signature, and call it.

    Args:
        command: its name.
        args: arguments of the command line after the name.

    Raises:
        UsageError: an option or a value that the command does not have.
    """
    function: Callable[..., object] = getattr(import_module(COMMANDS[command][0]), command)
    parameters = inspect.signature(function, eval_str=True).parameters
    words = [word.partition("=")[0] for word in args]
    for option in parameters.keys() & {"images", "check"}:  # of which other commands take several
        if parameters[option].annotation in (str, str | None) and words.count(f"--{option}") > 1:
            raise UsageError(f"--{option} is given twice: it takes one folder or Zip archive")
    more: dict[str, Any] = {}
    if OVERRIDES in parameters:
        args, more[OVERRIDES] = split_overrides(args)
    help_text = docstring_parser.parse(function.__doc__ or "")
    parser = OneSentence(prog=f"cifnet {command}", description=help_text.short_description)
    helps = {part.arg_name: part.description for part in help_text.params}
    for parameter in parameters.values():
        if parameter.name != OVERRIDES:
            _add(parser, parameter, helps.get(parameter.name))
    for option, value in vars(parser.parse_args(args)).items():
        name = option if option in parameters else f"{option}_"  # of a word of Python's own, such as class
        more[name] = None if value == "null" and parameters[name].annotation == str | None else value
    function(**more)


def _add(parser: OneSentence, parameter: inspect.Parameter, help_text: str | None) -> None:
    """Add a parameter of a command's function to its options.

    A text is taken as it is, and not as YAML, in which "#" would begin a comment.
    """
    kind, required = parameter.annotation, parameter.default is parameter.empty
    options: dict[str, Any] = {"help": help_text, "type": kind}
    if not required:
        options["default"] = parameter.default
    if parameter.name in BY_POSITION:
        parser.add_argument(parameter.name, **{**options, "type": str, "nargs": "+" if required else "*"})
        return
    if kind in (list[str], list[str] | None):  # several values, in one option or several
        options |= {"type": str, "nargs": "+", "action": "extend"}
    elif kind == str | None:
        options["type"] = str
    elif kind is bool:
        options |= {"nargs": "?", "const": True}
    name = parameter.name.rstrip("_")
    spellings = [name, name.replace("_", "-")] if "_" in name else [name]
    if name == "engine":  # as runs have it
        spellings.append("model.engine")
    spelled = [f"--{spelling}" for spelling in spellings]
    parser.add_argument(*spelled, dest=name, required=required, **options)


def refuse_output(target: Path, overwrite: bool, folder: bool = False) -> None:
    """Check that a command may write its output.

    Args:
        target: where it is to be.
        overwrite: whether what is there may be replaced.
        folder: whether the output is a folder, and not a file.

    Raises:
        UsageError: it may not, or what is there is of the other kind.
    """
    if target.exists() and target.is_dir() != folder:
        kinds = ("file", "folder") if folder else ("folder", "file")
        raise UsageError(f"{target} is a {kinds[0]}, expected a {kinds[1]}: choose another --output")
    if target.exists() and not overwrite and not (folder and not any(target.iterdir())):
        raise UsageError(f"{target} exists already: choose another --output, or add --overwrite true")


def split_overrides(args: Sequence[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Separate the options with a dot in their name (``--data.root DIR`` or ``--data.root=DIR``) from the others.

    Args:
        args: arguments of the command line.

    Returns:
        The other arguments, and (name, value) pairs.

    Raises:
        UsageError: such an option without a value.

    Example:
        >>> split_overrides(["grid.yaml", "--data.root", "photos", "--dry_run"])
        (['grid.yaml', '--dry_run'], [('data.root', 'photos')])
    """
    arguments, overrides = [], []
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
    summaries = {name: summary for name, (_, summary) in COMMANDS.items()}
    return "\n".join(
        [
            "usage: cifnet COMMAND [options]",
            "",
            "Class-incremental learning without training: a frozen backbone and a closed-form classifier.",
            "",
            "A run over a stream of tasks:",
            *(f"  {name:<8}  {summary}" for name, summary in RUNS.items()),
            "",
            "A learned model (--model takes a run's folder, a checkpoint or a bundle), and several runs:",
            *(f"  {name:<8}  {summary}" for name, summary in summaries.items()),
            "",
            "cifnet COMMAND --help explains the options of a command; cifnet --version shows the version.",
        ]
    )


def own_version() -> str:
    """Return the text of ``cifnet --version``."""
    return f"cifnet_pl {version('cifnet_pl')}"
