"""Where images come from, and in which order their classes are learned."""

from cifnet_pl.data.datamodule import CIFNetDataModule
from cifnet_pl.data.tasks import TaskStream

__all__ = ["CIFNetDataModule", "TaskStream"]
