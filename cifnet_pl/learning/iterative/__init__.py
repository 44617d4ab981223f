"""Networks that are trained by gradient descent, task after task: the methods that ours are compared with."""

from cifnet_pl.learning.iterative.base import IterativeModule
from cifnet_pl.learning.iterative.create import CREATEModule
from cifnet_pl.learning.iterative.der import DERModule
from cifnet_pl.learning.iterative.exemplars import ExemplarSet
from cifnet_pl.learning.iterative.finetune import FinetuneModule
from cifnet_pl.learning.iterative.foster import FOSTERModule
from cifnet_pl.learning.iterative.icarl import ICaRLModule
from cifnet_pl.learning.iterative.memo import MEMOModule
from cifnet_pl.learning.iterative.podnet import PODNetModule
from cifnet_pl.learning.iterative.replay import ReplayModule
from cifnet_pl.learning.iterative.tagfex import TagFexModule
from cifnet_pl.learning.iterative.wa import WAModule

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
    "ExemplarSet",
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
