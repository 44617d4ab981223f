"""Report photos that occur more than once, before the run learns."""

from __future__ import annotations

from typing import cast

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info

from cifnet_pl.data.copies import NAMED
from cifnet_pl.learning.callbacks.run_folder import run_folder
from cifnet_pl.learning.cifnet_module import CIFNetModule
from cifnet_pl.learning.run_record import to_csv
from cifnet_pl.learning.task_module import TaskModule
from cifnet_pl.utilities.files import write_text
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
        if isinstance(pl_module, CIFNetModule) and pl_module.photos is None:
            rank_zero_info(WITHOUT_HASHES)
        spellings = about_spellings(data.source.class_names) if data.duplicates else None
        for note in [*data.source.notes, *([spellings] if spellings else [])]:
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
