"""Add to jsonargparse: one sentence about a wrong option, and heads that inherit no options."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser

from cifnet_pl.utilities.errors import (
    CifnetError,
    UsageError,
    did_you_mean,
    unknown_name,
)
from cifnet_pl.utilities.files import read_yaml
from cifnet_pl.utilities.plugins import (
    entry_point,
    failure,
    import_object,
    names_import,
    offered,
)
from cifnet_pl.utilities.text import printable

DEFAULT_HEAD = "CIFNetHead"
DEFAULT_BACKBONE = "embedded:efficientnet_lite0"
MAX_EPOCHS_MESSAGE = (
    "--trainer.max_epochs cannot be set, a task is one epoch: use --data.max_tasks or"
    " --data.classes_per_task"
)

MODULES_OF_SHORT_NAMES = (
    "cifnet_pl",
    "cifnet_pl.heads",
    "cifnet_pl.data.streams",
    "cifnet_pl.iterative",
)
"""Modules in which a class name without a module is looked up."""

CONFIG_OPTIONS = ("--config", "-c")


class OneSentence(ArgumentParser):
    """A parser that raises :class:`UsageError` with one sentence, not jsonargparse's message."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise the short error; parsers that jsonargparse uses internally keep its own."""
        if not self.exit_on_error:
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        options = [
            option for action in parser._actions for option in action.option_strings
        ]
        raise UsageError(sentence(message, options, parser.prog)) from ex


def sentence(
    message: str, options: Collection[str] = (), program: str = "cifnet"
) -> str:
    """Return jsonargparse's message as one sentence that the user can act on.

    Args:
        message: of jsonargparse.
        options: that exist.
        program: beginning of the command line, such as ``cifnet report``.
    """
    if "--> trainer.max_epochs" in message:
        return MAX_EPOCHS_MESSAGE
    if found := re.match(r"the following arguments are required: (.*)", message):
        names = found[1].split(", ")
        place = next(
            (name for name in names if f"--{name.rstrip('_')}" not in options), None
        )
        if place is not None:
            example = f"{program} {place.upper()} …"
            return f"no {place} are given: name them before the options, {example}"
        return f"the following arguments are required: {', '.join(f'--{name}' for name in names)}"
    if found := re.match(
        r"argument (?:-\w/)?(--[^\s/]+)\S*: expected (?:one|at least one) argument",
        message,
    ):
        return f"{found[1]} needs a value"
    if found := re.match(
        r"(?:unrecognized arguments|ambiguous option): (\S+)", message
    ):
        return _unexpected(found[1], options)
    keys = re.findall(r'Parser key "([^"]+)"', message)
    if found := re.search(r"Option '([^']+)' is not accepted", message):
        owner = re.findall(r"class_path[ =]'([\w.]+)'", message)
        path = "".join(f"{key}." for key in keys)
        known = [
            f"--{path}{name}"
            for name in (arguments_of(owner[-1]) if owner else None) or ()
        ]
        return unknown_option(f"--{path}{found[1]}", [*known, "--print_config"])
    return _bad_value(message, ".".join(keys))


def _unexpected(word: str, options: Collection[str]) -> str:
    if word.startswith("-"):
        return unknown_option(word, options)
    if "--data.root" in options:
        also = "; images to learn are given as --data.root FOLDER"
    else:
        also = ""
    return (
        f"'{printable(word)}' is one word too many: an option takes one value, in quotes if it has"
        f" spaces{also}"
    )


