"""Runs through Lightning's own Trainer, without the command line."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, Trainer

from cifnet_pl import CalibrationBuffer, CIFNetDataModule, CIFNetModule
from cifnet_pl.heads import CIFNetHead


def digits(**options: Any) -> CIFNetDataModule:
    """Five tasks of two digits, as pixels."""
    given = {"source": "digits", "classes_per_task": 2, "image_size": 8}
    return CIFNetDataModule(**{**given, "num_workers": 0, **options})


def module(**options: Any) -> CIFNetModule:
    """The paper's head with a buffer, on pixels."""
    given = {"backbone": "pixels:8", "head": CIFNetHead}
    return CIFNetModule(**{**given, "buffer": CalibrationBuffer(300), **options})


def fitted(folder, data, *callbacks, **options):
    """A module with ``options`` that has learned the data."""
    learner = module(**options)
    trainer(folder, *callbacks).fit(learner, datamodule=data)
    return learner


def trainer(folder: Path, *callbacks: Callback, **options: Any) -> Trainer:
    """A Trainer with Lightning's defaults, but quiet."""
    shown = ("enable_progress_bar", "enable_model_summary", "logger")
    given = {**dict.fromkeys(shown, False), "accelerator": "cpu", "max_epochs": 5}
    given |= {"default_root_dir": folder, "callbacks": [*callbacks]}
    return Trainer(**{**given, **options})
