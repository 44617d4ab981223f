"""Resuming inside a task: a run that goes on ends with the same bits as one that never stopped."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from cifnet_pl.utilities.errors import CheckpointError


class TaskResume:
    """The state of an open task in checkpoints.

    A checkpoint inside a task holds the weights from before the task and the position inside it.
    The task is opened anew from these weights, so that the network has the same structure, and then
    the position is restored.

    Args:
        module: the :class:`~cifnet_pl.iterative.trainer.IterativeModule` that learns the task.

    Attributes:
        before: weights before the task.
        position: weights, optimiser state and step at which the next task goes on, and those after
            the last step while a task is being finished, as the rest is computed again from there;
            None otherwise.
    """

    def __init__(self, module: Any):
        self._module = module
        self.before: dict[str, Tensor] = {}
        self.position: dict[str, Any] | None = None

    def weights(self) -> dict[str, Tensor]:
        """Return copies of all weights, as the optimizer changes them in place."""
        state = self._module.state_dict()
        return {name: value.clone() for name, value in state.items()}

    def current_position(self) -> dict[str, Any]:
        """Return the state from which training resumes after the present step."""
        module = self._module
        descent = None
        if module.descent is not None:
            descent = module.descent.state_dict()
        return {
            "step": module.steps_done,
            "weights": self.weights(),
            "descent": descent,
            "counts": module.image_counts.clone(),
            "steps": len(module.steps),
        }

    def check_plan(self) -> None:
        """Check that the task has as many steps as when the run stopped.

        Raises:
            CheckpointError: it has not.
        """
        planned = len(self._module.steps)
        if self.position is not None and self.position["steps"] != planned:
            raise CheckpointError(
                f"the checkpoint was written inside a task with {self.position['steps']} steps,"
                f" this run has {planned}: use the same --data.batch_size, number of processes and"
                " images, or start a new experiment"
            )

    def restore(self) -> None:
        """Go on at ``position``, if there is one; the network must have its structure already."""
        position = self.position
        self.position = None
        if position is None:
            return
        module = self._module
        module.steps_done = position["step"]
        module.image_counts = position["counts"].to(module.device)
        if position["step"]:
            module.enter_phase(module.steps[position["step"] - 1].phase)
            module.load_state_dict(position["weights"])
            module.descent.load_state_dict(position["descent"])

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Replace a checkpoint's weights by those from before the task, and add the position."""
        checkpoint["state_dict"] = dict(self.before)
        checkpoint["position"] = self.position or self.current_position()

    def load(self, checkpoint: dict[str, Any], under_way: bool) -> None:
        """Take over the position of a checkpoint.

        Args:
            checkpoint: as :meth:`save` writes it.
            under_way: whether it was written inside a task.
        """
        self.before = {}
        self.position = None
        self._module.clear_steps()
        if under_way:
            self.position = checkpoint.get("position")
        if self.position is not None:
            self._module.steps_skipped = self.position["step"]

    def abort_task(self) -> None:
        """Go back to the weights before the task, if it was opened by this module."""
        if self.before:
            module = self._module
            module.build_structure([len(names) for names in module.learned_tasks])
            module.load_state_dict(self.before)
            self.before = {}
            self.position = None
            module.clear_steps()
