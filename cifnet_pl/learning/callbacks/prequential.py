"""Prequential accuracy: every training sample is predicted before it is learned (Gama et al., 2013)."""

from __future__ import annotations

import copy
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer

from cifnet_pl.heads import Head
from cifnet_pl.learning.run_record import run_folder, to_csv
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.metrics import percent
from cifnet_pl.utilities.files import of_all_processes, write_text


class PrequentialAccuracy(Callback):
    """Writes ``prequential.csv`` into the folder of a run whose classes return in later tasks.

    The samples of each task are predicted by the head as it was before the task; a sample of a class that the head
    does not know counts as wrong. The first task is left out, as nothing is known before it. Columns: task, samples,
    accuracy on these samples, and accuracy on all samples so far, in percent.

    Attributes:
        rows: task, samples, correct predictions, and classes known before, of each task.
    """

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self._head: Head | None = None
        self._right = self._total = self._known = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the head as it is before the task."""
        module, self._head = cast(TaskModule, pl_module), None
        head = getattr(module, "head", None)
        if isinstance(head, Head) and module.tasks_finished and module.data.plan.kind.samples_return:
            self._head = copy.deepcopy(head)
            self._known = len(module.class_names)
        self._right = self._total = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Predict the batch with the head from before the task, which has not learned it."""
        if self._head is not None and len(outputs["label"]):
            self._right += int((self._head.predict(outputs["z"]) == outputs["label"]).sum())
            self._total += len(outputs["label"])

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Add the task's row, over all processes, and write the table."""
        if self._head is None:
            return
        self._head = None
        counts = of_all_processes((self._right, self._total))
        task = cast(TaskModule, pl_module).tasks_finished + 1
        self.rows.append([task, sum(total for _, total in counts), sum(right for right, _ in counts), self._known])
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            write_text(
                folder / "prequential.csv", to_csv(["task", "samples", "accuracy", "accuracy_so_far"], self.table())
            )

    def table(self) -> list[list[float | int | None]]:
        """Return the rows of ``prequential.csv``."""
        seen = right = 0
        lines: list[list[float | int | None]] = []
        for task, samples, correct, *_ in self.rows:
            seen, right = seen + samples, right + correct
            lines.append([task, samples, percent(correct, samples), percent(right, seen)])
        return lines

    def forward_transfer(self) -> float | None:
        """Return how far earlier tasks help with one before it is learned, in percentage points.

        That is the mean over tasks of the accuracy on a task's samples before they are learned, minus that of a guess
        among the classes known then (Lopez-Paz & Ranzato, 2017, with the task's training samples in place of test
        samples).

        Returns:
            None if no class returns: of a new class nothing can be known before.
        """
        gains = [100.0 * row[2] / row[1] - 100.0 / row[3] for row in self.rows if len(row) > 3 and row[1] and row[3]]
        return sum(gains) / len(gains) if gains else None

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, for a checkpoint."""
        return {"rows": [list(row) for row in self.rows]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the rows of a run that goes on."""
        self.rows = [list(row) for row in state_dict["rows"]]
