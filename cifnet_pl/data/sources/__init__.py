"""Data sources by name: where images and their classes come from."""

from cifnet_pl.data.sources.python_objects import source_of as source_of
from cifnet_pl.data.sources.registry import OWN_IMAGES as OWN_IMAGES
from cifnet_pl.data.sources.registry import OWN_OPTIONS as OWN_OPTIONS
from cifnet_pl.data.sources.registry import SOURCES as SOURCES
from cifnet_pl.data.sources.registry import build_source as build_source
from cifnet_pl.data.sources.registry import check_own_options as check_own_options
