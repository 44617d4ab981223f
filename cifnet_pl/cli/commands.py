"""Sub-commands that need no Trainer: each is a function, and its signature is its command line."""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NamedTuple

from cifnet_pl.utilities.errors import UsageError

RUNS: dict[str, str] = {
    "fit": "Learn all tasks of a data source, one after the other, and evaluate after each.",
    "validate": "Evaluate a checkpoint on the held-out images of all classes that it has learned.",
    "test": "The same as validate: a class-incremental run has one held-out set.",
    "predict": "Predict the held-out images of all classes learned, into predictions.csv of the run's folder.",
}
"""Name of a sub-command that needs a Trainer (:mod:`cifnet_pl.cli.lightning_cli`) → what it does, in one line."""


class Command(NamedTuple):
    """A sub-command that needs no Trainer.

    Attributes:
        summary: what it does, in one line.
        module: has a function of the command's name; its parameters become options, and ``Args:`` of its docstring
            their
            help. A parameter that ends with an underscore (``class_``) becomes an option without it; ``--name`` without
            a value sets a boolean to true.
        positional: name of the parameter that is given by position, a list of strings.
        overrides: name of the parameter that takes the options with a dot in their name, as (name, value) pairs.
    """

    summary: str
    module: str
    positional: str | None = None
    overrides: str | None = None


COMMANDS: dict[str, Command] = {
    "audit": Command("Make a page about doubtful labels, odd photos, confusions.", "cifnet_pl.cli.audit"),
    "classify": Command("Name what is on photos, into a CSV file.", "cifnet_pl.cli.classify"),
    "configs": Command("List the configurations that come with the package.", "cifnet_pl.cli.configs"),
    "evaluate": Command("Say how well a model names labelled photos.", "cifnet_pl.cli.evaluate"),
    "export": Command("Write a model as a bundle, or as one ONNX graph.", "cifnet_pl.cli.export"),
    "extend": Command("Teach a model new classes from photos, without any old photo.", "cifnet_pl.cli.extend"),
    "forget": Command("Remove a class from a model, with its photos exactly.", "cifnet_pl.cli.forget"),
    "info": Command("Show what a model knows, and what it has cost.", "cifnet_pl.cli.info"),
    "merge": Command("Add up what several models learned from different photos.", "cifnet_pl.cli.merge", "models"),
    "replicas": Command("Answer from a model in several processes, with LitServe.", "cifnet_pl.serving.replicas"),
    "report": Command("Make tables and figures of finished runs.", "cifnet_pl.report", "runs"),
    "serve": Command("Open a page and an HTTP service to ask a model, teach it, and undo.", "cifnet_pl.serving.serve"),
    "sums": Command("Make files of sums of parts of a large set, for merge.", "cifnet_pl.cli.sums", None, "overrides"),
    "sweep": Command("Run a grid of runs, one after another.", "cifnet_pl.cli.sweep", "files", "overrides"),
    "unpack": Command("Write the images of a data source as class folders.", "cifnet_pl.cli.unpack"),
}


PHOTOS = ("--images", "--check")
"""Options that users expect to take several folders; those of other kinds may be given again to change them."""


def run_command(name: str, args: Sequence[str]) -> None:
    """Parse the arguments of a command by its signature, and call it.

    Args:
        name: of the command.
        args: arguments of the command line after the name.

    Raises:
        UsageError: an option or a value that the command does not have; found before the command is imported.
    """
    from cifnet_pl.cli.option_errors import OneSentence

    command, outlined = COMMANDS[name], outline(name)
    parser = OneSentence(prog=f"cifnet {name}", description=(outlined.__doc__ or "").split("\n")[0])
    skipped: set[str | int] = {parameter for parameter in (command.positional, command.overrides) if parameter}
    if command.positional:
        parameter = inspect.signature(outlined).parameters[command.positional]
        many: dict[str, Any] = {"nargs": "+"} if parameter.default is parameter.empty else {"nargs": "*", "default": []}
        parser.add_argument(command.positional, **many)
    words = with_underscores(outlined, _with_short_engine(outlined, [_without_bytes(word) for word in args]))
    arguments, overrides = with_values(outlined, with_lists(outlined, words)), {}
    refuse_repeated(outlined, arguments)
    parser.add_function_arguments(outlined, skip=skipped, as_group=False, sub_configs=False)
    keywords = _without_underscores(parser)
    if command.overrides:
        arguments, overrides[command.overrides] = split_overrides(arguments)
    parsed = vars(parser.parse_args(arguments)).items()
    options = {keywords.get(key, key): _with_bytes(value) for key, value in parsed}
    function: Callable[..., object] = getattr(import_module(command.module), name)
    function(**options, **{key: [tuple(map(_with_bytes, pair)) for pair in pairs] for key, pairs in overrides.items()})


def _with_short_engine(outlined: Callable[..., object], args: Sequence[str]) -> list[str]:
    """Take ``--model.engine``, which runs have, for ``--engine`` of a command whose ``--model`` is a file."""
    if "engine" not in inspect.signature(outlined).parameters:
        return list(args)
    return [re.sub(r"^--model\.engine(?==|$)", "--engine", word) for word in args]


BYTE = "\ue000"
"""Begins the two digits that stand for an undecodable byte of a file name, which no parser takes."""


def _without_bytes(word: str) -> str:
    return "".join(f"{BYTE}{ord(c) - 0xDC00:02x}" if 0xDC80 <= ord(c) <= 0xDCFF else c for c in word)


