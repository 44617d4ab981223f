"""Prequential accuracy: every training sample is predicted before it is learned (Gama et al., 2013)."""

from __future__ import annotations

import copy
from typing import Any, cast

from lightning.pytorch import Callback, LightningModule, Trainer

from cifnet_pl.heads import Head
from cifnet_pl.learning.callbacks.task_metrics import run_folder
from cifnet_pl.learning.run_record import to_csv
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.metrics import percent
from cifnet_pl.utilities.files import write_text
from cifnet_pl.utilities.processes import of_all_processes


class PrequentialAccuracy(Callback):
    """Writes ``prequential.csv`` into the folder of a run whose classes return in later tasks.

    The samples of each task are predicted by the head as it was before the task; a sample of a class that the head
    does not know counts as wrong. The first task is left out, as nothing is known before it. Columns: task, samples,
    accuracy on these samples, and accuracy on all samples so far, in percent.

    Attributes:
        rows: task, samples, correct predictions of each task.
    """

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self._head: Head | None = None
        self._right = self._total = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the head as it is before the task."""
        module, self._head = cast(TaskModule, pl_module), None
        head = getattr(module, "head", None)
        if isinstance(head, Head) and module.tasks_finished and module.data.plan.kind.samples_return:
            self._head = copy.deepcopy(head)
        self._right = self._total = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Predict the batch, which is not in that head."""
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
        self.rows.append([task, sum(total for _, total in counts), sum(right for right, _ in counts)])
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None:
            write_text(
                folder / "prequential.csv", to_csv(["task", "samples", "accuracy", "accuracy_so_far"], self.table())
            )

    def table(self) -> list[list[float | int | None]]:
        """Return the rows of ``prequential.csv``."""
        seen = right = 0
        lines: list[list[float | int | None]] = []
        for task, samples, correct in self.rows:
            seen, right = seen + samples, right + correct
            lines.append([task, samples, percent(correct, samples), percent(right, seen)])
        return lines

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, for a checkpoint."""
        return {"rows": [list(row) for row in self.rows]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the rows of a run that goes on."""
        self.rows = [list(row) for row in state_dict["rows"]]
