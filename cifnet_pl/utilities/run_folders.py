"""Where a run lives: ``<logs>/<experiment>/version_N``. Which folder is next, newest, or a checkpoint's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError

CHECKPOINT = Path("checkpoints") / "last.ckpt"


@dataclass(frozen=True)
class Place:
    """A run's folder, the checkpoint to start from, and what the user should know about that choice."""

    folder: Path
    checkpoint: Path | None = None
    news: str | None = None


def experiment_folder(logs: str, experiment: str) -> Path:
    """The folder of all versions; UsageError for an experiment that is not a plain name."""
    if Path(experiment).name != experiment or experiment in ("", ".."):
        raise UsageError(f"experiment '{experiment}' is not a plain name: give the folder above it with --logs")
    return Path(logs) / experiment


def versions(base: Path) -> list[Path]:
    """The folders ``version_N`` in ``base``, oldest first."""
    numbers = []
    for entry in base.iterdir() if base.is_dir() else ():
        number = entry.name.removeprefix("version_")
        if entry.name.startswith("version_") and number.isascii() and number.isdecimal():
            numbers.append(int(number))
    return [base / f"version_{number}" for number in sorted(numbers)]


def place_fit(base: Path, checkpoint: str | None) -> Place:
    """Where a run learns.

    A fresh ``version_N``; with checkpoint "last" the newest folder in which a run has begun (it has a
    ``config.yaml``), to go on there from its last checkpoint, or from task 1 if it has none.

    Raises:
        CheckpointError: ``checkpoint`` is neither "last" nor a file.
    """
    present = versions(base)
    fresh = base / f"version_{int(present[-1].name.removeprefix('version_')) + 1 if present else 0}"
    if checkpoint != "last":
        return Place(fresh, existing(checkpoint) if checkpoint else None)
    begun = [folder for folder in present if (folder / "config.yaml").is_file()]
    if not begun:
        return Place(fresh, None, f"no run of experiment '{base.name}' in {base.parent} yet: starting with task 1")
    folder = begun[-1]
    if not (folder / CHECKPOINT).is_file():
        return Place(folder, None, f"{folder} has no checkpoint yet: starting with task 1")
    return Place(folder, folder / CHECKPOINT)


def place_evaluation(base: Path, checkpoint: str | None, configs: Iterable[Path]) -> Place:
    """The run that is evaluated: no folder is made for an evaluation.

    With checkpoint "last": the run that one of ``configs`` is the ``config.yaml`` of, else the newest with a
    checkpoint. With a file: the run that holds it, or the file's folder.

    Raises:
        UsageError: no checkpoint was asked for.
        CheckpointError: there is none.
    """
    if checkpoint is None:
        raise UsageError("nothing is learned yet: give a checkpoint with --ckpt_path, a file or last")
    if checkpoint != "last":
        path = existing(checkpoint)
        return Place(path.parent.parent if path.parent.name == CHECKPOINT.parent.name else path.parent, path)
    named = [path.parent for path in configs if path.name == "config.yaml"]
    for folder in [*reversed(named), *reversed(versions(base))]:
        if (folder / CHECKPOINT).is_file():
            return Place(folder, folder / CHECKPOINT)
    raise CheckpointError(f"no run of experiment '{base.name}' with a checkpoint in {base.parent}: fit one first")


def require_writable(base: Path) -> None:
    """Make the experiment's folder; CifnetError where nothing can be written into it."""
    try:
        base.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=base):
            pass
    except OSError as error:
        raise CifnetError(
            f"cannot write into {base}: {error.strerror or error}; choose another place with --logs"
        ) from error


def existing(checkpoint: str) -> Path:
    """A checkpoint that was named; CheckpointError if it is not a file."""
    path = Path(checkpoint)
    if not path.is_file():
        raise CheckpointError(f"no checkpoint at {path}: look in a run's folder for {CHECKPOINT}")
    return path
