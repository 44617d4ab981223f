"""Find a run's folder, ``<logs>/<experiment>/version_N``: new, newest, or of a checkpoint."""

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cifnet_pl.utilities.errors import CheckpointError, UsageError
from cifnet_pl.utilities.files import exclusive, read_yaml

CHECKPOINT = Path("checkpoints") / "last.ckpt"
COMPLETE = "model"
"""Bundle in a run's folder: the model after the refit on all images, held-out ones too."""

POINT = "point.yaml"
FAILURE = "failure.txt"
"""Files of a sweep's point in its experiment's folder: its configuration, and its last failure."""

DUPLICATES_FILE = "duplicates.csv"
"""All duplicates that a run found, in its folder."""

TASK_OPTIONS = (
    "class_order", "initial_classes", "classes_per_task", "stream",
    "group", "tune", "val_fraction", "split_seed",
)  # fmt: skip
"""Options of the data that divide the samples into tasks, or choose those to be held out."""


@dataclass(frozen=True)
class RunChoice:
    """A run's folder, the checkpoint to start from, and a message about that choice.

    ``resumes`` says whether a run has begun in the folder, to go on there.
    """

    folder: Path
    checkpoint: Path | None = None
    message: str | None = None
    resumes: bool = False


def experiment_folder(
    experiment: str = "default",
    logs: str = "lightning_logs",
) -> Path:
    """Return the folder of an experiment's runs.

    Args:
        experiment: name of the folder in ``logs``.
        logs: folder that holds all experiments.

    Raises:
        UsageError: ``experiment`` is no plain name.
    """
    if Path(experiment).name != experiment or experiment in ("", ".."):
        raise UsageError(
            f"experiment '{experiment}' is not a plain name: give the folder above it with --logs"
        )
    return Path(logs) / experiment


def versions(base: Path) -> list[Path]:
    """Return the folders ``version_N`` in ``base``, oldest first."""
    found = base.glob("version_*")
    numbered = [path for path in found if re.fullmatch("version_[0-9]+", path.name)]
    return sorted(numbered, key=version_number)


def version_number(folder: Path) -> int:
    """Return the number of a folder ``version_N``."""
    return int(folder.name.removeprefix("version_"))


def images_of_run(model: Path) -> str | None:
    """Return the folder of images that a run learned from; None if it names no class folders.

    Args:
        model: a run's folder, that of its experiment, or a file or folder in it.
    """
    newest = versions(model)[::-1]  # by number: clocks go backwards, too
    # Other folders above a model may have a config.yaml that is not a run's.
    parents = model.absolute().parents[:2]
    above = [path for path in parents if path in versions(path.parent)]
    places = [path / "config.yaml" for path in (model, *newest, *above)]
    config = next((read_yaml(path) for path in places if path.is_file()), {})
    data = config.get("data", {})
    if data.get("source") == "folder" and data.get("root"):
        return str(data["root"])
    return None


def place_fit(base: Path, checkpoint: str | None) -> RunChoice:
    """Choose the folder in which a run learns; it is not made here.

    Args:
        base: the experiment's folder.
        checkpoint: None for a fresh ``version_N``; "last" for the newest folder in which a run has
            begun (it has a ``config.yaml``), to go on there from its last checkpoint, or from task
            1 if it has none; a file to start a fresh ``version_N`` from it.

    Raises:
        CheckpointError: ``checkpoint`` is neither "last" nor a file.
    """
    present = versions(base)
    fresh = base / "version_0"
    if present:
        fresh = next_version(present[-1])
    if checkpoint is None:
        return RunChoice(fresh)
    if checkpoint != "last":
        return RunChoice(fresh, existing(checkpoint))
    begun = [folder for folder in present if (folder / "config.yaml").is_file()]
    if not begun:
        message = f"no run of experiment '{base.name}' in {base.parent} yet"
        return RunChoice(fresh, message=f"{message}: starting with task 1")
    folder = begun[-1]
    if not (folder / CHECKPOINT).is_file():
        return RunChoice(folder, resumes=True)
    return RunChoice(folder, folder / CHECKPOINT, resumes=True)


