"""Write the configuration of a run that was started from plain Python, as the command line writes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import yaml

from cifnet_pl.data.streams import Stream
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.files import write_text


def write_configuration(module: TaskModule, folder: Path) -> None:
    """Write ``config.yaml`` into a run's folder unless the command line has written it already."""
    path = folder / "config.yaml"
    if not path.exists():
        write_text(path, yaml.safe_dump(configuration(module), sort_keys=False, allow_unicode=True))


def configuration(module: TaskModule) -> dict[str, Any]:
    """Return the content of ``config.yaml``: seed, model and data.

    Args:
        module: attached to a Trainer with its data module.
    """
    seed = os.environ.get("PL_GLOBAL_SEED")
    data = {name: _class_of(value) if isinstance(value, Stream) else value for name, value in module.data.given.items()}
    data = {name: str(value) if isinstance(value, Path) else value for name, value in data.items()}
    return {"seed_everything": int(seed) if seed else None, "model": _model(module), "data": data}


def _model(module: TaskModule) -> dict[str, Any]:
    backbone = module.backbone
    options: dict[str, Any] = {"backbone": backbone.name, "architecture": backbone.architecture}
    if not isinstance(module, CIFNetModule):
        model_settings = {
            name: value for name, value in module.settings().items() if name not in ("module", "backbone")
        }
        return {"class_path": _path(type(module)), "init_args": {**options, **model_settings}}
    head, buffer = module.head, module.buffer
    settings = {name: value for name, value in head.settings().items() if name != "in_features"}
    options["head"] = {"class_path": _path(type(head)), "init_args": settings}
    if buffer is not None:
        options["buffer"] = {"class_path": _path(type(buffer)), "init_args": buffer.settings()}
    return {"class_path": _path(type(module)), "init_args": {**options, "calibrate": module.model.calibrated}}


def _class_of(stream: Stream) -> dict[str, Any]:
    return {"class_path": _path(type(stream)), "init_args": dict(vars(stream))}


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
