"""Save the pictures of a run, in its folder and in TensorBoard."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image

from cifnet_pl.utilities.files import write_bytes


def keep_picture(trainer: Trainer, path: Path, picture: bytes, step: int) -> None:
    """Write a PNG file, and show its pixels in TensorBoard under the file's name.

    Args:
        trainer: whose loggers show it.
        path: the file.
        picture: its content.
        step: position on TensorBoard's axis.
    """
    write_bytes(path, picture)
    for logger in trainer.loggers:
        if isinstance(logger, TensorBoardLogger):
            pixels = np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
            logger.experiment.add_image(path.stem, pixels, global_step=step, dataformats="HWC")
