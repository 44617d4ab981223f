"""Frozen backbones by name: each brings its own preprocessing and feature width.

Names are listed in :mod:`cifnet_pl.backbones.registry`.
"""

from cifnet_pl.backbones.backbone import Backbone as Backbone
from cifnet_pl.backbones.backbone import BuiltNetwork as BuiltNetwork
from cifnet_pl.backbones.backbone import Preprocessing as Preprocessing
from cifnet_pl.backbones.registry import BACKBONES as BACKBONES
from cifnet_pl.backbones.registry import Builder as Builder
from cifnet_pl.backbones.registry import build_backbone as build_backbone
from cifnet_pl.backbones.registry import plugin_imports as plugin_imports
from cifnet_pl.utilities.names import DEFAULT_BACKBONE as DEFAULT_BACKBONE
