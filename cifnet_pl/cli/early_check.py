"""Find options of ``fit`` and other runs that do not exist, before Lightning and torch are imported.

The names are read from the source of the classes that the options are arguments of, without running it. What cannot be
told from those names alone is left to the parser.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from cifnet_pl.utilities.errors import UsageError

SOURCES = {
    "model": ("cifnet_pl", "learning/cifnet_module.py", "CIFNetModule"),
    "data": ("cifnet_pl", "data/datamodule.py", "CIFNetDataModule"),
    "trainer": ("lightning", "pytorch/trainer/trainer.py", "Trainer"),
}
"""First part of an option → package, file and class that has its second part as an argument."""

OTHER_CLASS = {"--config", "--model"}
"""Options with which ``--model.…`` may be an argument of another class."""

ANSWERED = {"--print_config", "--help", "-h"}
"""Options that are answered even if others are wrong."""


def check_options(args: Sequence[str]) -> None:
    """Raise UsageError for the first option of the command line ``args`` whose class has no such argument."""
    given_options = {word.split("=")[0] for word in args}
    if given_options & ANSWERED:
        return
    groups = SOURCES.keys() - ({"model"} if given_options & OTHER_CLASS else set())
    for word in args:
        group, _, rest = word.removeprefix("--").partition(".")
        name = rest.split("=")[0].split(".")[0].rstrip("+")
        if word.startswith("--") and group in groups and name:
            known = arguments(*SOURCES[group])
            if known and name not in {*known, "help"}:
                from cifnet_pl.cli.parsing import unknown_option

                options = ["--print_config", *(f"--{group}.{argument}" for argument in known)]
                raise UsageError(unknown_option(word, options))


def arguments(package: str, file: str, name: str) -> list[str]:
    """Return the arguments of a class's constructor, as its source says; none where there is no such source."""
    spec = find_spec(package)
    path = Path((spec.submodule_search_locations or [""])[0], file) if spec else Path(file)
    if not path.is_file():
        return []
    classes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    methods = [node for class_node in classes if class_node.name == name for node in class_node.body]
    for method in methods:
        if isinstance(method, ast.FunctionDef) and method.name == "__init__":
            return [argument.arg for argument in (*method.args.args[1:], *method.args.kwonlyargs)]
    return []
