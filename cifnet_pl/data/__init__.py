"""Data: where images come from, in which order their classes are learned, and how they become batches of tensors."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cifnet_pl.data.datamodule import CIFNetDataModule
    from cifnet_pl.data.plan import TaskStream

__all__ = ["CIFNetDataModule", "TaskStream"]

_HOME = {"CIFNetDataModule": "cifnet_pl.data.datamodule", "TaskStream": "cifnet_pl.data.plan"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: reading images needs no Lightning."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
