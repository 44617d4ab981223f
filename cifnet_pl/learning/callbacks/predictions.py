"""Write what a model answers, whatever the number of processes: by image, before it has learned an
image, by neuron.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from torch import Tensor

from cifnet_pl.data.loading import Batch
from cifnet_pl.heads import Head
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.task_module import TaskCallback, TaskModule, run_folder, write_table
from cifnet_pl.model.metrics import TOP_K, percent, top_classes
from cifnet_pl.utilities.files import of_all_processes, to_csv, write_atomic, write_text
from cifnet_pl.utilities.plugins import optional
from cifnet_pl.utilities.text import utf8

if TYPE_CHECKING:
    import pandas as pd


class PredictionTable(BasePredictionWriter):
    """Writes ``predictions.csv``: a row per image, with its true class and the most probable one.

    Args:
        folder: where the file is written.
    """

    def __init__(self, folder: Path):
        super().__init__(write_interval="epoch")
        self.folder = folder
        self._written = ""

    def write_on_epoch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        predictions: Sequence[Any],
        batch_indices: Sequence[Any],
    ) -> None:
        """Gather what every process predicted, and write it once."""
        local_rows = [
            row
            for batch in predictions
            for row in zip(*(part.tolist() for part in batch), strict=True)
        ]
        parts = of_all_processes(local_rows)
        if not trainer.is_global_zero:
            return
        module = cast(TaskModule, pl_module)
        source = module.data.source
        rows = []
        for index, label, probability in (row for part in parts for row in part):
            true_class = source.class_names[int(source.val.labels[index])]
            rows.append(
                (
                    source.val.names[index],
                    true_class,
                    module.class_names[label],
                    f"{probability:.6f}",
                )
            )
        target = self.folder / "predictions.csv"
        write_text(target, to_csv(["file", "true_class", "class", "probability"], sorted(rows)))
        self._written = f"{len(rows)} predictions in {target}"

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Print where the predictions are, once the progress bar is gone."""
        if self._written:
            print(self._written, flush=True)


class PredictionRecord(TaskCallback):
    """Writes ``predictions.parquet``, a folder with a file for each task: a row for each test image
    of a class seen.

    Columns: ``task`` (from 1), ``image`` (its name in the data), ``label`` (its class), and
        ``top_1`` … ``top_5`` with
    ``probability_1`` … ``probability_5``, null where fewer classes are known. Rows are in the order
    of tasks and, within one, of the data, whatever the number of processes. Parquet's readers take
    the folder as one table.

    Args:
        every_task: whether to write it; needs pyarrow.

    Raises:
        UsageError: pyarrow is not installed.
    """

    def __init__(self, every_task: bool = False):
        self.every_task = every_task
        self._batches: list[tuple[np.ndarray, ...]] = []
        if every_task:
            optional("pyarrow", "--predictions.every_task", "tables")

    def see_answers(self, module: TaskModule, probabilities: Tensor, batch: Batch) -> None:
        """Keep a batch's answers."""
        if self.every_task:
            parts = (batch.row, batch.label, *top_classes(probabilities))
            self._batches.append(tuple(column.cpu().numpy() for column in parts))

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Gather the task's answers of all processes and write them."""
        batches = [batch for process in of_all_processes(self._batches) for batch in process]
        self._batches = []
        folder = run_folder(trainer)
        if trainer.is_global_zero and folder is not None and batches:
            rows, *answers = (np.concatenate(part) for part in zip(*batches, strict=True))
            order = np.argsort(rows, kind="stable")
            task = module.tasks_finished
            images = [module.data.source.val.names[row] for row in rows[order]]
            table = _table(task, images, module.class_names, *(part[order] for part in answers))
            file = folder / "predictions.parquet" / f"task_{task:04}.parquet"
            write_atomic(file, lambda to: table.to_parquet(to, index=False, compression="zstd"))


def _table(
    task: int,
    images: list[str],
    classes: list[str],
    labels: np.ndarray,
    columns: np.ndarray,
    probabilities: np.ndarray,
) -> pd.DataFrame:
    """Return the table of one task."""
    import pandas as pd  # here: it takes a second and 90 MB

    known = pd.array(
        [*map(utf8, classes), None], dtype="string"
    )  # the last one is that of column −1
    lacking = ((0, 0), (0, TOP_K - columns.shape[1]))
    columns = np.pad(columns, lacking, constant_values=-1)
    probabilities = np.pad(probabilities.astype(np.float32), lacking, constant_values=np.nan)
    table = pd.DataFrame({"task": task, "image": list(map(utf8, images)), "label": known[labels]})
    for k in range(TOP_K):
        table[f"top_{k + 1}"] = known[columns[:, k]]
        table[f"probability_{k + 1}"] = probabilities[:, k]
    return table


