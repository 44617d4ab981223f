"""Write the predictions of a run as one CSV file, whatever the number of processes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import rank_zero_warn

from cifnet_pl.data.loading import Batch
from cifnet_pl.learning.run_record import run_folder, to_csv
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.model.metrics import FIRST, first_classes
from cifnet_pl.utilities.errors import UsageError
from cifnet_pl.utilities.files import of_all_processes, write_atomic, write_text


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
        self, trainer: Trainer, pl_module: LightningModule, predictions: Sequence[Any], batch_indices: Sequence[Any]
    ) -> None:
        """Gather what every process predicted, and write it once."""
        local_rows = [row for batch in predictions for row in zip(*(part.tolist() for part in batch), strict=True)]
        parts = of_all_processes(local_rows)
        if not trainer.is_global_zero:
            return
        module = cast(TaskModule, pl_module)
        source = module.data.source
        rows = []
        for index, label, probability in (row for part in parts for row in part):
            true_class = source.class_names[int(source.val.labels[index])]
            rows.append((source.val.names[index], true_class, module.class_names[label], f"{probability:.6f}"))
        target = self.folder / "predictions.csv"
        write_text(target, to_csv(["file", "true_class", "class", "probability"], sorted(rows)))
        self._written = f"{len(rows)} predictions in {target}"

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Print where the predictions are, once the progress bar is gone."""
        if self._written:
            print(self._written, flush=True)


FILE = "predictions.parquet"
PARTS = ".predictions"
"""Folder of the tasks of a run that is not whole yet."""


class PredictionRecord(Callback):
    """Writes ``predictions.parquet``: a row for each task and test image of a class seen.

    Columns: ``task`` (from 1), ``image`` (its name in the data), ``label`` (its class), and ``top_1`` … ``top_5`` with
    ``probability_1`` … ``probability_5``, null where fewer classes are known. Rows are in the order of tasks and,
    within one, of the data, whatever the number of processes; no more than one task is held in memory.

    Args:
        every_task: whether to write it; needs pyarrow.

    Raises:
        UsageError: pyarrow is not installed.
    """

    def __init__(self, every_task: bool = False):
        self.every_task = every_task
        self._batches: list[tuple[np.ndarray, ...]] = []
        if every_task:
            try:
                import pyarrow  # noqa: F401
            except ImportError:
                raise UsageError("--predictions.every_task needs pyarrow: pip install 'cifnet_pl[tables]'") from None

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start with the images of a task."""
        self._batches = []

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Batch,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep a batch's answers; ``outputs`` are its (n, C) class probabilities, or None for an empty batch."""
        if self.every_task and trainer.state.fn == "fit" and outputs is not None:
            columns, probabilities = first_classes(outputs)
            parts = (batch.row, batch.label, columns, probabilities)
            self._batches.append(tuple(column.cpu().numpy() for column in parts))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Gather the task's answers of all processes and write them."""
        if not self.every_task or trainer.state.fn != "fit":
            return
        batches = [batch for process in of_all_processes(self._batches) for batch in process]
        self._batches = []
        folder, module = run_folder(trainer), cast(TaskModule, pl_module)
        if trainer.is_global_zero and folder is not None:
            nothing = np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros((0, 1), dtype=np.int64)
            parts = zip(*(batches or [(*nothing, np.zeros((0, 1)))]), strict=True)
            rows, *answers = (np.concatenate(part) for part in parts)
            order, task = np.argsort(rows, kind="stable"), module.tasks_finished
            images = [module.data.source.val.names[row] for row in rows[order]]
            table = _table(task, images, module.class_names, *(part[order] for part in answers))
            write_atomic(folder / PARTS / f"task_{task}.parquet", lambda file: _write(iter([table]), file))

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Join the tables of all tasks."""
        folder, tasks = run_folder(trainer), cast(TaskModule, pl_module).tasks_finished
        if not self.every_task or not trainer.is_global_zero or folder is None or not (folder / PARTS).is_dir():
            return
        if sum(1 for _ in _tasks(folder, tasks)) < tasks:
            rank_zero_warn(f"{folder / FILE} lacks tasks that were learned without --predictions.every_task")
        write_atomic(folder / FILE, lambda file: _write(_tasks(folder, tasks), file))
        shutil.rmtree(folder / PARTS)


def _table(
    task: int, images: list[str], classes: list[str], labels: np.ndarray, columns: np.ndarray, probabilities: np.ndarray
) -> Any:
    """Return the table of one task; bytes of names that are no UTF-8 become escapes, which Parquet can store."""
    import pyarrow as pa

    def utf8(names: list[str]) -> Any:
        return pa.array([n.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace") for n in names])

    known = utf8(classes)

    def named(columns: np.ndarray) -> Any:
        return pa.DictionaryArray.from_arrays(pa.array(columns.astype(np.int32)), known)

    tasks = pa.array(np.full(len(images), task), pa.int32())
    data = {"task": tasks, "image": utf8(images).cast(pa.string()), "label": named(labels)}
    for k in range(FIRST):
        if k < columns.shape[1]:
            data[f"top_{k + 1}"] = named(columns[:, k])
            data[f"probability_{k + 1}"] = pa.array(probabilities[:, k].astype(np.float32))
        else:
            data[f"top_{k + 1}"] = pa.nulls(len(images), data["label"].type)
            data[f"probability_{k + 1}"] = pa.nulls(len(images), pa.float32())
    return pa.table(data)


def _tasks(folder: Path, tasks: int) -> Iterator[Any]:
    """Yield the tables of all tasks: new ones, and those in the file of a finished run that got more tasks."""
    import pyarrow.parquet as pq

    before = None
    group_of: dict[int, int] = {}
    if (folder / FILE).is_file():
        before = pq.ParquetFile(folder / FILE)  # a row group is a task
        for group in range(before.num_row_groups):
            group_of |= dict.fromkeys(before.read_row_group(group, columns=["task"])["task"].to_pylist(), group)
    for task in range(1, tasks + 1):
        part = folder / PARTS / f"task_{task}.parquet"
        if part.is_file():
            yield pq.read_table(part)
        elif before is not None and task in group_of:
            yield before.read_row_group(group_of[task])


def _write(tables: Iterator[Any], file: IO[bytes]) -> None:
    """Write tables as row groups, one per task."""
    import pyarrow.parquet as pq

    first = next(tables)
    with pq.ParquetWriter(file, first.schema, compression="zstd") as writer:
        for table in chain([first], tables):
            writer.write_table(table, row_group_size=max(1, len(table)))
