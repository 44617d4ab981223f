"""Load any stored model by one function: a run's folder, one of its checkpoints, or a bundle."""

import zipfile
from pathlib import Path
from typing import Any

import torch

from cifnet_pl.backbones import Backbone
from cifnet_pl.backbones.weight_files import load_tensors
from cifnet_pl.model.assembly import assemble
from cifnet_pl.model.bundle import (
    StoredModel,
    StoredRecord,
    check_format,
    is_bundle,
    parse,
    read_bundle,
)
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.hub import SCHEME, fetch
from cifnet_pl.utilities.errors import CheckpointError, explained
from cifnet_pl.utilities.files import expanded, refuse_pointer
from cifnet_pl.utilities.growing_tensors import chosen_device
from cifnet_pl.utilities.run_folders import CHECKPOINT, COMPLETE, existing, versions
from cifnet_pl.utilities.text import printable


def load(
    path: Path | str,
    device: torch.device | str | None = None,
    download: bool = False,
    engine: str = "auto",
    trust: bool = False,
) -> Classifier:
    """Load a model that can classify, and go on learning.

    Args:
        path: a bundle, one that is zipped, a run's folder (``lightning_logs/NAME/version_N``, or
            ``lightning_logs/NAME`` for the newest version; the model that has learned the held-out
            images, too, if there is one), a checkpoint file, or ``hf:user/model`` of the Hugging
            Face hub.
        device: where to put it; None for the first GPU if there is one, else the CPU.
        download: whether a model of the hub, and weights of the backbone, may be fetched that are
            not on this machine.
        engine: what runs the backbone, :data:`cifnet_pl.backbones.engines.EngineChoice`.
        trust: whether a head or backbone from outside this package may be imported, which executes
            its code; without it nothing from the file is ever executed.

    Raises:
        UsageError: an unknown engine.
        CheckpointError: there is no such model, or the file is damaged, hostile, or of another
            version.
        CifnetError: its backbone cannot be built on this machine.
    """
    if str(path).startswith(SCHEME):
        location = fetch(str(path), download)
    else:
        location = expanded(path)
    if is_bundle(location):
        stored = read_bundle(location)
    elif _is_zipped_bundle(location):
        stored = read_bundle(zipfile.Path(location))
    else:
        stored = _read_run(location)
    model = assemble(stored, download, engine, trust)
    return model.to(chosen_device(device))


# ---------------------------------------------------------------------- bundles


def load_bundle(
    folder: Path,
    trust: bool = False,
    backbone: Backbone | None = None,
) -> Classifier:
    """Read the model of a bundle.

    Args:
        folder: of the bundle.
        trust: as for :func:`load`.
        backbone: as for :func:`~cifnet_pl.model.assembly.assemble`.

    Raises:
        CheckpointError, CifnetError: as for :func:`load`.
    """
    return assemble(read_bundle(folder), trust=trust, backbone=backbone)


def _is_zipped_bundle(path: Path) -> bool:
    """Return whether a file is a zipped bundle, as the page sends it, and not a checkpoint."""
    try:
        return is_bundle(zipfile.Path(path))
    # No archive, or a damaged one: the error comes when it is read as a checkpoint.
    except Exception:
        return False


# ---------------------------------------------------------------------- checkpoints


def checkpoint_of(path: Path) -> Path:
    """Find the checkpoint file of a run.

    Args:
        path: of the file, of a run's folder, or of an experiment, whose newest run is taken.

    Raises:
        CheckpointError: there is none.
    """
    if path.is_file():
        return path
    if not path.exists():
        raise CheckpointError(
            f"no model at {path}: expected a run's folder, a checkpoint file or a bundle"
        )
    for folder in (path, *reversed(versions(path))):
        checkpoint = folder / CHECKPOINT
        if checkpoint.is_file():
            return checkpoint
    raise CheckpointError(
        f"{path} is neither a bundle (no config.json) nor a run's folder (no {CHECKPOINT})"
    )


def read_checkpoint(path: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """Read a checkpoint file of a run without executing anything from it.

    Args:
        path: the file.
        map_location: device for the tensors, as for ``torch.load``.

    Raises:
        CheckpointError: the file is missing, truncated, not of this package, or holds more than
            tensors and plain containers.
    """
    existing(path)
    unreadable = f"cannot read checkpoint {path}, it is damaged or not a checkpoint"
    with explained(CheckpointError, unreadable):
        refuse_pointer(path)
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()  # torch.load does not check the checksums
        if damaged is not None:
            raise CheckpointError(
                f"{path} is damaged: the checksum of {printable(damaged)} is wrong; use a copy"
            )
        content = load_tensors(path, map_location)
    needed = {"cifnet", "state_dict", "pytorch-lightning_version"}
    if not isinstance(content, dict) or not needed <= content.keys():
        raise CheckpointError(f"{path} is no checkpoint of a run of this package")
    return content


class CheckpointRecord(StoredRecord):
    """The state of a run, as far as a model needs it."""

    under_way: bool
    model: Any = None


def _read_run(path: Path) -> StoredModel:
    """Read what a run's folder or one of its checkpoint files holds of a model."""
    checkpoint = checkpoint_of(path)
    complete = checkpoint.absolute().parent.parent / COMPLETE
    if path.is_dir() and is_bundle(complete):
        return read_bundle(complete)
    content = read_checkpoint(checkpoint)
    where = str(checkpoint)
    state = content["cifnet"]
    if isinstance(state, dict):
        check_format(state.get("format"), where)
    run = parse(CheckpointRecord, state, where)
    if run.model is None:
        raise CheckpointError(
            f"{where} is of a trained method: finish the run, and give its folder"
        )
    if run.under_way:
        raise CheckpointError(
            f"{where} was saved in the middle of a task: finish the run with --ckpt_path last first"
        )
    return StoredModel(where, run.model, content["state_dict"])
