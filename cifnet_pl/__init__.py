"""cifnet_pl: class-incremental learning without training (frozen backbone, closed-form classifier)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cifnet_pl.backbones import build_backbone
    from cifnet_pl.buffer import CalibrationBuffer
    from cifnet_pl.classifier import Classifier
    from cifnet_pl.data import CIFNetDataModule
    from cifnet_pl.errors import CifnetError
    from cifnet_pl.module import CIFNetModule
    from cifnet_pl.stored import load

__version__ = "0.1.0"

__all__ = [
    "CIFNetDataModule",
    "CIFNetModule",
    "CalibrationBuffer",
    "CifnetError",
    "Classifier",
    "build_backbone",
    "load",
]

_HOME = {
    "CIFNetDataModule": "cifnet_pl.data",
    "CIFNetModule": "cifnet_pl.module",
    "CalibrationBuffer": "cifnet_pl.buffer",
    "CifnetError": "cifnet_pl.errors",
    "Classifier": "cifnet_pl.classifier",
    "build_backbone": "cifnet_pl.backbones",
    "load": "cifnet_pl.stored",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: who needs no Lightning does not wait for it."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
