"""Trained methods to compare with: networks trained by gradient descent, task after task."""

from cifnet_pl.iterative.create import CREATEModule as CREATEModule
from cifnet_pl.iterative.der import DERModule as DERModule
from cifnet_pl.iterative.der import MEMOModule as MEMOModule
from cifnet_pl.iterative.foster import FOSTERModule as FOSTERModule
from cifnet_pl.iterative.podnet import PODNetModule as PODNetModule
from cifnet_pl.iterative.replay import FinetuneModule as FinetuneModule
from cifnet_pl.iterative.replay import ICaRLModule as ICaRLModule
from cifnet_pl.iterative.replay import ReplayModule as ReplayModule
from cifnet_pl.iterative.replay import WAModule as WAModule
from cifnet_pl.iterative.tagfex import TagFexModule as TagFexModule
from cifnet_pl.iterative.trainer import IterativeModule as IterativeModule

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
