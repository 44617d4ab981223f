"""Find the folder that the callbacks of a run write to."""

from __future__ import annotations

from pathlib import Path

from lightning.pytorch import Trainer


def run_folder(trainer: Trainer) -> Path | None:
    """Return the run's folder, or None for a Trainer without a logger."""
    return Path(trainer.log_dir) if trainer.loggers and trainer.log_dir else None
