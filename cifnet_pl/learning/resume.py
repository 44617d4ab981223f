"""Check that another run can go on from a checkpoint, and restore Lightning's counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from lightning.pytorch import Trainer
from pydantic import Field

from cifnet_pl.model.bundle import ImagesTable, Table, check_format, parse
from cifnet_pl.utilities.errors import CheckpointError


class StoredRun(Table):
    """The part of a checkpoint that :class:`cifnet_pl.learning.task_module.TaskModule` adds and a run needs."""

    under_way: bool
    closing: bool
    class_names: list[str]
    task_sizes: list[Annotated[int, Field(ge=0)]]
    settings: dict[str, Any]
    images: ImagesTable
    precision: str


def read_stored(checkpoint: Mapping[str, Any]) -> StoredRun:
    """Read and check what ``TaskModule.on_save_checkpoint`` added to a checkpoint.

    Raises:
        CheckpointError: it is not there, or not as written there.
    """
    stored = checkpoint.get("cifnet")
    if not isinstance(stored, dict):
        raise CheckpointError("the checkpoint is a plain Lightning checkpoint, not one of cifnet_pl")
    check_format(stored.get("format"), "the checkpoint")
    run = parse(StoredRun, stored, "the checkpoint")
    names, sizes = run.class_names, run.task_sizes
    if len(set(names)) < len(names) or sum(sizes) != len(names) or (run.under_way and not sizes):
        raise CheckpointError("the checkpoint is damaged: its list of classes and tasks does not make sense")
    return run


def rewind_checkpoint(checkpoint: Mapping[str, Any], tasks: int) -> None:
    """Set Lightning's counters to the end of a task, whichever hook the checkpoint was written in.

    Resumed without this, counters of a task that was under way would skip its hooks and its first batches.

    Args:
        checkpoint: it is changed in place.
        tasks: number of tasks that are finished.

    Raises:
        CheckpointError: it holds weights only.
    """
    try:
        if not checkpoint.keys() >= {"callbacks", "optimizer_states", "lr_schedulers"}:
            raise KeyError("saved with weights_only")
        fit_loop = checkpoint["loops"]["fit_loop"]
        for counts in (fit_loop["epoch_progress"]["current"], fit_loop["epoch_progress"]["total"]):
            counts.update(dict.fromkeys(("ready", "started", "processed", "completed"), tasks))
        batches = fit_loop["epoch_loop.batch_progress"]
        batches["current"].update(dict.fromkeys(batches["current"], 0))
        batches["is_last_batch"] = False
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            "the checkpoint holds weights only, or is damaged: a run can be evaluated with it, but not go on"
        ) from error


def require_same(settings: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Compare settings with those in a checkpoint.

    Raises:
        CheckpointError: one of ``settings`` differs from ``stored``; names the first.
    """
    theirs = flat_settings(stored)
    for key, value in flat_settings(settings).items():
        stored_value = theirs.get(key)
        if type(stored_value) is not type(value) or stored_value != value:
            raise CheckpointError(
                f"the checkpoint was made with {key} = {stored_value}, this run has {value}: "
                "use the same settings, or start a new experiment"
            )


def image_options(images: Mapping[str, Any]) -> dict[str, Any]:
    """Return how photos are prepared and which were held back, by the names of the data module's options.

    Args:
        images: from ``CIFNetDataModule.describe_images``.
    """
    fraction, seed = images["held_back"] or (None, None)
    sizes = {"image_size": images["image_size"], "crop_ratio": images["crop_ratio"]}
    return {**sizes, "val_fraction": fraction, "split_seed": seed}


def count_tasks(trainer: Trainer, tasks: int) -> None:
    """Set the Trainer's ``current_epoch`` and ``global_step`` to a number of learned tasks."""
    epochs = trainer.fit_loop.epoch_progress
    steps = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    for counts in (epochs.current, epochs.total, steps.total):
        for name in vars(counts):
            setattr(counts, name, tasks)


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested settings to one level.

    Example:
        >>> flat_settings({"head": {"ridge": 1}})
        {'head.ridge': 1}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            flat |= flat_settings(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
