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
        position: weights, optimiser state and step at which the next task goes on; None if it
            begins at its start.
    """

    def __init__(self, module: Any):
        self._module = module
        self.before: dict[str, Tensor] = {}
        self.position: dict[str, Any] | None = None
        # After the last step, while the task is being finished: the rest is computed again from it.
        self._last_position: dict[str, Any] | None = None

    def begin_task(self) -> None:
        """Store the weights before a task."""
        # Cloned, as the optimizer changes weights in place.
        self.before = self._weights()
        self._last_position = None

    def _weights(self) -> dict[str, Tensor]:
        return {
            name: value.clone() for name, value in self._module.state_dict().items()
        }

    @property
    def finishing(self) -> bool:
        """Whether all steps are taken, and the task is being finished."""
        return self._last_position is not None

    def begin_finishing(self) -> None:
        """Store the position after the last step of the task."""
        self._last_position = self._current_position()

    def end_task(self) -> None:
        """Forget the position of a task that is finished."""
        self._last_position = None

    def _current_position(self) -> dict[str, Any]:
        """Return the state from which training resumes after the present step."""
        module = self._module
        descent = None
        if module.learner.descent is not None:
            descent = module.learner.descent.state_dict()
        return {
            "step": module.plan.done,
            "weights": self._weights(),
            "descent": descent,
            "counts": module.image_counts.clone(),
            "steps": len(module.plan.steps),
        }

    def check_plan(self) -> None:
        """Check that the task has as many steps as when the run stopped.

        Raises:
            CheckpointError: it has not.
        """
        stored = None
        if self.position is not None:
            stored = self.position.get("steps")
        planned = len(self._module.plan.steps)
        if stored not in (None, planned):
            raise CheckpointError(
                f"the checkpoint was written inside a task with {stored} steps,"
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
        module.plan.done = module.plan.skipped = position["step"]
        module.image_counts = position["counts"].to(module.device)
        if position["step"]:
            last = module.plan.steps[position["step"] - 1]
            module.enter_phase(last.phase)
            module.load_state_dict(position["weights"])
            assert module.learner.descent is not None
            module.learner.descent.load_state_dict(position["descent"])

    def save(self, checkpoint: dict[str, Any]) -> None:
        """Replace a checkpoint's weights by those from before the task, and add the position."""
        checkpoint["state_dict"] = dict(self.before)
        checkpoint["position"] = self._last_position or self._current_position()

    def load(self, checkpoint: dict[str, Any], under_way: bool) -> None:
        """Take over the position of a checkpoint.

        Args:
            checkpoint: as :meth:`save` writes it.
            under_way: whether it was written inside a task.
        """
        self.before = {}
        self.position = None
        if under_way:
            self.position = checkpoint.get("position")
        plan = self._module.plan
        plan.clear()
        if self.position is not None:
            plan.skipped = self.position["step"]

    def abort_task(self) -> None:
        """Go back to the weights before the task, if it was opened by this module."""
        if self.before:
            module = self._module
            sizes = [len(names) for names in module.learned_tasks]
            module.build_structure(sizes)
            module.load_state_dict(self.before)
            self.before = {}
            self.position = None
            module.plan.clear()
