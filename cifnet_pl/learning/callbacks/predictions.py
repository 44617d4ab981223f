"""Write the predictions of a run as one CSV file, whatever the number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter

from cifnet_pl.learning.run_record import to_csv
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.files import write_text
from cifnet_pl.utilities.processes import of_all_processes


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
