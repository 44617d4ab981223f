"""Networks that are trained by gradient descent, task after task: the methods that ours are compared with."""

from __future__ import annotations

from cifnet_pl.iterative.create import CREATEModule
from cifnet_pl.iterative.der import DERModule, MEMOModule
from cifnet_pl.iterative.foster import FOSTERModule
from cifnet_pl.iterative.podnet import PODNetModule
from cifnet_pl.iterative.replay import FinetuneModule, ICaRLModule, ReplayModule, WAModule
from cifnet_pl.iterative.tagfex import TagFexModule
from cifnet_pl.iterative.trainer import IterativeModule

METHODS = (
    FinetuneModule,
    ReplayModule,
    ICaRLModule,
    WAModule,
    PODNetModule,
    DERModule,
    FOSTERModule,
    MEMOModule,
    CREATEModule,
    TagFexModule,
)
"""All trained methods, in the order of their papers."""

__all__ = [
    "METHODS",
    "CREATEModule",
    "DERModule",
    "FOSTERModule",
    "FinetuneModule",
    "ICaRLModule",
    "IterativeModule",
    "MEMOModule",
    "PODNetModule",
    "ReplayModule",
    "TagFexModule",
    "WAModule",
]