def next_version(folder: Path) -> Path:
    """Return the path of the version after a run's folder.

    Example:
        >>> next_version(Path("runs/version_1")).name
        'version_2'
    """
    return folder.with_name(f"version_{version_number(folder) + 1}")


def check_same_tasks(place: RunChoice, options: Mapping[str, Any]) -> None:
    """Check that a run goes on with the same tasks.

    Args:
        place: where it goes on; nothing is checked for a new run.
        options: of the data.

    Raises:
        UsageError: the run in the folder has others.
    """
    file = place.folder / "config.yaml"
    if place.checkpoint is None or not file.is_file():
        return
    before = read_yaml(file).get("data", {})
    for name in TASK_OPTIONS:
        if name in before and before[name] != options[name]:
            raise UsageError(
                f"the run in {place.folder} has --data.{name} {before[name]}, not {options[name]},"
                " which is another experiment: leave --ckpt_path out, or give the same value"
            )


def place_evaluation(
    base: Path,
    checkpoint: str | None,
    configs: Iterable[object] | None,
) -> RunChoice:
    """Choose the run that is evaluated; no folder is made for an evaluation.

    Args:
        base: the experiment's folder.
        checkpoint: "last" for the run of one of ``configs``, else the newest with a checkpoint; a
            file for the run that holds it, or the file's folder.
        configs: paths of the command's configuration files; a run is found by its ``config.yaml``.

    Raises:
        UsageError: no checkpoint was asked for.
        CheckpointError: there is none.
    """
    if checkpoint is None:
        raise UsageError(
            "nothing is learned yet: give a checkpoint with --ckpt_path, a file or last"
        )
    if checkpoint != "last":
        path = existing(checkpoint)
        folder = path.parent
        if folder.name == CHECKPOINT.parent.name:
            folder = folder.parent
        return RunChoice(folder, path)
    files = [Path(str(path)) for path in configs or ()]
    named = [path.parent for path in files if path.name == "config.yaml"]
    for folder in reversed([*versions(base), *named]):
        if (folder / CHECKPOINT).is_file():
            return RunChoice(folder, folder / CHECKPOINT)
    raise CheckpointError(
        f"no run of experiment '{base.name}' with a checkpoint in {base.parent}: fit one first"
    )


@contextmanager
def locked_run(place: RunChoice) -> Iterator[Path]:
    """Lock the folder in which a run learns, before anything is computed.

    Where a new run is refused before it begins, without ``config.yaml``, its folder is removed.
    Where it ends by an error, which the same command would meet again, its folder goes even if the
    first task had begun, as long as nothing of it was learned. An interrupted run keeps it, to go
    on there.

    Args:
        place: of the run; its folder is not made.

    Yields:
        The folder. A new run takes the next version where another one has begun in this one.

    Raises:
        UsageError: another run goes on in the folder.
        CifnetError: it cannot be written to.
    """
    folder = place.folder
    lock = ExitStack()
    try:
        while True:
            try:
                lock.enter_context(exclusive(folder))
                if place.resumes or not folder.exists():
                    break
            except UsageError:
                if place.resumes:
                    raise
            lock.close()
            folder = next_version(folder)
        yield folder
    except BaseException as error:
        kept = [folder / "config.yaml"]
        # Neither Ctrl-C nor a signal, which leaves by SystemExit, is an Exception.
        if isinstance(error, Exception):
            kept = [folder / "tasks.csv", folder / CHECKPOINT]
        if not place.resumes and not any(path.exists() for path in kept):
            shutil.rmtree(
                folder, ignore_errors=True
            )  # Windows keeps files that are open
        raise
    finally:
        lock.close()


def existing(checkpoint: Path | str) -> Path:
    """Return the path of a checkpoint that was named.

    Raises:
        CheckpointError: it is not a file.
    """
    path = Path(checkpoint)
    if not path.is_file():
        raise CheckpointError(
            f"no checkpoint at {path}: look in a run's folder for {CHECKPOINT}"
        )
    return path
