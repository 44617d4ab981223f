"""Save the pictures of a run, in its folder and in TensorBoard."""

from __future__ import annotations

import io
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from PIL import Image
from tensorboard.compat.proto.summary_pb2 import Summary

from cifnet_pl.utilities.files import write_bytes

RGBA = 4
"""TensorBoard's number for the colours of a PNG file with transparency, which matplotlib writes."""


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
            # As it is: ``add_image`` would unpack it into floats, three times over, and pack it again.
            width, height = Image.open(io.BytesIO(picture)).size
            image = Summary.Image(height=height, width=width, colorspace=RGBA, encoded_image_string=picture)
            summary = Summary(value=[Summary.Value(tag=path.stem, image=image)])
            logger.experiment._get_file_writer().add_summary(summary, step)