class PrequentialAccuracy(Callback):
    """Predicts every training sample before it is learned (prequential accuracy; Gama et al.,
    2013).

    It writes ``prequential.csv`` into the folder of a run whose classes return in later tasks.

    The samples of each task are predicted by the head as it was before the task; a sample of a
    class that the head does not know counts as wrong. The first task is left out, as nothing is
    known before it. Columns: task, samples, accuracy on these samples, and accuracy on all samples
        so far, in percent.

    Attributes:
        rows: task, samples, correct predictions, and classes known before, of each task.
    """

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self._head: Head | None = None
        self._right = self._total = self._known = 0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the head as it is before the task."""
        module = cast(TaskModule, pl_module)
        self._head = None
        head = getattr(module, "head", None)
        if (
            isinstance(head, Head)
            and module.tasks_finished
            and module.data.plan.kind.samples_return
        ):
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
        self.rows.append(
            [
                task,
                sum(total for _, total in counts),
                sum(right for right, _ in counts),
                self._known,
            ]
        )
        seen = right = 0
        lines: list[list[float | int | None]] = []
        for task, samples, correct, _ in self.rows:
            seen = seen + samples
            right = right + correct
            lines.append([task, samples, percent(correct, samples), percent(right, seen)])
        write_table(
            trainer, "prequential.csv", ["task", "samples", "accuracy", "accuracy_so_far"], lines
        )

    def forward_transfer(self) -> float | None:
        """Return how far earlier tasks help with one before it is learned, in percentage points.

        That is the mean over tasks of the accuracy on a task's samples before they are learned,
        minus that of a guess among the classes known then (Lopez-Paz & Ranzato, 2017, with the
        task's training samples in place of test samples).

        Returns:
            None if no class returns: of a new class nothing can be known before.
        """
        gains = [
            100.0 * right / n - 100.0 / known for _, n, right, known in self.rows if n and known
        ]
        if gains:
            return sum(gains) / len(gains)
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the rows, for a checkpoint."""
        return {"rows": [list(row) for row in self.rows]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the rows of a run that goes on."""
        self.rows = [list(row) for row in state_dict["rows"]]


class ActivationTable(TaskCallback):
    """Writes ``activations.csv`` after each task: how the neurons of each respond to the classes of
    every other.

    Row i, column j is the mean over the test images of task i of the largest activation, the
    sigmoid of the score, among the neurons of task j (fig:buffer_overlapping). Above the diagonal
    are neurons that were added after the images' classes had been learned: without calibration,
    they respond to them. Evaluation is not repeated for it; add it to ``trainer.callbacks``.
    """

    def begin_evaluation(self, trainer: Trainer, module: TaskModule) -> None:
        """Start with no images."""
        tasks = len(module.learned_tasks)
        self._sums = torch.zeros(tasks, tasks, dtype=torch.float64, device=module.device)
        self._counts = torch.zeros(tasks, dtype=torch.float64, device=module.device)

    def see_answers(self, module: TaskModule, probabilities: Tensor, batch: Batch) -> None:
        """Add the batch's activations to those of the tasks that its images belong to."""
        model = cast(CIFNetModule, module)
        sizes = [len(names) for names in module.learned_tasks]
        task_of = torch.repeat_interleave(torch.tensor(sizes, device=batch.label.device))[
            batch.label
        ]
        parts = torch.split(torch.sigmoid(model.head(model.evaluated)), sizes, dim=1)
        largest = torch.stack([column.amax(dim=1) for column in parts], dim=1)
        self._sums.index_add_(0, task_of, largest)
        self._counts += torch.bincount(task_of, minlength=len(sizes))

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Write the table over the images of all processes."""
        for total in (self._sums, self._counts):
            trainer.strategy.reduce(total, reduce_op="sum")
        counted = zip(
            (self._sums / self._counts[:, None]).tolist(), self._counts.tolist(), strict=True
        )
        rows = [
            [i + 1, *(row if count else [None] * len(row))]
            for i, (row, count) in enumerate(counted)
        ]
        write_table(
            trainer,
            "activations.csv",
            ["image_task", *(f"neurons_{j + 1}" for j in range(len(rows)))],
            rows,
        )
