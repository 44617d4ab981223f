"""Describe a run for ``summary.json``, and its configuration for ``config.yaml``."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cifnet_pl.backbones import backbone_imports
from cifnet_pl.data.samples import Source
from cifnet_pl.data.streams import Stream
from cifnet_pl.images.reader import usable_cores
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.plugins import (
    about,
    code_hash,
    entry_point,
    import_name,
    names_import,
)
from cifnet_pl.utilities.text import number_of
from cifnet_pl.utilities.version import __version__

PACKAGES = ("torch", "torchvision", "lightning", "codecarbon")

FINGERPRINT_SAMPLES = 256
"""Samples of each set whose contents are part of its fingerprint."""


def describe_run(module: TaskModule) -> dict[str, Any]:
    """Return the fields of ``summary.json`` besides measurements and energy.

    ``network_params`` are the parameters of one network, ``backbone_params`` those of all networks
    that predict.

    Args:
        module: the module that learned, attached to its Trainer.
    """
    data = module.data
    # Not the module's own device: at the end Lightning has moved the module back to the CPU.
    device = module.trainer.strategy.root_device
    components = module.state_elements()
    parameters = module.backbone.parameters_count
    method = module.method
    versions = {"python": platform.python_version(), "cifnet_pl": __version__}
    for package in PACKAGES:
        versions[package] = version(package)
    return {
        "head": method.__name__,
        **about(method),
        "backbone": module.backbone.name,
        "backbone_params": parameters,
        "network_params": parameters,
        "precision": str(module.trainer.precision),
        "plugin_hashes": plugin_hashes(module),
        **module.describe(),
        "epochs": module.epochs,
        "state_components": components,
        "state_bytes_per_element": {
            name: module.buffer_bytes if name == "buffer" else module.element_bytes
            for name in components
        },
        "image_size": data.image_shape[0],
        "seed": global_seed(),
        "class_order": module.class_names,
        "tasks": [list(names) for names in module.learned_tasks],
        "data_fingerprint": fingerprint(data.source),
        "versions": versions,
        "git_commit": package_commit(),
        **machine(device),
        "processes": module.trainer.world_size,
    }


def plugin_hashes(module: TaskModule) -> dict[str, str | None]:
    """Return the plug-ins of a run, with the SHA-256 of each file as it was at the first call."""
    source = module.data.source_name
    backbone = module.backbone
    names = [
        *backbone_imports(backbone.name, backbone.architecture),
        import_name(type(module)),
        import_name(module.method),
        entry_point("sources", source) or source,
        *map(import_name, module.metrics.values()),
    ]
    return {name: code_hash(name) for name in names if names_import(name)}


def global_seed() -> int | None:
    """Return the seed of ``seed_everything``; None if it was not called."""
    seed = os.environ.get("PL_GLOBAL_SEED")
    if not seed:
        return None
    return int(seed)


def machine(device: torch.device) -> dict[str, Any]:
    """Describe the machine of a run.

    Args:
        device: of the run.

    Returns:
        ``device``, ``machine`` (a line for people), ``processor``, ``gpu`` (None without one),
        ``cores`` that this process may use, and ``threads`` of torch.
    """
    name = processor()
    cores = usable_cores()
    gpu = None
    if device.type == "cuda":
        gpu = torch.cuda.get_device_name(device)
    elif device.type != "cpu":
        gpu = f"{name} ({device.type})"
    return {
        "device": gpu or platform.machine(),
        "machine": gpu or f"{name}, {number_of(cores, 'core')}",
        "processor": name,
        "gpu": gpu,
        "cores": cores,
        "threads": torch.get_num_threads(),
    }


def processor(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the model of the processor, as the system calls it.

    Args:
        info: Linux's description of the processors.
    """
    text = ""
    if info.exists():
        text = info.read_text(encoding="utf-8")
    match = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", text, re.MULTILINE)
    if match:
        return " ".join(match[1].split())
    return platform.processor() or platform.machine()


@cache
def package_commit(folder: Path = Path(__file__).parents[1]) -> str | None:
    """Return the git commit of the package, with "+changes" if its files differ from it.

    Args:
        folder: of the package.

    Returns:
        None outside a repository. A package that is installed below someone else's repository does
        not belong to it.
    """
    if _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no", "--", ".")
    if commit and changed:
        return f"{commit}+changes"
    return commit


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode:
        return None
    return done.stdout.strip()


def fingerprint(source: Source) -> str:
    """Hash a data set as it is split.

    The hash covers the class, the name and, for files, the size of every sample, and the contents
    of 256 samples of each set, evenly spread: to read all would take as long as to learn them.

    Args:
        source: the two sets; contents whose hashes are known are not read again.

    Returns:
        16 hexadecimal digits.
    """
    digest = hashlib.sha256()
    for samples in (source.train, source.test):
        digest.update(b"\0\0")
        for row, name in enumerate(samples.names):
            class_name = source.class_names[samples.labels[row]]
            text = f"{class_name}\0{name}\0{samples.size(row)}\0"
            digest.update(text.encode("utf-8", "surrogateescape"))
        count = min(len(samples), FINGERPRINT_SAMPLES)
        spread = np.linspace(0, len(samples) - 1, count)
        digest.update(samples.hashes(spread.round().astype(np.int64)).tobytes())
    return digest.hexdigest()[:16]


def configuration(module: TaskModule) -> dict[str, Any]:
    """Return the content of ``config.yaml`` of a run that was not started by the command line.

    Args:
        module: attached to a Trainer with its data module.
    """
    data: dict[str, Any] = {}
    for name, value in module.data.given.items():
        if isinstance(value, Path):
            data[name] = str(value)
        elif isinstance(value, Stream):
            data[name] = _class_and_arguments(value, vars(value))
        else:
            data[name] = value
    return {
        "seed_everything": global_seed(),
        "model": _class_and_arguments(module, _model_arguments(module)),
        "data": data,
    }


def _model_arguments(module: TaskModule) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "backbone": module.backbone.name,
        "architecture": module.backbone.architecture,
    }
    if not isinstance(module, CIFNetModule):
        settings = module.settings()
        del settings["module"]
        return settings | arguments
    head = dict(module.head.settings())
    head.pop("in_features", None)
    arguments["head"] = _class_and_arguments(module.head, head)
    if module.buffer is not None:
        arguments["buffer"] = _class_and_arguments(
            module.buffer, module.buffer.settings()
        )
    arguments["calibrate"] = module.model.calibrated
    return arguments


def _class_and_arguments(instance: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object and its arguments as a configuration names them."""
    kind = type(instance)
    return {
        "class_path": f"{kind.__module__}.{kind.__qualname__}",
        "init_args": dict(arguments),
    }
