"""Report photos that occur more than once, before the run learns."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor

from cifnet_pl.data.loading import Batch
from cifnet_pl.heads.ridge import at_cap
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import run_folder, to_csv
from cifnet_pl.learning.task_module import TaskCallback, TaskModule
from cifnet_pl.model.metrics import LearnedPhotos, NearCopyScore
from cifnet_pl.photos.copies import NAMED
from cifnet_pl.utilities.files import of_all_processes, write_text
from cifnet_pl.utilities.text import about_spellings

FILE = "copies.csv"
"""All pairs of photos with the same content, in the run's folder."""


WITHOUT_HASHES = (
    "note: no content hashes are kept (--model.hashes false): a later extend or merge will not notice photos that were "
    "learned already, and forget needs exactly the photos that were learned"
)


class CopiesReport(Callback):
    """Name photos that occur twice, in two classes, or in both training and test set; write all to a file."""

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report once all checks of the run are over, so that a run that is refused leaves no folder."""
        data, folder = cast(TaskModule, pl_module).data, run_folder(trainer)
        if isinstance(pl_module, CIFNetModule) and not pl_module.model.keeps_hashes:
            rank_zero_info(WITHOUT_HASHES)
        spellings = about_spellings(data.source.class_names) if data.duplicates else None
        for note in [*data.notes, *([spellings] if spellings else [])]:
            rank_zero_info(note)
        if not (trainer.is_global_zero and data.duplicates and data.copies):
            return
        for sentence in data.copies.sentences(data.source, data.duplicates):
            rank_zero_info(sentence)
        table = data.copies.table(data.source)
        if folder is not None:
            write_text(folder / FILE, to_csv(["what", "photo", "other"], table))
            if len(table) > NAMED:
                rank_zero_info(f"all of them are in {folder / FILE}")


class NearCopies(TaskCallback):
    """Compares each task's photos, and those that test it, by the embeddings that the run computes anyway.

    Only where the data are the user's own photos. Test photos whose embeddings are not in memory are not compared.

    Attributes:
        near_copy_score: of the last evaluation.
        near, learned: learned photos that have near-copies, and all that were compared.
        capped: whether a ridge that generalised cross-validation chose is at its cap after the last task.
    """

    def __init__(self) -> None:
        self.near_copy_score = NearCopyScore()
        self.near = self.learned = 0
        self.capped = False
        self._photos = LearnedPhotos()
        self._tested: set[int] = set()  # rows of test photos that resemble a learned one
        self._right: dict[int, bool] = {}

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin a task; photos of a single class wait to be compared until there are photos of another."""
        limit = self._photos.limit
        if limit is not None:
            self._photos = LearnedPhotos()
            self._photos.limit = limit

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Take in what was learned, from methods that show their embeddings."""
        if cast(TaskModule, pl_module).data.duplicates and isinstance(outputs, dict) and "z" in outputs:
            self._photos.add(outputs["z"], outputs["label"])

    def begin_evaluation(self, trainer: Trainer, module: TaskModule) -> None:
        """Forget the answers of the evaluation before."""
        self._right = {}

    def see_answers(self, module: TaskModule, probabilities: Tensor, batch: Batch) -> None:
        """Note which photos are named right."""
        if module.data.duplicates:
            right = probabilities.argmax(dim=1) == batch.label
            self._right.update(zip(batch.row.tolist(), right.tolist(), strict=True))

    def end_task(self, trainer: Trainer, module: TaskModule) -> None:
        """Compare the task's photos with each other, and its test photos with them; all processes together."""
        if not module.data.duplicates:
            return
        self._photos.gather()
        self.capped = isinstance(module, CIFNetModule) and at_cap(module.head.choices())
        near, learned = self._photos.near_copies()
        self.near, self.learned = self.near + near, self.learned + learned
        rows = np.array(sorted(self._right), dtype=np.int64)
        rows = rows[np.isin(module.data.learner_labels(rows), self._photos.labels())]
        rows, z = module.data.known_test_embeddings(rows)
        labels = torch.from_numpy(module.data.learner_labels(rows))
        self._tested |= set(rows[self._photos.resemble(z, labels)].tolist())
        results = [(row in self._tested, right) for row, right in self._right.items()]
        pairs = np.array(results, dtype=bool).reshape(-1, 2)
        self.near_copy_score = sum(of_all_processes(NearCopyScore.of(pairs[:, 0], pairs[:, 1])), NearCopyScore())

    def sentences(self) -> list[str]:
        """Return the sentences to print beside the score."""
        return self.near_copy_score.sentences(self.near, self.learned, self.capped)

    def state_dict(self) -> dict[str, Any]:
        """Return what tasks before left behind, so that a run that goes on says the same."""
        limit = self._photos.limit
        return {"near": self.near, "learned": self.learned, "tested": sorted(self._tested), "limit": limit}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what tasks before left behind."""
        self.near, self.learned = int(state_dict["near"]), int(state_dict["learned"])
        self._tested = {int(row) for row in state_dict["tested"]}
        self._photos.limit = state_dict["limit"]
