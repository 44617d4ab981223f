"""Closed-form classifiers on embeddings. Plain torch: usable without Lightning in ten lines."""

from cifnet_pl.heads.base import Head
from cifnet_pl.heads.cifnet import CIFNetHead
from cifnet_pl.heads.ridge import RidgeHead

__all__ = ["CIFNetHead", "Head", "RidgeHead"]
