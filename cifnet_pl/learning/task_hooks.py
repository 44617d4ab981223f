"""The methods that each subclass of :class:`cifnet_pl.learning.task_module.TaskModule` implements."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from lightning.pytorch import LightningModule
from torch import Tensor

from cifnet_pl.backbones import Backbone
from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.data.loading import Batch
from cifnet_pl.utilities.errors import CifnetError, DataError, UsageError


class TaskHooks(LightningModule):
    """The part of a task-incremental learner that is specific to a method.

    Attributes:
        learned_tasks: class names of each task begun, in order.
        backbone: set by subclasses; says how the data module must prepare images.
        epochs: passes over a task's images that learn from them.
        ways: names of the ways in which the module can answer, where it has several and all are evaluated.
    """

    learned_tasks: list[list[str]]
    backbone: Backbone
    epochs: int = 1
    ways: tuple[str, ...] = ()

    @property
    def data(self) -> CIFNetDataModule:
        """The data module that feeds this module."""
        return cast(CIFNetDataModule, cast(Any, self.trainer).datamodule)

    @property
    def goes_on_inside(self) -> bool:
        """Whether the task that is opened next was under way when the run stopped, and goes on there."""
        return False

    def passes(self, rows: np.ndarray, task: int) -> list[np.ndarray]:
        """Return the order in which the images of a task are learned, one array per pass.

        It is called more than once for a task, before ``begin_task`` too.

        Args:
            rows: (n,) positions of the task's training images.
            task: number of the task, from 0.
        """
        return [rows]

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Make room for the classes of a new task.

        Args:
            names: of its classes.
            labels: of its classes.
        """

    def check_returning(self) -> None:
        """Check that this module can learn samples of classes that it has learned in an earlier task.

        Raises:
            UsageError: it cannot.
        """
        raise UsageError(
            f"{type(self).__name__} learns each class in one task, but with --data.stream "
            f"{type(self.data.plan.kind).__name__} classes return: leave that out, or choose LongTailed"
        )

    def finish_task(self) -> None:
        """Learn what is left to learn once all batches of a task have been seen."""

    def probabilities(self, batch: Batch) -> Tensor:
        """Return (n, C) float64 class probabilities of an evaluation batch, column c for label c."""
        raise CifnetError(f"{type(self).__name__} does not predict")

    def probabilities_by_way(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the probabilities that count, and those of each of ``ways``."""
        return self.probabilities(batch), {}

    def settings(self) -> dict[str, Any]:
        """Return what a checkpoint's tensors depend on; compared on loading."""
        return {"module": type(self).__name__}

    def describe(self) -> dict[str, Any]:
        """Return what ``summary.json`` says of the model: head, backbone, backbone_params, precision of the network."""
        name, parameters = self.backbone.name, self.backbone.parameters_count
        about = {"head": type(self).__name__, "backbone": name, "backbone_params": parameters}
        return {**about, "precision": str(self.trainer.precision)}

    def state_elements(self) -> dict[str, int]:
        """Count the numbers kept between tasks, by component."""
        return {"parameters": sum(p.numel() for p in self.parameters())}

    @property
    def bytes_per_element(self) -> int:
        """Bytes of one of those numbers, except the buffer's."""
        return 4

    @property
    def bytes_per_buffer_element(self) -> int:
        """Bytes of one number of the component "buffer"."""
        return 4

    def abort_task(self, labels: list[int]) -> None:
        """Forget what was seen of a task that was under way when the run stopped."""

    def refuse_several_processes(self, name: str) -> None:
        """Check that the run has one process.

        Args:
            name: what learns in one process only.

        Raises:
            UsageError: there are more.
        """
        if self.trainer.world_size > 1:
            raise UsageError(f"{name} learns in one process, not in {self.trainer.world_size}: --trainer.devices 1")

    def refuse_empty(self, names: list[str]) -> None:
        """Check that every class has an image.

        Args:
            names: classes of which no image could be learned.

        Raises:
            DataError: there is one.
        """
        if names:
            raise DataError(
                f"no image of class '{names[0]}' was learned: none could be read, or trainer options limit the batches"
            )
