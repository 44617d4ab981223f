"""Add to jsonargparse: one sentence about a wrong option, and heads that inherit no options."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser

from cifnet_pl.cli.configs import find_config
from cifnet_pl.utilities.errors import (
    CifnetError,
    UsageError,
    did_you_mean,
    explained,
    unknown_name,
)
from cifnet_pl.utilities.files import read_yaml
from cifnet_pl.utilities.names import DEFAULT_BACKBONE
from cifnet_pl.utilities.plugins import (
    failure,
    import_object,
    import_offered,
    names_import,
    offered,
)

DEFAULT_HEAD = "CIFNetHead"
"""Head where neither an option nor a configuration names one.

The configuration that :func:`cifnet_pl.cli.configs.with_recommended` adds to ``fit --data.root
IMAGES`` names another one.
"""

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
MODEL_OPTIONS = ("--model", "--model.class_path")


class OneSentence(ArgumentParser):
    """A parser that raises :class:`UsageError` with one sentence, not jsonargparse's message."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise the short error; parsers that jsonargparse uses internally keep its own."""
        if not self.exit_on_error:
            super().error(message, ex)
        options: list[str] = []
        for action in self._actions:
            options += action.option_strings
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
    if keys := re.findall(r'Parser key "([^"]+)"', message):
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
        owner = re.findall(r"class_path[ =]'([\w.]+)'", message)[-1]
        known = arguments_of(owner) or ()
        return unknown_option(f"{key}.{found[1]}", [f"{key}.{name}" for name in known])
    # Types as users write them: int for <class 'int'>, 'gcv' for typing.Literal['gcv'].
    message = re.sub(r"<class '([\w.]+)'>|typing\.Literal\[(.*?)\]", r"\1\2", message)
    if found := re.search(
        r"(?:Got|Given) value: (.*?)(\. Got value.*)?$", message, re.M
    ):
        key = f"{key} is '{found[1]}'"
    cause = r"(?:No module named|module '|Import path|Expected ').*?(?=\.\. Got|$)"
    if found := re.search(cause, message, re.M):
        return f"{key}: {found[0]}"
    kinds = r"Expected an? (?!path|NoneType)(.*?)(?:\. Got value.*|: .*)?$"
    expected = dict.fromkeys(re.findall(kinds, message, re.M))
    if not expected:
        return f"{key}: {message.splitlines()[-1].strip(' -')}"
    if "str" in expected:
        key += " (put quotes around a name that YAML takes for a number)"
    return f"{key}, expected {' or '.join(expected)}"


def unknown_option(name: str, options: Collection[str]) -> str:
    """Return a sentence about an unknown option, with the nearest options.

    Args:
        name: the unknown option.
        options: that exist.
    """
    named = r"--[\w.]+(?<!\.help)"
    known = [option for option in options if re.fullmatch(named, option)]
    hint = did_you_mean(name.partition("=")[0], known, likeness=0.8)
    return f"unknown option {name}: {hint or 'see --help'}"


@cache
def arguments_of(class_path: str) -> frozenset[str] | None:
    """Return the options of a class, with those that it passes on to its bases.

    Args:
        class_path: its module and name, or the name of a class of this package.

    Returns:
        None if it cannot be imported.
    """
    for module in ("", *MODULES_OF_SHORT_NAMES):
        with suppress(UsageError):
            kind = import_object(f"{module}.{class_path}".lstrip("."))
            return frozenset(ArgumentParser().add_class_arguments(kind))
    return None


@contextmanager
def own_errors() -> Iterator[None]:
    """Within the block, raise the package's own error where jsonargparse wrapped it.

    An object that is made of wrong values is an error of usage, too.
    """
    try:
        yield
    except (ValueError, TypeError) as error:
        cause: BaseException = error
        while inner := cause.__cause__ or cause.__context__:
            cause = inner
            if isinstance(cause, CifnetError):
                raise cause from None
        if "does not validate" in str(error).lower():
            made = f"the model cannot be made: {failure(cause)}"
            raise UsageError(made) from None
        raise


# ---------------------------------------------------------------------- arguments of a run


def options_in(
    args: Sequence[str], others: Collection[str] = ()
) -> Iterator[tuple[str, str | None]]:
    """Yield each option with a dot in its name with its value, and every other word with None.

    Args:
        args: arguments of the command line.
        others: further options with a value.

    Raises:
        UsageError: such an option without a value, which jsonargparse may drop without a word.
    """
    remaining = iter(args)
    for word in remaining:
        name, equals, value = word.partition("=")
        is_dotted = name.startswith("--") and "." in name and not name.endswith(".help")
        if not is_dotted and name not in others:
            yield word, None
            continue
        if not equals:
            value = next(remaining, "--")
        if not value or (not equals and value.startswith("--")):
            raise UsageError(f"{name} needs a value")
        yield name, value


