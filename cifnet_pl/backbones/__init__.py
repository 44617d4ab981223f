"""Frozen backbones by name: each brings its own preprocessing and feature width.

Names: ``none:<width>`` (embeddings are given, there are no images), ``pixels`` (no network),
``embedded:efficientnet_lite0`` (weights inside an installed package),
``torchvision:<weights>``, ``timm:<model>``, ``file:<checkpoint>`` with an architecture,
``patches:<centres>x<cells>``, a dictionary of patches that a run learns from its first task's
images without labels, ``random:<architecture>``, drawn anew, for methods that train it,
``learned:<structure>:<backbone>``, which a run has trained, and ``import:<module>.<name>``, a
network from outside the package. An architecture is one of torchvision, ``resnet32_cifar``,
``resnet18_cifar``, ``timm:<model>`` or ``import:<module>.<name>``. After any of them ``+layers``
adds earlier layers, ``+mirror`` averages over the mirror image.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn

from cifnet_pl.backbones import families
from cifnet_pl.backbones.backbone import Backbone as Backbone
from cifnet_pl.backbones.backbone import Preprocessing as Preprocessing
from cifnet_pl.backbones.structures import VIEWS, split_views, structured
from cifnet_pl.utilities import plugins
from cifnet_pl.utilities.errors import UsageError, unknown_name

Builder = Callable[[str, "str | None", bool], tuple[nn.Module, int, Preprocessing]]


def learned(
    rest: str, architecture: str | None, download: bool
) -> tuple[nn.Module, int, Preprocessing]:
    """Build a network that a run has trained, ``learned:<structure>:<backbone>``; its weights come
    from a model.
    """
    structure, _, start = rest.partition(":")
    family, _, place = start.partition(":")
    make = partial(_builder(family), place, None, download)
    features, shape = make()[1:]
    network, times = structured(structure, lambda: make()[0])
    return network, times * features, shape


BACKBONES: dict[str, Builder] = {
    "none": families.none,
    "pixels": families.pixels,
    "patches": families.patches,
    "embedded": families.embedded,
    "torchvision": families.torchvision_weights,
    "timm": families.timm_model,
    "file": families.weight_file,
    "random": families.random_weights,
    "import": families.imported,
    "learned": learned,
}
"""Family → function (rest of the name, architecture, download) → (network, feature width,
preprocessing).
"""


def build_backbone(
    name: str, architecture: str | None = None, download: bool = False, engine: str = "auto"
) -> Backbone:
    """Build a frozen backbone from its name (see the module's docstring).

    Args:
        name: family, a colon, and what the family understands; then any of ``VIEWS``, each after a
            plus sign.
        architecture: for ``file:``, see the module's docstring.
        download: whether weights that are not on this machine may be fetched.
        engine: what runs the network, :data:`cifnet_pl.backbones.engines.EngineChoice`.

    Raises:
        UsageError: unknown family, model, weights, architecture or engine; a missing package.
        CifnetError: weights that are not here and may not be downloaded.
        CheckpointError: a file that does not hold all tensors of the architecture.
    """
    plain, views = split_views(name)
    family, _, rest = plain.partition(":")
    network, features, preprocessing = _builder(family)(rest, architecture, download)
    for view in views:
        network, features = VIEWS[view](network, features)
    backbone = Backbone(name, network, features, preprocessing, architecture, engine)
    if backbone.learning is not None and engine == "onnxruntime":
        raise UsageError(
            f"torch computes backbone {name}, which is learned in a run: leave engine"
            " onnxruntime out"
        )
    return backbone


def _builder(family: str) -> Builder:
    if family in BACKBONES:
        return BACKBONES[family]
    factory = plugins.entry_point("backbones", family)
    if factory is None:
        raise unknown_name("backbone", family, [*BACKBONES, *plugins.offered("backbones")])
    return plugins.import_part(factory)  # type: ignore[no-any-return]


def imports(name: str, architecture: str | None = None) -> list[str]:
    """Return the imports from outside the package that building a backbone needs; nothing is
    imported.

    Args:
        name, architecture: as for :func:`build_backbone`.
    """
    family, _, rest = split_views(name)[0].partition(":")
    if family == "learned":
        return imports(rest.partition(":")[2])
    if family in BACKBONES:
        modules = []
    else:
        modules = [plugins.entry_point("backbones", family)]
    named = [f"{family}:{rest}", rest if family in ("file", "random") else "", architecture or ""]
    modules += [text.removeprefix("import:") for text in named if text.startswith("import:")]
    return [module for module in modules if module]