def _bad_value(message: str, key: str) -> str:
    """Return a sentence about the value of an option.

    Args:
        message: of jsonargparse.
        key: name of the option; "" where the message names none.
    """
    lines = [line.strip().removeprefix("- ") for line in message.splitlines()]
    kind = re.compile(r"Expected an? (?!path)(.+?)(?:\. Got value.*|: .*)?$")
    expected = [
        found[1]
        for line in lines
        if (found := kind.search(line)) and "NoneType" not in found[1]
    ]
    value = re.search(
        r"(?:Got|Given) value: (.*?)(?:\. Got value.*)?$", message, re.MULTILINE
    )
    absent = re.search(
        r"No module named '[^']*'|module '\S+' has no attribute '[^']*'", message
    )
    if absent:
        return f"--{key}: {absent[0].replace('No', 'no')}"
    if base := re.search(r"subclass of (?:<class ')?(?:[\w.]*\.)?(\w+)", message):
        name = re.findall(r"Given value: ([\w.]+)$", message, re.MULTILINE)
        return (
            f"--{key} is '{name[0] if name else value and value[1]}', expected a subclass of"
            f" {base[1]}"
        )
    if key == "data.class_order":
        return (
            f"--{key} is '{value and value[1]}', expected a seed, positions, or class names; quote"
            " names that look like numbers"
        )
    if key and expected and value:
        return (
            f"--{key} is '{value[1]}', expected"
            f" {' or '.join(dict.fromkeys(map(_plain_type, expected)))}"
        )
    reason = next(
        line for line in reversed(lines) if line and not line.startswith('in "<')
    )  # a place in YAML
    if key:
        return f"--{key}: {reason}"
    return reason


def _plain_type(kind: str) -> str:
    plain = re.sub(r"<class '([\w.]+)'>", lambda found: found[1].split(".")[-1], kind)
    if choices := re.fullmatch(r"typing\.Literal\[(.*)\]", plain):
        if "," in choices[1]:
            return f"one of {choices[1]}"
        return choices[1].strip("'")
    return {
        "dot import path string": "the name of a class",
        "float": "a finite number",
    }.get(plain, plain)


def unknown_option(name: str, options: Collection[str]) -> str:
    """Return a sentence about an unknown option, with the nearest options.

    Args:
        name: the unknown option.
        options: that exist.
    """
    option = name.split("=")[0]
    group, dot, rest = option.partition(".")
    known = [
        o for o in options if o.startswith("--") and not o.endswith(("+", ".help"))
    ]
    groups = {o.split(".")[0] for o in known}
    known += [
        f"{o}.{rest}" for o in difflib.get_close_matches(group, groups - {group}) if dot
    ]
    if "--print_config" in options:
        everything = "--print_config shows all, --help explains them"
    else:
        everything = "see --help"
    hint = did_you_mean(option, known, likeness=0.8) or everything
    return f"unknown option {name}: {hint}"


@cache
def arguments_of(class_path: str) -> frozenset[str] | None:
    """Return the options of a class, with those that it passes on to its bases.

    Args:
        class_path: its module and name, or the name of a class of this package.

    Returns:
        None if it cannot be imported.
    """
    places = [class_path]
    if "." not in class_path:
        places = [f"{module}.{class_path}" for module in MODULES_OF_SHORT_NAMES]
    for place in places:
        try:
            kind = import_object(place)
        except UsageError:
            continue
        if isinstance(kind, type):
            return frozenset(ArgumentParser().add_class_arguments(kind))
    return None


def buried_error(error: BaseException) -> CifnetError | None:
    """Return the package's own error that a library wrapped into one of its own, or None."""
    seen: BaseException | None = error
    is_type_error = "does not validate" in str(error).lower()
    while seen is not None and not isinstance(seen, CifnetError):
        error = seen
        seen = seen.__cause__ or seen.__context__
    if seen is None and is_type_error:
        return UsageError(f"the model cannot be made: {failure(error)}")
    return seen


# ---------------------------------------------------------------------- heads


def with_clean_heads(args: Sequence[str]) -> list[str]:
    """Change the arguments so that a head never inherits options of another class.

    jsonargparse keeps the options of an earlier class that the new one happens to accept: a
    RidgeHead over a configuration with a CIFNetHead would get its ridge, which is on another scale.
    If the class changes, the head is set to null first. Options given before the class still apply.

    Args:
        args: arguments of the command line.

    Raises:
        UsageError: an unknown head, with the nearest names; a configuration file that is missing or
            not YAML; an option without a value.
    """
    result: list[str] = []
    # first option of the head since the last configuration file
    current = DEFAULT_HEAD
    first = len(args) + 1
    for arg, following in zip(args, [*args[1:], ""], strict=True):
        key, equals, attached = arg.partition("=")
        value = attached if equals else following
        dotted = key.startswith("--") and "." in key and not key.endswith(".help")
        if dotted and not equals and (not value or value.startswith("--")):
            raise UsageError(
                f"{key} needs a value"
            )  # jsonargparse drops such an option of a class without a word
        new = None
        chosen = list[str]()
        if key in CONFIG_OPTIONS and value:
            model = _read_config(Path(value)).get("model")
            _import_method(model)
            new = _class_name(_head_of(model))
            first = len(args) + 1
        elif key in ("--model", "--model.class_path"):
            _import_method(value)
        elif re.match(r"--model\.(init_args\.)?head(\.|$)", key):
            first = min(first, len(result))
            if key.endswith(("head", "head.class_path")):
                new = _class_name(value)
                chosen = ["--model.head", value]
        if new is not None and new != current:
            place = first if chosen else len(result)
            result[place:place] = ["--model.head", "null", *chosen]
            current = new
        result.append(arg)
    return result


