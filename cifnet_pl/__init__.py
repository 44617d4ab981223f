"""Class-incremental learning without training: frozen backbone, closed-form classifier.

The public names of this module:

    CIFNetModule, CIFNetDataModule      a run with Lightning: its model, and its tasks
    Classifier                          a learned model in plain torch
    load                                any stored model: of a run, a bundle, the hub
    extend, forget, merge               what becomes of a learned model
    embed                               images as embeddings, without a head
    build_backbone, CalibrationBuffer   parts of a model; heads are in cifnet_pl.heads
    CifnetError                         base of all errors that a user can correct
"""

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
    from cifnet_pl.backbones import build_backbone as build_backbone
    from cifnet_pl.buffer import CalibrationBuffer as CalibrationBuffer
    from cifnet_pl.data.datamodule import CIFNetDataModule as CIFNetDataModule
    from cifnet_pl.learning.cifnet_module import CIFNetModule as CIFNetModule
    from cifnet_pl.model.classifier import Classifier as Classifier
    from cifnet_pl.model.embedding import embed as embed
    from cifnet_pl.model.forget import forget as forget
    from cifnet_pl.model.learn import extend as extend
    from cifnet_pl.model.merge import merge as merge
    from cifnet_pl.model.store import load as load
    from cifnet_pl.utilities.errors import CifnetError as CifnetError

_HOME = {
    "CIFNetDataModule": "data.datamodule",
    "CIFNetModule": "learning.cifnet_module",
    "CalibrationBuffer": "buffer",
    "CifnetError": "utilities.errors",
    "Classifier": "model.classifier",
    "build_backbone": "backbones",
    "embed": "model.embedding",
    "extend": "model.learn",
    "forget": "model.forget",
    "load": "model.store",
    "merge": "model.merge",
}
"""Public name → the module of this package that has it."""

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that importing the package is fast."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """Name what can be used, imported or not, so that an editor completes it."""
    return [*_HOME, "__version__"]
