"""Add to jsonargparse: one sentence about a wrong option, and heads that inherit no options."""

from __future__ import annotations

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
    explained,
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

DEFAULT_HEAD = "CIFNetHead"
"""Head where neither an option nor a configuration names one.

The configuration that :func:`cifnet_pl.cli.configs.with_recommended` adds to ``fit --data.root
IMAGES`` names another one.
"""

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
        raise UsageError(sentence(message, options)) from ex


def sentence(message: str, options: Collection[str] = ()) -> str:
    """Return jsonargparse's message as one sentence that the user can act on.

    Args:
        message: of jsonargparse.
        options: that exist.
    """
    if "--> trainer.max_epochs" in message:
        return MAX_EPOCHS_MESSAGE
    if found := re.match(r"unrecognized arguments: (-\S+)", message):
        return unknown_option(found[1], options)
    if found := re.match(r"the following arguments are required: (.*)", message):
        names = found[1].split(", ")
        needed = [f"--{name}" for name in names if f"--{name}" in options]
        return f"required are {', '.join(needed or names)}"
    keys = re.findall(r'Parser key "([^"]+)"', message)
    if keys:
        return _bad_value(message, f"--{'.'.join(keys)}")
    line = message.strip().partition("\n")[0]
    if line.startswith("unrecognized") and "--data.root" in options:
        return f"{line} (images are given as --data.root FOLDER)"
    return line


def _bad_value(message: str, key: str) -> str:
    """Return a sentence about the value of an option, or about an option of its class.

    Args:
        message: of jsonargparse.
        key: the option.
    """
    if found := re.search(r"Option '([^']+)' is not accepted", message):
        owner = re.findall(r"class_path[ =]'([\w.]+)'", message)
        known = arguments_of(owner[-1]) or ()
        return unknown_option(f"{key}.{found[1]}", [f"{key}.{name}" for name in known])
    if found := re.search(
        r"No module named .*|module '.*' has no attribute.*", message
    ):
        return f"{key}: {found[0]}"
    value = re.search(
        r"(?:Got|Given) value: (.*?)(?:\. Got value.*)?$", message, re.MULTILINE
    )
    if base := re.search(r"subclass of (?:<class ')?(?:[\w.]*\.)?(\w+)", message):
        named = re.search(r"Expected '([\w.]+)' to be", message) or value
        given = f"{key} is '{named[1]}'" if named else key
        return f"{given}, expected a subclass of {base[1]}"
    lines = [line.strip(" -") for line in message.splitlines() if line.strip(" -")]
    expected = []
    for line in lines:
        found = re.match(r"Expected an? (?!path)(.*?)(?:\. Got value.*|: .*)?$", line)
        if found is not None and "NoneType" not in found[1]:
            expected.append(_plain(found[1]))
    if value is not None and expected:
        kinds = " or ".join(dict.fromkeys(expected))
        hint = ""
        if "str" in expected:
            hint = " (put quotes around a name that YAML takes for a number)"
        return f"{key} is '{value[1]}', expected {kinds}{hint}"
    return f"{key}: {lines[-1]}"


def _plain(kind: str) -> str:
    """Return the name of a type, or the values of one that lists them.

    Example:
        >>> _plain("<class 'int'>"), _plain("typing.Literal['gcv']")
        ('int', "'gcv'")
    """
    kind = re.sub(r"<class '(?:\w+\.)*(\w+)'>|typing\.Literal\[(.*)\]", r"\1\2", kind)
    return kind.replace("dot import path string", "name of a class")


def unknown_option(name: str, options: Collection[str]) -> str:
    """Return a sentence about an unknown option, with the nearest options.

    Args:
        name: the unknown option.
        options: that exist.
    """
    option = name.partition("=")[0]
    known = []
    for other in options:
        if other.startswith("--") and not other.endswith(("+", ".help")):
            known.append(other)
    hint = did_you_mean(option, known, likeness=0.8)
    return f"unknown option {name}: {hint or 'see --help'}"


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
    current = DEFAULT_HEAD
    first = None  # option of the head since the last configuration file
    for arg, following in zip(args, [*args[1:], ""], strict=True):
        key, equals, value = arg.partition("=")
        if not equals:
            value = following
        is_dotted = key.startswith("--") and "." in key and not key.endswith(".help")
        if is_dotted and not equals and (not value or value.startswith("--")):
            # jsonargparse drops such an option of a class without a word
            raise UsageError(f"{key} needs a value")
        head = None
        if key in CONFIG_OPTIONS and value:
            model = _model_of(Path(value))
            _import_method(model)
            head = _class_name(_options_of(model).get("head"))
            first = None
        elif key in ("--model", "--model.class_path"):
            _import_method(value)
        elif found := re.match(
            r"--model\.(?:init_args\.)?head(\.class_path|)(\.|$)", key
        ):
            first = len(result) if first is None else first
            if not found[2]:
                head = _class_name(value)
        if head not in (None, current):
            if first is None:
                result += ["--model.head", "null"]
            else:
                result[first:first] = ["--model.head", "null", "--model.head", value]
            current = head
        result.append(arg)
    return result


def _model_of(path: Path) -> Any:
    """Return the model of a configuration file."""
    content = read_yaml(path, "configuration file") or {}
    if not isinstance(content, dict):
        raise UsageError(f"configuration file {path} holds no sections (name: …)")
    trainer = content.get("trainer")
    if isinstance(trainer, dict) and trainer.get("max_epochs") is not None:
        raise UsageError(MAX_EPOCHS_MESSAGE)
    return content.get("model")


def _options_of(part: Any) -> dict[str, Any]:
    """Return the options of a class in a configuration."""
    options = part.get("init_args", part) if isinstance(part, dict) else None
    return options if isinstance(options, dict) else {}


def _class_name(head: Any) -> str | None:
    """Return the name of a head's class; UsageError for one without a module that is not known."""
    if isinstance(head, str):
        with explained(UsageError, f"head '{head}' is no YAML", yaml.YAMLError):
            head = yaml.safe_load(head)
    if isinstance(head, dict):
        head = head.get("class_path")
    if not isinstance(head, str):
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