def _read_config(path: Path) -> dict[str, Any]:
    content = read_yaml(path, "configuration file")
    if not isinstance(content, dict | None):
        raise UsageError(
            f"configuration file {path} holds a {type(content).__name__}, expected sections"
            " (name: …)"
        )
    trainer = (content or {}).get("trainer")
    if isinstance(trainer, dict) and trainer.get("max_epochs") is not None:
        raise UsageError(MAX_EPOCHS_MESSAGE)
    _refuse_empty_arguments(content, path)
    return content or {}


def _refuse_empty_arguments(content: Any, path: Path, class_path: str = "") -> None:
    """Raise UsageError for an empty ``init_args:``, which jsonargparse refuses without a reason."""
    if isinstance(content, dict):
        name = str(content.get("class_path", class_path))
        if "init_args" in content and content["init_args"] is None:
            raise UsageError(
                f"configuration file {path}: init_args of {name} is empty: leave the line out"
            )
        for inner in content.values():
            _refuse_empty_arguments(inner, path, name)


def _head_of(model: Any) -> Any:
    options = model.get("init_args", model) if isinstance(model, dict) else None
    head = options.get("head") if isinstance(options, dict) else None
    if isinstance(head, dict):
        return head.get("class_path")
    return head


def _class_name(head: Any) -> str | None:
    """Return the name of a head's class; UsageError for one without a module that is not known."""
    if isinstance(head, str) and head.startswith("{"):
        head = yaml.safe_load(head).get("class_path")
    if not isinstance(head, str) or head in ("", "null") or head.startswith("-"):
        return None
    from cifnet_pl.heads import HEADS

    name = head.removeprefix("cifnet_pl.heads.")
    if "." in name:
        import_object(head)  # else jsonargparse hides why it cannot be imported
    elif name not in HEADS and not _import_offered("heads", name):
        raise unknown_name("head", name, [*HEADS, *offered("heads")])
    return name


def _import_method(model: Any) -> None:
    """Import the LightningModule that ``--model`` or ``model:`` names."""
    name = model.get("class_path") if isinstance(model, dict) else model
    if not isinstance(name, str):
        return
    if names_import(name) and not Path(name).is_file():
        import_object(name)
    elif "." not in name:
        _import_offered("methods", name)


def _import_offered(kind: str, name: str) -> bool:
    """Import the class that an installed package offers; return whether one offers it."""
    factory = entry_point(kind, name)
    if factory is not None:
        import_object(factory)
    return factory is not None


def choose_backbone(config: Any) -> None:
    """Set the backbone to ``none:<width>`` if the data are embeddings.

    Args:
        config: configuration of ``fit``; ``model.init_args.backbone`` is changed.

    Raises:
        UsageError: another backbone was asked for, or the file of embeddings is not given.
        DataError: it cannot be read.
    """
    from cifnet_pl.data.sources.tables import embeddings_width

    model = config.get("model.init_args")
    if (
        config.get("data.source") != "embeddings"
        or model is None
        or "backbone" not in model
    ):
        return
    if model["backbone"] not in (DEFAULT_BACKBONE, "none") and not model[
        "backbone"
    ].startswith("none:"):
        raise UsageError(
            f"data source embeddings has no images for backbone {model['backbone']}: leave"
            " --model.backbone out"
        )
    options = config.get("data.options")
    model["backbone"] = (
        f"none:{embeddings_width(config.get('data.root'), dict(options) if options else None)}"
    )
