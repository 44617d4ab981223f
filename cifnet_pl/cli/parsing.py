"""Extend jsonargparse: errors of one sentence, and heads that do not inherit the options of another class."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser

from cifnet_pl.utilities.errors import CifnetError, UsageError, unknown_name
from cifnet_pl.utilities.files import read_yaml
from cifnet_pl.utilities.plugins import entry_point, import_part, offered
from cifnet_pl.utilities.text import printable

DEFAULT_HEAD = "CIFNetHead"
DEFAULT_BACKBONE = "embedded:efficientnet_lite0"
EPOCHS = "--trainer.max_epochs cannot be set, a task is one epoch: use --data.max_tasks or --data.classes_per_task"


class OneSentence(ArgumentParser):
    """A parser that raises :class:`UsageError` with one sentence instead of jsonargparse's long message."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise the short error; parsers that jsonargparse uses internally keep its own."""
        if not self.exit_on_error:
            super().error(message, ex)
        parser = getattr(ex, "subcommand_parser", None) or self
        options = [option for action in parser._actions for option in action.option_strings]
        raise UsageError(sentence(message, options, parser.prog)) from ex


def sentence(message: str, options: Collection[str] = (), program: str = "cifnet") -> str:
    """Return the part of jsonargparse's message that the user can act on, as one sentence.

    Args:
        message: of jsonargparse.
        options: that exist.
        program: beginning of the command line, such as ``cifnet report``.
    """
    linked = re.search(r"--> trainer\.max_epochs", message)
    if linked:
        return EPOCHS
    missing = re.match(r"the following arguments are required: (.*)", message)
    if missing:
        names = missing[1].split(", ")
        first = next((name for name in names if f"--{name}" not in options), None)
        if first is not None:
            return f"no {first} are given: name them before the options, {program} {first.upper()} …"
        return f"the following arguments are required: {', '.join(f'--{name}' for name in names)}"
    alone = re.match(r"argument (?:-\w/)?(--\S+): expected (?:one|at least one) argument", message)
    if alone:
        return f"{alone[1]} needs a value"
    unrecognised = re.match(r"unrecognized arguments: (.*)", message)
    if unrecognised:
        word = unrecognised[1].split()[0]
        if not word.startswith("-"):
            also = "; photos to learn are given as --data.root FOLDER" if "--data.root" in options else ""
            several = f"'{printable(word)}' is one word too many: an option takes one value, in quotes if it has spaces"
            return several + also
        return unknown_option(word, options)
    keys = re.findall(r'Parser key "([^"]+)"', message)
    refused = re.search(r"Option '([^']+)' is not accepted", message)
    if refused:
        return unknown_option("--" + ".".join([*keys, refused[1]]), options)
    lines = [line.strip().removeprefix("- ") for line in message.splitlines()]
    kind = re.compile(r"Expected an? (?!path)(.+?)(?:\. Got value.*|: .*)?$")
    expected = [match[1] for line in lines if (match := kind.search(line))]
    value = re.search(r"(?:Got|Given) value: (.*?)(?:\. Got value.*)?$", message, re.MULTILINE)
    absent = re.search(r"No module named '[^']*'|module '\S+' has no attribute '[^']*'", message)
    if not keys or not expected or not value or absent:
        last = next(line for line in reversed(lines) if line and not line.startswith('in "<'))  # a place in YAML
        reason = absent[0].replace("No", "no") if absent else re.sub(r"\. Got value.*", "", last)
        return ": ".join(["--" + ".".join(keys), reason] if keys else [reason])
    kinds = dict.fromkeys(_plain_type(name) for name in expected if "NoneType" not in name)
    return f"--{'.'.join(keys)} is '{value[1]}', expected {' or '.join(kinds)}"


def unknown_option(name: str, options: Collection[str]) -> str:
    """Return a sentence about an unknown option, with the nearest options.

    Args:
        name: the unknown option.
        options: that exist.
    """
    option = name.split("=")[0]
    known = [
        o for o in options if o.startswith("--") and not o.endswith(("+", ".help")) and not option.startswith(f"{o}.")
    ]
    near = difflib.get_close_matches(option, known, n=2, cutoff=0.8)
    everything = "--print_config shows all, --help explains them" if "--print_config" in options else "see --help"
    hint = f"did you mean {' or '.join(near)}?" if near else everything
    return f"unknown option {name}: {hint}"


def _plain_type(kind: str) -> str:
    plain = re.sub(r"<class '([\w.]+)'>", lambda m: m[1].split(".")[-1], kind)
    plain = re.sub(r"typing\.Literal\[(.*)\]", lambda m: f"one of {m[1]}" if "," in m[1] else m[1].strip("'"), plain)
    return {"dot import path string": "the name of a class", "float": "a finite number"}.get(plain, plain)


