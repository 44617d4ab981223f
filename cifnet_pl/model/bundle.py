"""Store a model as a folder: ``config.json``, and one safetensors file named by the hash of its content.

``config.json`` names the file that belongs to it. Replacing ``config.json`` is the only step that makes a new model the
folder's content: a reader finds either the old model or the new one, complete, whenever the writer is killed. Reading
never executes anything; both checksums, all types, sizes and numbers are checked first.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from cifnet_pl.model.description import FORMAT, Table, check_format, parse
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from cifnet_pl.utilities.files import write_atomic, write_json
from cifnet_pl.utilities.text import first_line, printable

Shapes = Mapping[str, tuple[int, ...]]

CONFIG = "config.json"
LARGEST_CONFIG = 2**26
"""Largest ``config.json`` that is read, in bytes: room for 500,000 class names."""


class TensorsTable(Table):
    """The file of tensors that belongs to a ``config.json``."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    bytes: int


class FileTable(Table):
    """The part of a ``config.json`` about the files of its bundle."""

    sha256: str
    tensors: TensorsTable
    versions: dict[str, str] = Field(default_factory=dict)


def is_bundle(folder: Path) -> bool:
    """Return whether ``folder`` has the ``config.json`` of a bundle."""
    return (folder / CONFIG).is_file()


def is_utf8(path: Path) -> bool:
    """Return whether a path is valid UTF-8; safetensors opens no other."""
    try:
        str(path).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def refuse_existing(folder: Path, overwrite: bool) -> None:
    """Check that a bundle may be written to a folder.

    Leftovers of an interrupted writer do not matter; other files do, whatever ``overwrite`` says.

    Args:
        folder: where the bundle is to be.
        overwrite: whether a bundle that is there may be replaced.

    Raises:
        UsageError: it may not.
    """
    if not is_utf8(folder):
        raise UsageError(f"{printable(str(folder))} is not UTF-8, as a bundle's path must be: choose another --output")
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file, expected a folder for the bundle: choose another --output")
    if is_bundle(folder) and not overwrite:
        raise UsageError(f"{folder} holds a bundle already: choose another --output, or add --overwrite true")
    foreign = sorted(e.name for e in folder.iterdir() if not _ours(e)) if folder.is_dir() else []
    if foreign:
        raise UsageError(f"{folder} holds other files ({printable(foreign[0])}): choose another --output")


def write_bundle(
    description: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path, overwrite: bool = False
) -> None:
    """Write a description and tensors to ``folder``; see the module's docstring for what a kill can leave.

    Args:
        description: plain numbers, strings, lists and tables.
        tensors: contiguous, on the CPU.
        folder: the bundle's folder; it is made if it is missing.
        overwrite: whether a bundle that is there may be replaced.

    Raises:
        UsageError: there is a bundle already and ``overwrite`` is false, or the folder holds other files.
        CifnetError: the disk is full or not writable; an old bundle is left as it was.
    """
    refuse_existing(folder, overwrite)
    content = save(dict(tensors))
    digest = hashlib.sha256(content).hexdigest()
    versions = {"cifnet_pl": version("cifnet_pl"), "python": platform.python_version(), "torch": torch.__version__}
    config = {
        "format": FORMAT,
        **description,
        "versions": {name: str(number) for name, number in versions.items()},
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


@contextmanager
def open_bundle(folder: Path) -> Iterator[tuple[dict[str, Any], Shapes, Callable[[], dict[str, Tensor]]]]:
    """Open a bundle.

    Args:
        folder: of the bundle.

    Yields:
        Its description, the shape of every tensor, and a function that reads the tensors. That function verifies the
        checksum of the tensors, so call it once the shapes are known to be right.

    Raises:
        CheckpointError: no bundle, one of another version, or one that is damaged.
    """
    content, file = _read_config(folder)
    if not is_utf8(folder):
        raise CheckpointError(f"{printable(str(folder))} is not UTF-8, as a bundle's path must be: rename the folder")
    path = folder / _file_name(file.tensors.sha256)
    size = file.tensors.bytes
    if not path.is_file() or path.stat().st_size != size:
        raise CheckpointError(f"{folder} is not whole: {path.name} with {size} bytes is missing; copy the bundle again")
    try:
        with safe_open(path, framework="pt") as stored:
            shapes = {key: tuple(stored.get_slice(key).get_shape()) for key in stored.keys()}  # noqa: SIM118, no mapping

            def read() -> dict[str, Tensor]:
                _verify(path, file.tensors.sha256)
                return {key: stored.get_tensor(key) for key in shapes}

            yield content, shapes, read
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path} is damaged: {first_line(error)}") from error


def read_versions(folder: Path) -> dict[str, str]:
    """Return the versions of the software that wrote a bundle."""
    _, file = _read_config(folder)
    return {printable(name): printable(number) for name, number in file.versions.items()}


def tensors_name(folder: Path) -> str:
    """Return the name of the file of tensors that belongs to the ``config.json`` of ``folder``, there or not."""
    _, file = _read_config(folder)
    return _file_name(file.tensors.sha256)


def _read_config(folder: Path) -> tuple[dict[str, Any], FileTable]:
    path = folder / CONFIG
    if not path.is_file():
        raise CheckpointError(f"{folder} is not a bundle: it has no {CONFIG} (or its writing was interrupted)")
    if path.stat().st_size > LARGEST_CONFIG:
        raise CheckpointError(f"{path} is larger than {LARGEST_CONFIG} bytes: it is not a bundle's")
    try:
        content = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_no_constant)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is damaged: {first_line(error)}") from error
    if isinstance(content, dict):
        check_format(content.get("format"), str(folder))
    file = parse(FileTable, content, str(folder))
    if file.sha256 != _digest({key: value for key, value in content.items() if key != "sha256"}):
        raise CheckpointError(f"{path} is damaged or was edited: its checksum is wrong; copy the bundle again")
    return content, file


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number")


def _verify(path: Path, expected: str) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            digest.update(block)
    if digest.hexdigest() != expected:
        raise CheckpointError(f"{path} is damaged: its checksum is wrong; copy the bundle again")


def _digest(config: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(config, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _file_name(digest: str) -> str:
    return f"tensors-{digest[:16]}.safetensors"


def _ours(entry: Path) -> bool:
    """Return whether a file in a bundle's folder was written by this module, or by a writer that was killed."""
    name = entry.name.lstrip(".")
    return name.startswith((CONFIG, "tensors-")) and name.endswith((CONFIG, ".safetensors", ".tmp"))


def _remove_leftovers(folder: Path, keep: str | None) -> None:
    """Remove files of killed writers, and tensors that no ``config.json`` names; without ``keep`` the folder too."""
    for entry in folder.iterdir() if folder.is_dir() else ():
        if _ours(entry) and entry.name not in (CONFIG, keep):
            entry.unlink(missing_ok=True)
    if keep is None and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
