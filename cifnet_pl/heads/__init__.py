"""Closed-form classifiers on embeddings. Plain torch: usable without Lightning in ten lines."""

# Each line registers a head; their order is that of the rows in tables.
# isort: off
from cifnet_pl.heads.base import Head as Head
from cifnet_pl.heads.cifnet import CIFNetHead as CIFNetHead
from cifnet_pl.heads.ridge import RidgeHead as RidgeHead
from cifnet_pl.heads.acil import ACILHead as ACILHead
from cifnet_pl.heads.acil import DSALHead as DSALHead
from cifnet_pl.heads.prototypes import SLDAHead as SLDAHead
from cifnet_pl.heads.prototypes import NCMHead as NCMHead
from cifnet_pl.heads.prototypes import RanPACHead as RanPACHead
from cifnet_pl.heads.prototypes import KLDAHead as KLDAHead
from cifnet_pl.heads.prototypes import FeCAMHead as FeCAMHead
from cifnet_pl.heads.samples import KNNHead as KNNHead
from cifnet_pl.heads.samples import LogisticHead as LogisticHead
from cifnet_pl.heads.samples import SGDHead as SGDHead

HEADS: dict[str, type[Head]] = {
    name: kind
    for name, kind in globals().items()
    if isinstance(kind, type) and issubclass(kind, Head) and kind != Head
}
"""Name → class of every head imported above: what the command line, bundles, reports and the shared
tests go by.
"""

__all__ = ["Head", *HEADS]
