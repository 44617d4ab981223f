"""Change arguments before jsonargparse reads them: heads do not inherit the options of another class."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from cifnet_pl.cli.option_errors import EPOCHS
from cifnet_pl.utilities.errors import UsageError, unknown_name
from cifnet_pl.utilities.files import read_yaml
from cifnet_pl.utilities.plugins import entry_point, import_part, offered

DEFAULT_HEAD = "CIFNetHead"
DEFAULT_BACKBONE = "embedded:efficientnet_lite0"


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
    from cifnet_pl.data.sources.embeddings import embeddings_width

    model = config.get("model.init_args")
    if config.get("data.source") != "embeddings" or model is None or "backbone" not in model:
        return
    if model["backbone"] not in (DEFAULT_BACKBONE, "none") and not model["backbone"].startswith("none:"):
        raise UsageError(
            f"data source embeddings has no images for backbone {model['backbone']}: leave --model.backbone out"
        )
    options = config.get("data.options")
    model["backbone"] = f"none:{embeddings_width(config.get('data.root'), dict(options) if options else None)}"
