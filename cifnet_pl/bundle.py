"""A model as a folder: ``config.json``, and one safetensors file named by the hash of its content.

``config.json`` names the file that belongs to it, and replacing ``config.json`` is the one step that makes a new model
the folder's content: a reader finds the old model or the new one, whole, whenever the writer is killed. Reading never
executes anything; both checksums, all types, sizes and numbers are checked first.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

import cifnet_pl
from cifnet_pl.assemble import Entry, assemble, class_names
from cifnet_pl.classifier import Classifier
from cifnet_pl.data.images import first_line, printable
from cifnet_pl.errors import CheckpointError, UsageError
from cifnet_pl.precision import check_precision
from cifnet_pl.storage import write_atomic, write_json

FORMAT = 1
"""Version of the layout of a bundle."""

CONFIG = "config.json"
LARGEST_CONFIG = 2**26
"""Largest ``config.json`` that is read, in bytes: room for 500,000 class names."""


def is_bundle(folder: Path) -> bool:
    """Whether ``folder`` holds a bundle, as far as its ``config.json`` is there."""
    return (folder / CONFIG).is_file()


def refuse_existing(folder: Path, overwrite: bool) -> None:
    """Raise UsageError if a bundle must not be written to ``folder``.

    What an interrupted writer left behind is no reason; files of anyone else are, whatever ``overwrite`` says.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, expected a folder for the bundle: choose another --output")
    if is_bundle(folder) and not overwrite:
        raise UsageError(f"{folder} holds a bundle already: choose another --output, or add --overwrite true")
    foreign = sorted(e.name for e in folder.iterdir() if not _ours(e)) if folder.is_dir() else []
    if foreign:
        raise UsageError(f"{folder} holds other files ({printable(foreign[0])}): choose another --output")


def write_bundle(model: Classifier, folder: Path, overwrite: bool = False) -> None:
    """Write ``model`` to ``folder``; see the module's docstring for what a kill can leave.

    Raises:
        UsageError: there is a bundle already and ``overwrite`` is false, or the folder holds other files; the model has
            a precision that is none.
        CheckpointError: a class name that could not be read back.
        CifnetError: the disk is full or not writable; an old bundle is left as it was.
    """
    refuse_existing(folder, overwrite)
    class_names(model.class_names, "this model")
    check_precision(model.precision)
    content = save(model.tensors())
    digest = hashlib.sha256(content).hexdigest()
    versions = {"cifnet_pl": cifnet_pl.__version__, "python": platform.python_version(), "torch": _torch_version()}
    config = {
        "format": FORMAT,
        **model.describe(),
        "versions": versions,
        "tensors": {"sha256": digest, "bytes": len(content)},
    }
    fresh = not folder.exists()
    try:
        write_atomic(folder / _file_name(digest), lambda file: file.write(content))
        write_json(folder / CONFIG, {**config, "sha256": _digest(config)})
    except BaseException:
        if fresh:
            _remove_leftovers(folder, keep=None)
        raise
    _remove_leftovers(folder, keep=_file_name(digest))


def read_bundle(folder: Path, download: bool = False) -> Classifier:
    """Read a model.

    Raises:
        CheckpointError: no bundle, one of another version, or one that is damaged or hostile in any way.
        CifnetError: its backbone cannot be built on this machine.
    """
    config = _read_config(folder)
    path = folder / _file_name(_checked_digest(config))
    size = config.sub("tensors").get("bytes", int)
    if not path.is_file() or path.stat().st_size != size:
        raise CheckpointError(f"{folder} is not whole: {path.name} with {size} bytes is missing; copy the bundle again")
    try:
        with safe_open(path, framework="pt") as file:
            shapes = {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118, no mapping

            def read() -> dict[str, Tensor]:
                _verify(path, config)
                return {key: file.get_tensor(key) for key in shapes}

            return assemble(config.content, shapes, read, str(folder), download)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {first_line(error)}") from error


def read_versions(folder: Path) -> dict[str, str]:
    """Versions of the software that wrote a bundle."""
    versions = _read_config(folder).sub("versions")
    return {printable(key): printable(versions.get(key, str)) for key in versions.content}


def _read_config(folder: Path) -> Entry:
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder} is not a bundle: it has no {CONFIG} (or its writing was interrupted)")
    if path.stat().st_size > LARGEST_CONFIG:
        raise CheckpointError(f"{path} is larger than {LARGEST_CONFIG} bytes: it is not a bundle's")
    try:
        content = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {first_line(error)}") from error
    config = Entry(content, str(folder), CONFIG)
    if config.get("format", int) != FORMAT:
        raise CheckpointError(f"{folder} has format {content['format']}, this version reads {FORMAT}: update cifnet_pl")
    if config.get("sha256", str) != _digest({key: value for key, value in content.items() if key != "sha256"}):
        raise CheckpointError(f"{path} is damaged or was edited: its checksum is wrong; copy the bundle again")
    return config


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _checked_digest(config: Entry) -> str:
    digest = config.sub("tensors").get("sha256", str)
    if len(digest) != 64 or not set(digest) <= set("0123456789abcdef"):
        raise CheckpointError(f"{config.where} is damaged: its checksum is not a sha256")
    return str(digest)


def _verify(path: Path, config: Entry) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    if digest.hexdigest() != _checked_digest(config):
        raise CheckpointError(f"{path} is damaged: its checksum is wrong; copy the bundle again")


def _digest(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _file_name(digest: str) -> str:
    return f"tensors-{digest[:16]}.safetensors"


def _ours(entry: Path) -> bool:
    """Whether a file in a bundle's folder was written by this module, or by a writer that was killed."""
    name = entry.name.lstrip(".")
    return name.startswith((CONFIG, "tensors-")) and name.endswith((CONFIG, ".safetensors", ".tmp"))


def _remove_leftovers(folder: Path, keep: str | None) -> None:
    """Remove tensors that no ``config.json`` names and files of killed writers; without ``keep`` the folder, too."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if _ours(entry) and entry.name not in (CONFIG, keep):
            entry.unlink(missing_ok=True)
    if keep is None and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _torch_version() -> str:
    import torch

    return str(torch.__version__)
