"""cifnet_pl: class-incremental learning without training (frozen backbone, closed-form classifier)."""

from cifnet_pl.backbones import build_backbone
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.data import CIFNetDataModule
from cifnet_pl.errors import CifnetError
from cifnet_pl.module import CIFNetModule

__version__ = "0.1.0"

__all__ = ["CIFNetDataModule", "CIFNetModule", "CalibrationBuffer", "CifnetError", "build_backbone"]
