"""Read what a class of this package takes from its source, without importing it: importing torch takes seconds."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

FOLDERS = ("learning", "heads", "data", "buffer")
"""Where the classes are that options choose."""


@cache
def arguments(name: str) -> tuple[str, ...] | None:
    """Return the arguments of a class's constructor, with those of its base classes if it passes options on to them.

    Args:
        name: of a class of this package, with its module or without.

    Returns:
        The names; None for a class that is not of this package, or whose base classes are not and take options.
    """
    found = _constructor(name)
    if found is None:
        return None
    _, bases, constructor = found
    own_arguments = () if constructor is None else tuple(a.arg for a in _parameters(constructor))
    if constructor is not None and constructor.args.kwarg is None:
        return own_arguments
    inherited = [more for base in bases if (more := arguments(base)) is not None]
    return (*own_arguments, *inherited[0]) if inherited else None


@cache
def choices(name: str, argument: str) -> tuple[str, ...] | None:
    """Return the words that an argument of a class may be, if its annotation is a ``Literal`` of words.

    Args:
        name: of a class of this package.
        argument: of its constructor.

    Returns:
        The words; None if they are not known.
    """
    found = _constructor(name)
    if found is None:
        return None
    path, bases, constructor = found
    for parameter in _parameters(constructor) if constructor is not None else ():
        if parameter.arg == argument:
            return _words(parameter.annotation, path)
    return next((words for base in bases if (words := choices(base, argument)) is not None), None)


@cache
def plain_type(name: str, argument: str) -> str | None:
    """Return the type of an argument of a class where it is a single name, such as ``int``.

    Args:
        name: of a class of this package.
        argument: of its constructor.

    Returns:
        The name; None if there is none.
    """
    found = _constructor(name)
    if found is None:
        return None
    _, bases, constructor = found
    for parameter in _parameters(constructor) if constructor is not None else ():
        if parameter.arg == argument:
            return parameter.annotation.id if isinstance(parameter.annotation, ast.Name) else None
    return next((kind for base in bases if (kind := plain_type(base, argument)) is not None), None)


def head_names() -> list[str]:
    """Return the names of the heads of this package, as ``heads/__init__.py`` registers them."""
    tree = ast.parse((_package() / "heads" / "__init__.py").read_text(encoding="utf-8"))
    imported = (alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names)
    return [name for name in imported if name != "Head" and name.endswith("Head")]


def class_arguments(path: Path, name: str) -> list[str]:
    """Return the arguments of a constructor; none if there is no such file or class.

    Args:
        path: a Python file.
        name: of a class in it.
    """
    for node in _classes(path, name) if path.is_file() else ():
        constructor = _own_constructor(node)
        if constructor is not None:
            return [parameter.arg for parameter in _parameters(constructor)]
    return []


def _package() -> Path:
    spec = find_spec("cifnet_pl")
    return Path((spec.submodule_search_locations or [""])[0] if spec else "")


def _constructor(name: str) -> tuple[Path, list[str], ast.FunctionDef | None] | None:
    """Return a class's file, the names of its bases, and its own constructor if it has one; None without a class."""
    module, _, class_name = name.rpartition(".")
    if (module and not f"{module}.".startswith("cifnet_pl.")) or not class_name.isidentifier():
        return None
    for path in _files():
        for node in _classes(path, class_name):
            bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
            return path, bases, _own_constructor(node)
    return None


@cache
def _files() -> tuple[Path, ...]:
    return tuple(file for folder in FOLDERS for file in sorted((_package() / folder).rglob("*.py")))


def _classes(path: Path, name: str) -> Iterator[ast.ClassDef]:
    text = path.read_text(encoding="utf-8")
    if re.search(rf"^class {name}\b", text, re.MULTILINE):
        yield from (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name)


def _own_constructor(node: ast.ClassDef) -> ast.FunctionDef | None:
    methods = (part for part in node.body if isinstance(part, ast.FunctionDef))
    return next((method for method in methods if method.name == "__init__"), None)


def _parameters(constructor: ast.FunctionDef) -> list[ast.arg]:
    return [*constructor.args.args[1:], *constructor.args.kwonlyargs]


def _words(annotation: ast.expr | None, path: Path) -> tuple[str, ...] | None:
    """Return the words of ``Literal["a", "b"]``, or of a name that a file defines or imports for such a thing."""
    if isinstance(annotation, ast.Name):
        return _alias(annotation.id, path)
    if not isinstance(annotation, ast.Subscript) or not isinstance(annotation.value, ast.Name):
        return None
    if annotation.value.id != "Literal":
        return None
    values = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    words = [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]
    return tuple(words) if len(words) == len(values) else None


def _alias(name: str, path: Path) -> tuple[str, ...] | None:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == [name]:
            return _words(node.value, path)
        if isinstance(node, ast.ImportFrom) and name in {alias.name for alias in node.names}:
            source = _package().parent / f"{(node.module or '').replace('.', '/')}.py"
            return _alias(name, source) if source.is_file() else None
    return None