def plain(name: str) -> str:
    """Return a dotted name without the steps that may be left out."""
    return name.replace(".init_args", "")


def with_clean_heads(args: Sequence[str]) -> list[str]:
    """Change the arguments so that a head never inherits options of another class.

    jsonargparse keeps the options of an earlier class that the new one happens to accept: a
    RidgeHead over a configuration with a CIFNetHead would get its ridge, which is on another scale.
    If the class changes, the head is set to null first. Options given before the class still apply.
    Names of configurations become their files, and custom classes are imported.

    Args:
        args: arguments of the command line.

    Raises:
        UsageError: an unknown head or configuration, with the nearest names; a configuration file
            that is not YAML; an option without a value.
    """
    result: list[str] = []
    current = DEFAULT_HEAD
    first = None  # option of the head since the last configuration file
    for name, value in options_in(args, (*CONFIG_OPTIONS, *MODEL_OPTIONS)):
        if value is None:
            result.append(name)
            continue
        head = None
        if name in CONFIG_OPTIONS:
            file = find_config(value)
            head = _class_name(_head_in(file))
            value = str(file)
            first = None
        elif name in MODEL_OPTIONS:
            _import_method(value)
        elif found := re.match(
            r"--model\.(?:init_args\.)?head(\.class_path)?(\.|$)", name
        ):
            if first is None:
                first = len(result)
            if not found[2]:
                head = _class_name(yaml_value(name, value))
        if head not in (None, current):
            current = head
            if first is None:
                result.append("--model.head=null")
            else:
                result[first:first] = ["--model.head=null", f"--model.head={value}"]
        result.append(f"{name}={value}")
    return result


def yaml_value(name: str, text: str) -> Any:
    """Return the value of an option that is given as YAML.

    Raises:
        UsageError: it is none.
    """
    with explained(UsageError, f"{name} is '{text}', no YAML", yaml.YAMLError):
        return yaml.safe_load(text)


def _head_in(file: Path) -> Any:
    """Return the head that a configuration file has, and import the method that it names."""
    content = read_yaml(file) or {}
    holds_none = f"configuration file {file} holds no sections (name: …)"
    with explained(UsageError, holds_none, AttributeError):
        trainer = content.get("trainer") or {}
        if trainer.get("max_epochs") is not None:
            raise UsageError(MAX_EPOCHS_MESSAGE)
        model = content.get("model") or {}
        if isinstance(model, str):
            model = {"class_path": model}
        _import_method(model.get("class_path") or "")
        options = model.get("init_args") or model
        return options.get("head")


def _class_name(head: Any) -> str | None:
    """Return the name of a head's class; UsageError for one without a module that is not known."""
    if isinstance(head, dict):
        head = head.get("class_path")
    if not isinstance(head, str):
        return None
    from cifnet_pl.heads import HEADS

    name = head.removeprefix("cifnet_pl.heads.")
    if "." in name:
        import_object(head)  # else jsonargparse hides why it cannot be imported
    elif name not in HEADS and not import_offered("heads", name):
        raise unknown_name("head", name, [*HEADS, *offered("heads")])
    return name


def _import_method(name: str) -> None:
    """Import the LightningModule that ``--model`` or ``model:`` names."""
    if names_import(name) and not Path(name).is_file():
        import_object(name)
    elif "." not in name:
        import_offered("methods", name)


def choose_backbone(config: Any) -> None:
    """Set the backbone to ``none:<width>`` if the data are embeddings.

    Args:
        config: configuration of ``fit``; ``model.init_args.backbone`` is changed.

    Raises:
        UsageError: another backbone was asked for, or the file of embeddings is not given.
        DataError: it cannot be read.
    """
    from cifnet_pl.data.sources.tables import embeddings_width

    model = config.get("model.init_args") or {}
    backbone = model.get("backbone")
    if config.data.source != "embeddings" or backbone is None:
        return
    if backbone != DEFAULT_BACKBONE and backbone.partition(":")[0] != "none":
        raise UsageError(
            f"data source embeddings has no images for backbone {backbone}: leave --model.backbone"
            " out"
        )
    width = embeddings_width(config.data.root, config.data.options)
    model["backbone"] = f"none:{width}"
