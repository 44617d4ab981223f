"""Closed-form classifiers on embeddings. Plain torch: usable without Lightning in ten lines."""

from cifnet_pl.heads.acil import ACILHead
from cifnet_pl.heads.base import Head
from cifnet_pl.heads.cifnet import CIFNetHead
from cifnet_pl.heads.dsal import DSALHead
from cifnet_pl.heads.logistic import LogisticHead, SGDHead
from cifnet_pl.heads.neighbours import KNNHead
from cifnet_pl.heads.prototypes import NCMHead, SLDAHead
from cifnet_pl.heads.ridge import RidgeHead

__all__ = [
    "ACILHead",
    "CIFNetHead",
    "DSALHead",
    "Head",
    "KNNHead",
    "LogisticHead",
    "NCMHead",
    "RidgeHead",
    "SGDHead",
    "SLDAHead",
]