def buried_error(error: BaseException) -> CifnetError | None:
    """Return the package's own error that a library wrapped into one of its own, or None."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, CifnetError):
        seen = seen.__cause__ or seen.__context__
    return seen


# ---------------------------------------------------------------------- heads on the command line


def with_clean_heads(args: Sequence[str]) -> list[str]:
    """Change the arguments so that a head never inherits options of another class; refuse unknown heads.

    jsonargparse keeps the options of an earlier class that the new one happens to accept: a RidgeHead over a
    configuration with a CIFNetHead would get its ridge, which is on another scale. If the class changes, the
    head is set to null first. Options given before the class still apply.

    Args:
        args: arguments of the command line.

    Raises:
        UsageError: an unknown head, with the nearest names; a configuration file that is missing or not YAML.
    """
    result: list[str] = []
    current, run = DEFAULT_HEAD, len(args) + 1
    for i, arg in enumerate(args):
        key, _, attached = arg.partition("=")
        value = attached or (args[i + 1] if i + 1 < len(args) else "")
        if key in ("--config", "-c") and value:
            config = _read_yaml(Path(value))
            new, run = _class_name(_head_of(config)), len(args) + 1
            index = len(result)
            _import_method(config.get("model") if config else None)
        elif key in ("--model", "--model.class_path"):
            _import_method(value)
            new = None
        elif re.match(r"--model\.(init_args\.)?head(\.|$)", key):
            run = min(run, len(result))
            new = _class_name(value) if key.endswith(("head", "head.class_path")) else None
            index = run
        else:
            new = None
        if new is not None and new != current:
            chosen = [] if key in ("--config", "-c") else ["--model.head", value]
            result[index:index] = ["--model.head", "null", *chosen]
            current = new
        result.append(arg)
    return result


def _read_yaml(path: Path) -> Any:
    content = read_yaml(path, "configuration file")
    if not isinstance(content, dict | None):
        raise UsageError(f"configuration file {path} holds a {type(content).__name__}, expected sections (name: …)")
    trainer = (content or {}).get("trainer")
    if isinstance(trainer, dict) and trainer.get("max_epochs") is not None:
        raise UsageError(EPOCHS)
    _refuse_empty_arguments(content, path)
    return content


def _refuse_empty_arguments(content: Any, path: Path, class_path: str = "") -> None:
    """Raise UsageError for an ``init_args:`` with nothing below it: jsonargparse refuses it without saying why."""
    if isinstance(content, dict):
        name = str(content.get("class_path", class_path))
        if "init_args" in content and content["init_args"] is None:
            raise UsageError(f"configuration file {path}: init_args of {name} is empty: leave the line out")
        for inner in content.values():
            _refuse_empty_arguments(inner, path, name)


def _head_of(config: Any) -> Any:
    for key in ("model", "init_args", "head"):
        inner = config.get(key) if isinstance(config, dict) else None
        if key == "init_args" and inner is None:
            continue
        config = inner
    return config.get("class_path") if isinstance(config, dict) else config


def _class_name(head: Any) -> str | None:
    """Return the name of a head's class; UsageError for one without a module that is not known."""
    if isinstance(head, str) and head.startswith("{"):
        head = yaml.safe_load(head).get("class_path")
    if not isinstance(head, str) or head in ("", "null") or head.startswith("-"):
        return None
    from cifnet_pl import heads  # imports torch

    name = head.removeprefix("cifnet_pl.heads.")
    if "." not in name and name not in heads.HEADS and not import_offered("heads", name):
        raise unknown_name("head", name, [*heads.HEADS, *offered("heads")])
    return name


def _import_method(model: Any) -> None:
    """Import the LightningModule that ``--model`` or ``model:`` names, where an installed package offers it."""
    name = model.get("class_path") if isinstance(model, dict) else model
    if isinstance(name, str) and "." not in name:
        import_offered("methods", name)


def import_offered(kind: str, name: str) -> bool:
    """Import what an installed package offers, so that jsonargparse finds the class.

    Args:
        kind: one of :data:`cifnet_pl.utilities.plugins.GROUPS`.
        name: of the entry point.

    Returns:
        Whether a package offers it.
    """
    factory = entry_point(kind, name)
    if factory is not None:
        import_part(factory)
    return factory is not None


# ---------------------------------------------------------------------- data without images


def choose_backbone(config: Any) -> None:
    """Set the backbone to ``none:<width>`` if the data are embeddings, which need no network.

    Args:
        config: configuration of ``fit``; ``model.init_args.backbone`` is changed.

    Raises:
        UsageError: another backbone was asked for, or the file of embeddings is not given.
        DataError: it cannot be read.
    """
    from cifnet_pl.data.embeddings import embeddings_width

    model = config.get("model.init_args")
    if config.get("data.source") != "embeddings" or model is None or "backbone" not in model:
        return
    if model["backbone"] not in (DEFAULT_BACKBONE, "none") and not model["backbone"].startswith("none:"):
        raise UsageError(
            f"data source embeddings has no images for backbone {model['backbone']}: leave --model.backbone out"
        )
    options = config.get("data.options")
    model["backbone"] = f"none:{embeddings_width(config.get('data.root'), dict(options) if options else None)}"