def _with_bytes(value: Any) -> Any:
    """Return a value of an option with the bytes that :func:`_without_bytes` replaced."""
    if isinstance(value, list):
        return [_with_bytes(item) for item in value]
    if not isinstance(value, str):
        return value
    return re.sub(f"{BYTE}([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found[1], 16)), value)


def outline(name: str) -> Callable[..., object]:
    """Compile the signature and docstring of a command's function, without its body.

    Help and errors in options need no more than that, and importing the module takes seconds if it imports torch.

    Args:
        name: of the command.
    """
    spec = find_spec(COMMANDS[name].module)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    function = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    function.body = function.body[:1]  # the docstring
    function.decorator_list = []
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    future = [node for node in imports if node.module == "__future__"]
    tree.body = [*future, *_choices(imports, Path(spec.origin).parents[2]), function]
    namespace: dict[str, Any] = {"__name__": __name__, "Literal": Literal, "Sequence": Sequence}
    exec(compile(tree, spec.origin, "exec"), namespace)
    return namespace[name]  # type: ignore[no-any-return]


def _choices(imports: Sequence[ast.ImportFrom], root: Path) -> list[ast.stmt]:
    """Find the definitions ``Name = Literal[…]`` of the names that a module imports from the package, in ``root``."""
    assignments: list[ast.stmt] = []
    for node in imports:
        path = root.joinpath(*(node.module or "").split(".")).with_suffix(".py")
        if not (node.module or "").startswith("cifnet_pl.") or not path.is_file():
            continue
        names = {alias.name for alias in node.names}
        for line in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(line, ast.Assign) and isinstance(line.value, ast.Subscript):
                target, kind = line.targets[0], line.value.value
                if isinstance(target, ast.Name) and target.id in names and isinstance(kind, ast.Name):
                    assignments += [line] * (kind.id == "Literal")
    return assignments


def _without_underscores(parser: Any) -> dict[str, str]:
    """Rename options that end with an underscore, as their parameters do; return each option's parameter."""
    renamed = {}
    for action in parser._actions:
        if action.dest.endswith("_"):
            parameter, action.dest = action.dest, action.dest.rstrip("_")
            renamed[action.dest] = parameter
            action.option_strings = [f"--{action.dest}"]
            parser._option_string_actions[f"--{action.dest}"] = parser._option_string_actions.pop(f"--{parameter}")
    return renamed


def with_underscores(function: Callable[..., object], args: Sequence[str]) -> list[str]:
    """Return ``args`` with ``--dry-run`` as ``--dry_run``: an option may be spelled either way."""
    spelled = {f"--{key.replace('_', '-')}": f"--{key}" for key in inspect.signature(function).parameters}
    pairs = [word.partition("=") for word in args]
    return [f"{spelled.get(name, name)}{equals}{value}" for name, equals, value in pairs]


def with_values(function: Callable[..., object], args: Sequence[str]) -> list[str]:
    """Add the value ``true`` to booleans that are given without one.

    Args:
        function: of the command.
        args: arguments of the command line.
    """
    parameters = inspect.signature(function).parameters
    flags = {f"--{key}" for key, parameter in parameters.items() if isinstance(parameter.default, bool)}
    pairs = zip(args, [*args, "--"][1:], strict=True)
    return [f"{word}=true" if word in flags and following.startswith("--") else word for word, following in pairs]


def with_lists(function: Callable[..., object], args: Sequence[str]) -> list[str]:
    """Join all values of an option that takes a list to one argument.

    ``--images A B``, ``--images A --images B`` and ``--images=A --images=B`` all mean ``["A", "B"]``.

    Args:
        function: of the command.
        args: arguments of the command line.
    """
    parameters = inspect.signature(function, eval_str=True).parameters
    lists = {f"--{key.rstrip('_')}" for key, p in parameters.items() if p.annotation in (list[str], list[str] | None)}
    result: list[str] = []
    options: dict[str, list[str]] = {}
    current: str | None = None
    for word in args:
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            current = name if name in lists else None
        if current is None:
            result.append(word)
        elif word.startswith("--"):
            options.setdefault(current, []).extend(_items(value) if equals else [])
        else:
            options[current].extend(_items(word))
    # An option without a value stays as it is, for the parser to complain about.
    return result + [
        f"{name}=[{', '.join(map(_quoted, values))}]" if values else name for name, values in options.items()
    ]


def _quoted(value: str) -> str:
    """Return a string in quotes as the parser's YAML has it, which knows no surrogate pairs, as JSON's emoji are."""
    return '"' + "".join(json.dumps(c)[1:-1] if ord(c) < 2**16 else f"\\U{ord(c):08x}" for c in value) + '"'


def _items(value: str) -> list[str]:
    """Return ``value``, or the strings of the JSON list that it is."""
    try:
        items = json.loads(value) if value.startswith("[") else value
    except json.JSONDecodeError:
        items = value  # a name that begins with a bracket
    return items if isinstance(items, list) and all(isinstance(item, str) for item in items) else [value]


def refuse_repeated(function: Callable[..., object], args: Sequence[str]) -> None:
    """Refuse photos that are given twice where only the last ones would be used.

    Args:
        function: of the command.
        args: from :func:`with_lists`.

    Raises:
        UsageError: a repeated option of photos that takes one value.
    """
    names = [word.partition("=")[0] for word in args]
    for name in PHOTOS:
        if name.removeprefix("--") in inspect.signature(function).parameters and names.count(name) > 1:
            raise UsageError(f"{name} is given twice: it takes one folder or Zip archive")


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
