"""Build a frozen backbone from its name.

A name is a family, a colon, and what the family understands:

* ``none:<width>``: embeddings are given, there are no images;
* ``pixels``: the pixels themselves, without a network;
* ``embedded:efficientnet_lite0``: weights inside an installed package;
* ``torchvision:<weights>`` and ``timm:<model>``: published weights;
* ``file:<checkpoint>``: weights in a file, with an architecture;
* ``patches:<centres>x<cells>``: a dictionary of patches, which a run learns from the images of its
  first task without labels;
* ``random:<architecture>``: random weights, for methods that train the network;
* ``learned:<structure>:<backbone>``: a network that a run has trained;
* ``import:<module>.<name>``: a network from outside the package.

An architecture is one of torchvision, ``resnet32_cifar``, ``resnet18_cifar``, ``timm:<model>`` or
``import:<module>.<name>``. After any name ``+layers`` adds the outputs of earlier layers, and
``+mirror`` averages the embeddings of an image and its mirror image.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from cifnet_pl.backbones import families
from cifnet_pl.backbones.backbone import Backbone, BuiltNetwork, Preprocessing
from cifnet_pl.backbones.structures import VIEWS, split_views, structured
from cifnet_pl.utilities import plugins
from cifnet_pl.utilities.errors import UsageError, unknown_name

Builder = Callable[[str, "str | None", bool], tuple[nn.Module, int, Preprocessing]]
"""Function (rest of the name, architecture, download) → (network, feature width, preprocessing)."""


def learned_backbone(
    rest: str, architecture: str | None, download: bool
) -> BuiltNetwork:
    """Build a network that a run has trained, ``learned:<structure>:<backbone>``.

    Its weights come from a stored model.
    """
    structure, _, initial_name = rest.partition(":")
    family, _, initial_rest = initial_name.partition(":")
    builder = _builder(family)

    def build() -> BuiltNetwork:
        return BuiltNetwork(*builder(initial_rest, None, download))

    _, features, preprocessing = build()
    network, width_factor = structured(structure, lambda: build().network)
    return BuiltNetwork(network, width_factor * features, preprocessing)


BACKBONES: dict[str, Builder] = {
    "none": families.no_network,
    "pixels": families.pixels,
    "patches": families.patch_dictionary,
    "embedded": families.embedded,
    "torchvision": families.torchvision_weights,
    "timm": families.timm_model,
    "file": families.weight_file,
    "random": families.random_weights,
    "import": families.imported,
    "learned": learned_backbone,
}
"""Family → its builder."""


def build_backbone(
    name: str,
    architecture: str | None = None,
    download: bool = False,
    engine: str = "auto",
) -> Backbone:
    """Build a frozen backbone from its name.

    Args:
        name: see :mod:`cifnet_pl.backbones.registry`.
        architecture: for ``file:``, see there.
        download: whether weights that are not on this machine may be fetched.
        engine: what runs the network, :data:`cifnet_pl.backbones.engines.EngineChoice`.

    Raises:
        UsageError: the family, model, weights, architecture or engine is unknown, or a package is
            missing.
        CifnetError: the weights are not on this machine and may not be downloaded.
        CheckpointError: a file does not hold all tensors of the architecture.

    Example:
        >>> build_backbone("pixels:8").features
        192
    """
    base_name, views = split_views(name)
    family, _, rest = base_name.partition(":")
    build = _builder(family)
    network, features, preprocessing = build(rest, architecture, download)
    for view in views:
        network, features = VIEWS[view](network, features)
    backbone = Backbone(name, network, features, preprocessing, architecture, engine)
    if backbone.learnable_patches is not None and engine not in ("auto", "torch"):
        raise UsageError(
            f"torch computes backbone {name}, which is learned in a run: leave engine"
            f" {engine} out"
        )
    return backbone


def _builder(family: str) -> Builder:
    """Return the builder of a family, of this package or of a plug-in."""
    if family in BACKBONES:
        return BACKBONES[family]
    entry_point = plugins.entry_point("backbones", family)
    if entry_point is None:
        known = [*BACKBONES, *plugins.offered("backbones")]
        raise unknown_name("backbone", family, known)
    builder: Builder = plugins.import_object(entry_point)
    return builder


def backbone_imports(name: str, architecture: str | None = None) -> list[str]:
    """List the imports from outside the package that building a backbone needs; import nothing.

    Args:
        name: as for :func:`build_backbone`.
        architecture: likewise.

    Returns:
        Names such as ``module.function``.
    """
    base_name, _ = split_views(name)
    family, _, rest = base_name.partition(":")
    if family == "learned":
        _, _, initial_name = rest.partition(":")
        return backbone_imports(initial_name)
    imports = []
    if family not in BACKBONES:
        imports.append(plugins.entry_point("backbones", family))
    candidates = [base_name, architecture or ""]
    if family in ("file", "random"):
        candidates.insert(1, rest)
    for candidate in candidates:
        if candidate.startswith("import:"):
            imports.append(candidate.removeprefix("import:"))
    return [imported for imported in imports if imported]
