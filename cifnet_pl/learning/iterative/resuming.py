"""Resume a trained method inside a task with the same bits, or return to the state before the task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from cifnet_pl.learning.iterative.schedule import Step
from cifnet_pl.learning.iterative.steps import StepwiseModule
from cifnet_pl.utilities.errors import CheckpointError
from cifnet_pl.utilities.text import first_line


class ResumableModule(StepwiseModule):
    """Keeps the weights from before a task, and the position inside it, in checkpoints."""

    def __init__(self) -> None:
        super().__init__()
        self._before: dict[str, Tensor] = {}
        self._resume: dict[str, Any] | None = None
        self._snapshot: dict[str, Any] | None = None

    @property
    def goes_on_inside(self) -> bool:
        """Whether the task that is opened next was under way when the run stopped, and goes on there."""
        return self._resume is not None

    def steps(self, rows: np.ndarray, task: int) -> list[Step]:
        """Return all steps of a task on new images ``rows``.

        Raises:
            CheckpointError: the run goes on inside the task, and its steps were others before.
        """
        steps = super().steps(rows, task)
        if self._resume is not None:
            _require_same("steps in the task", self._resume.get("steps"), len(steps))
        return steps

    def begin_task(self, names: list[str], labels: list[int]) -> None:
        """Make room for the new classes; if the run was stopped inside this task, go on from there."""
        # Weights are changed in place, all other tensors are replaced.
        self._before = {k: v.clone() for k, v in self.state_dict().items()}
        self._snapshot = None
        super().begin_task(names, labels)
        if self._resume is not None:
            self._go_on(self._resume)
            self._resume = None

    def end_learning(self) -> None:
        """Keep the position after the last step, from which the rest of the task is computed again."""
        if not self._learned:
            self._snapshot = self._position()
        super().end_learning()

    def finish_task(self) -> None:
        """Forget the position once the task is learned."""
        super().finish_task()
        self._snapshot = None

    def abort_task(self, labels: list[int]) -> None:
        """Go back to the weights before the task."""
        if self._before:
            self._restructure([len(task) for task in self.learned_tasks])
            super().load_state_dict(self._before)
            self._before, self._resume, self._offset, self._plan = {}, None, 0, None

    def _position(self) -> dict[str, Any]:
        """Return the state of the task after ``_done`` steps: enough to go on with the same bits."""
        descent = self._descent.state_dict() if self._descent is not None else None
        weights = {k: v.clone() for k, v in self.state_dict().items()}
        position = {"step": self._done, "weights": weights, "descent": descent, "counts": self._counts.clone()}
        steps = len(self._plan[1]) if self._plan is not None else None
        return {**position, "images_per_step": self.images_per_step, "steps": steps}

    def _go_on(self, position: dict[str, Any]) -> None:
        """Continue the task from a position; the network must have its structure already."""
        self._done = self._offset = position["step"]
        self._counts = position["counts"].to(self.device)
        steps = self._plan[1] if self._plan is not None else []
        if self._done:
            self._enter(steps[self._done - 1].phase)
            self.load_state_dict(position["weights"])
            assert self._descent is not None
            self._descent.load_state_dict(position["descent"])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Add the weights from before the task and the position inside it, while a task is under way."""
        super().on_save_checkpoint(checkpoint)
        if checkpoint["cifnet"]["under_way"]:
            checkpoint["state_dict"] = dict(self._before)
            checkpoint["position"] = self._snapshot or self._position()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Make room for the classes that the checkpoint's weights know.

        Raises:
            CheckpointError: see :class:`cifnet_pl.learning.task_module.TaskModule`; or the run would go on inside a
                task in steps of another size, in which its remaining steps are others.
        """
        super().on_load_checkpoint(checkpoint)
        self._before, self._plan = {}, None
        self._resume = checkpoint.get("position") if self._under_way else None
        if self._resume is not None:
            _require_same("images in a step", self._resume.get("images_per_step"), self.images_per_step)
        self._offset = self._resume["step"] if self._resume else 0
        self._restructure([len(task) for task in self.learned_tasks[: self.tasks_finished]])

    def _restructure(self, sizes: list[int]) -> None:
        """Build the structure of a network that has finished some tasks.

        Args:
            sizes: number of classes of each task.
        """
        self.clear()
        with self.drawing(3):
            self.rebuild(sizes)
        self.to(self.device)

    def clear(self) -> None:
        """Go back to the structure before the first task."""
        self.classes = self.old = 0

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load all weights.

        Raises:
            CheckpointError: they do not fit the classes that the checkpoint names.
        """
        try:
            return super().load_state_dict(state_dict, strict=strict, assign=assign)
        except (RuntimeError, TypeError, AttributeError, KeyError) as error:
            raise CheckpointError(f"the checkpoint does not fit the network: {first_line(error)}") from error


def _require_same(quantity: str, stored: int | None, ours: int) -> None:
    """Compare the steps of the task that goes on with those of the run that began it.

    Args:
        quantity: what is counted.
        stored: the number in the checkpoint; None in those of older versions, and nothing is compared.
        ours: the number in this run.

    Raises:
        CheckpointError: they differ.
    """
    if stored is not None and stored != ours:
        raise CheckpointError(
            f"the checkpoint was written inside a task with {stored} {quantity}, this run has {ours}: use the same "
            "--data.batch_size, number of processes and images, or start a new experiment"
        )
