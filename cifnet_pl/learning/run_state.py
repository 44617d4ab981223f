"""State of a run in a checkpoint besides tensors: its classes, tasks and settings."""

from collections.abc import Mapping
from itertools import islice
from typing import Annotated, Any

from pydantic import Field

from cifnet_pl.learning.run_record import RunRecord
from cifnet_pl.model.bundle import ImagesRecord, StoredRecord, check_format, parse
from cifnet_pl.utilities.errors import CheckpointError, explained
from cifnet_pl.utilities.files import flatten


class RunState(StoredRecord):
    """The record that :class:`cifnet_pl.learning.task_module.TaskModule` adds to a checkpoint.

    Attributes:
        under_way: whether the last task is not learned completely.
        solving: whether the checkpoint was written while a task was being solved.
        class_names: all classes, in the order of learning.
        task_sizes: number of classes of each task.
        settings: what the tensors depend on.
        images: how images are prepared.
        precision: of the Trainer.
        record: the measurements, see :class:`cifnet_pl.learning.run_record.RunRecord`.
    """

    under_way: bool
    solving: bool
    class_names: list[str]
    task_sizes: list[Annotated[int, Field(ge=0)]]
    settings: dict[str, Any]
    images: ImagesRecord
    precision: str
    record: dict[str, Any]

    def tasks(self) -> list[list[str]]:
        """Return the class names of each task."""
        names = iter(self.class_names)
        return [list(islice(names, size)) for size in self.task_sizes]

    def measurements(self) -> RunRecord:
        """Return the measurements.

        Raises:
            CheckpointError: they cannot be read.
        """
        damaged = "the checkpoint is damaged, its measurements cannot be read"
        with explained(CheckpointError, damaged):
            return RunRecord.from_state_dict(self.record)

    def check_images(self, images: Mapping[str, Any]) -> None:
        """Compare how images are prepared and held out; raise CheckpointError if they differ.

        Args:
            images: from ``CIFNetDataModule.describe_images``.
        """
        compared = []
        for record in (images, self.images.model_dump()):
            fraction, seed = record["held_out"] or (None, None)
            # By the names of the data module's options.
            options = {
                "image_size": record["image_size"],
                "crop_ratio": record["crop_ratio"],
                "val_fraction": fraction,
                "split_seed": seed,
            }
            compared.append(options)
        require_same(*compared)

    def resume(self, checkpoint: Mapping[str, Any], precision: str) -> None:
        """Set Lightning's counters to the end of the last finished task.

        So the open task begins anew. Otherwise its counters, which depend on the hook that wrote
        the checkpoint, would skip its hooks and its first batches. Lightning takes these counters
        over after the module's ``on_fit_start``, which sets those of other runs.

        Args:
            checkpoint: it is changed in place.
            precision: of the Trainer.

        Raises:
            CheckpointError: of another precision, or with weights only.
        """
        require_same({"precision": precision}, {"precision": self.precision})
        if "callbacks" not in checkpoint:
            raise CheckpointError(
                "the checkpoint holds weights only: a run can be evaluated with it, but cannot go"
                " on"
            )
        # Each start of a run may take ``--trainer.max_time``.
        checkpoint["callbacks"].pop("Timer", None)
        tasks = len(self.task_sizes) - self.under_way
        counters = ("ready", "started", "processed", "completed")
        fit_loop = checkpoint["loops"]["fit_loop"]
        for counts in ("current", "total"):
            fit_loop["epoch_progress"][counts].update(dict.fromkeys(counters, tasks))
        batches = fit_loop["epoch_loop.batch_progress"]
        batches["current"].update(dict.fromkeys(batches["current"], 0))
        batches["is_last_batch"] = False

    def check_complete(self, resumes: bool) -> None:
        """Check that the run can be evaluated with the checkpoint, or go on from it.

        Args:
            resumes: whether the run is to go on.

        Raises:
            CheckpointError: it cannot.
        """
        if self.solving:
            moment = "while it was being solved"
        elif self.under_way and not resumes:
            moment = "in its middle: fit can go on from it, else"
        else:
            return
        raise CheckpointError(
            f"the checkpoint does not hold task {len(self.task_sizes)}, it was written"
            f" {moment}; use another one, such as last.ckpt of the run's folder"
        )


def read_run_state(checkpoint: Mapping[str, Any]) -> RunState:
    """Read and check the record of a checkpoint.

    Raises:
        CheckpointError: the checkpoint has none, or a damaged one.
    """
    stored = checkpoint.get("cifnet")
    if not isinstance(stored, dict):
        raise CheckpointError(
            "the checkpoint is a plain Lightning checkpoint, not one of cifnet_pl"
        )
    check_format(stored.get("format"), "the checkpoint")
    return parse(RunState, stored, "the checkpoint")


def require_same(settings: Mapping[str, Any], stored: Mapping[str, Any]) -> None:
    """Compare settings with those in a checkpoint.

    Raises:
        CheckpointError: one of ``settings`` differs from ``stored``; names the first.
    """
    flat = flatten(stored)
    for key, value in flatten(settings).items():
        stored_value = flat.get(key)
        if type(stored_value) is not type(value) or stored_value != value:
            raise CheckpointError(
                f"the checkpoint was made with {key} = {stored_value}, this run has {value}: "
                "use the same settings, or start a new experiment"
            )
