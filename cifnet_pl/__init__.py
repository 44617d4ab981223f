"""Class-incremental learning without training: frozen backbone, closed-form classifier."""

from __future__ import annotations

import os
import sys

# python -m looks for every module in the current folder first, but a folder of images must not run
# code that happens to be in it. Only a checkout has this package there.
_home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if sys.argv[:1] == ["-m"] and sys.path[:1] == [os.getcwd()] != [_home]:
    del sys.path[0]

from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from cifnet_pl.utilities.version import __version__ as __version__  # noqa: E402

if TYPE_CHECKING:
    from cifnet_pl.backbones import build_backbone
    from cifnet_pl.buffer import CalibrationBuffer
    from cifnet_pl.data.datamodule import CIFNetDataModule
    from cifnet_pl.learning.cifnet_module import CIFNetModule
    from cifnet_pl.model.classifier import Classifier
    from cifnet_pl.model.embedding import embed
    from cifnet_pl.model.forget import forget
    from cifnet_pl.model.learn import extend
    from cifnet_pl.model.merge import merge
    from cifnet_pl.model.store import load
    from cifnet_pl.utilities.errors import CifnetError

__all__ = [
    "CIFNetDataModule",
    "CIFNetModule",
    "CalibrationBuffer",
    "CifnetError",
    "Classifier",
    "build_backbone",
    "embed",
    "extend",
    "forget",
    "load",
    "merge",
]

_HOME = {
    "CIFNetDataModule": "cifnet_pl.data.datamodule",
    "CIFNetModule": "cifnet_pl.learning.cifnet_module",
    "CalibrationBuffer": "cifnet_pl.buffer",
    "CifnetError": "cifnet_pl.utilities.errors",
    "Classifier": "cifnet_pl.model.classifier",
    "build_backbone": "cifnet_pl.backbones",
    "embed": "cifnet_pl.model.embedding",
    "extend": "cifnet_pl.model.learn",
    "forget": "cifnet_pl.model.forget",
    "load": "cifnet_pl.model.store",
    "merge": "cifnet_pl.model.merge",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package is fast."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    """Name what can be used, imported or not, so that an editor completes it."""
    return [*__all__, "__version__"]
