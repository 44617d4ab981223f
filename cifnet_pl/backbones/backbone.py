"""Embed uint8 images with a frozen network and its preprocessing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from cifnet_pl.backbones.engines import (
    FLOAT32,
    EngineChoice,
    Runtime,
    prepared_runtime,
)
from cifnet_pl.backbones.patches import Patches
from cifnet_pl.utilities.errors import CifnetError, UsageError, check_choice
from cifnet_pl.utilities.growing_tensors import fingerprint
from cifnet_pl.utilities.text import one_line

CPU_BATCH = 64
"""Images that torch embeds at once on a CPU: more are not faster, and need more memory."""

GPU_BATCH = 256
GPU_PIXELS = 2**20
"""Images of a batch that a GPU embeds, at least, or pixels, if there is more than one image.

cuDNN plans each convolution anew for each number of images, which took two seconds for a network of
50 convolutions. So smaller batches, such as the last one of a task, are padded."""


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing of images that the weights of a network were trained with.

    Attributes:
        image_size: side in pixels.
        crop_ratio: share of the short side that is kept, around the centre.
        mean: of each channel in [0, 1], RGB; by default ImageNet's.
        std: standard deviation, likewise.
    """

    image_size: int
    crop_ratio: float = 1.0
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)


class BuiltNetwork(NamedTuple):
    """Network that a family of backbones builds, with its width and preprocessing.

    Attributes:
        network: normalised images (n, 3, h, w) → (n, ``features``).
        features: width of the embeddings.
        preprocessing: what the network's weights expect of an image.
    """

    network: nn.Module
    features: int
    preprocessing: Preprocessing


class NoNetwork(nn.Module):
    """Stand-in for the network that computed given embeddings elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        """Raise UsageError: there is no network that could embed images."""
        raise UsageError(
            "this model learned embeddings that were computed elsewhere: give it embeddings, not"
            " images"
        )


class Backbone(nn.Module):
    """A frozen network ``z = F(x)``: images (n, 3, h, w) uint8 → embeddings (n, d) float32.

    The constructor freezes the network, and ``train`` leaves it in evaluation mode. Calls never
    give gradients. Methods that train the network unfreeze it and use :meth:`embed`, which gives
    them then. Images are normalised on their own device.

    Args:
        name: from which :func:`cifnet_pl.backbones.build_backbone` built it.
        network: normalised images (n, 3, h, w) → (n, ``features``).
        features: width of the embeddings.
        preprocessing: what the network's weights expect.
        architecture: of weights from a file.
        engine: what runs the network: "torch", "onnxruntime", or
            "auto" for ONNX Runtime on a CPU where the network can be exported, and torch elsewhere
            (:mod:`cifnet_pl.backbones.engines`).

    Attributes:
        takes_images: whether there is a network, and not embeddings from elsewhere.
        sample: noun for what is embedded: "image", or "sample" without a network.
        learnable_patches: the part of the network that a run learns and a model stores; none of
            most.
        weights_in_model: whether model files contain the network's weights, which the name alone
            cannot give: a run has learned, trained or drawn them.
    """

    def __init__(
        self,
        name: str,
        network: nn.Module,
        features: int,
        preprocessing: Preprocessing,
        architecture: str | None = None,
        engine: str = "auto",
    ):
        super().__init__()
        self.name = name
        self.features = features
        self.preprocessing = preprocessing
        self.architecture = architecture
        self.network = network.requires_grad_(False).to(
            memory_format=torch.channels_last
        )
        mean = torch.tensor(preprocessing.mean).reshape(3, 1, 1)
        std = torch.tensor(preprocessing.std).reshape(3, 1, 1)
        self.scale: Tensor = nn.Buffer(1 / (255 * std), persistent=False)
        self.shift: Tensor = nn.Buffer(-mean / std, persistent=False)
        self._sha256: str | None = None
        check_choice("engine", engine, EngineChoice)
        self._engine = engine
        self._runtime: Runtime | None = None
        self.takes_images = not isinstance(network, NoNetwork)
        self.sample = "image" if self.takes_images else "sample"
        # A list, as a module would be a second child, whose weights the state would hold twice.
        self.learnable_patches = [
            part for part in network.modules() if isinstance(part, Patches)
        ]
        self.weights_in_model = bool(self.learnable_patches) or name.startswith(
            ("learned:", "random:")
        )
        self.eval()

    @property
    def device(self) -> torch.device:
        """Device that embeds."""
        return self.scale.device

    def train(self, mode: bool = True) -> Backbone:
        """Stay in evaluation mode whatever ``mode`` is.

        The batch statistics of a frozen network never change.
        """
        return super().train(False)

    @torch.inference_mode()
    def forward(self, images: Tensor) -> Tensor:
        """Embed images by the engine that was asked for.

        Args:
            images: (n, 3, h, w) uint8; n may be 0.

        Returns:
            (n, ``features``) float32, on the images' device.

        Raises:
            CifnetError: as :meth:`embed`.
        """
        self._check(images)
        if not len(images):
            return self.embed(images)
        device = images.device.type
        precision = FLOAT32
        if torch.is_autocast_enabled(device):
            precision = str(torch.get_autocast_dtype(device))
        if self.engine(device, precision) == "onnxruntime":
            z = cast(Runtime, self._runtime)(images)
            if z is not None:
                return z
        if device != "cpu":
            with _convolutions_in_float32():
                return self.embed(padded(images))[: len(images)]
        batch_size = CPU_BATCH
        if self.learnable_patches:
            batch_size = Patches.cpu_batch
        embedded = [self.embed(batch) for batch in torch.split(images, batch_size)]
        return torch.cat(embedded)

    def normalised(self, images: Tensor) -> Tensor:
        """Return images (n, 3, h, w), 0 to 255, with the network's mean and scale, float32."""
        pixels = images.contiguous(memory_format=torch.channels_last)
        return torch.addcmul(self.shift, pixels, self.scale)

    def embed(self, images: Tensor) -> Tensor:
        """Embed images by torch, with gradients for networks whose parameters require them.

        Args:
            images: (n, 3, h, w) uint8; n may be 0.

        Returns:
            (n, ``features``) float32.

        Raises:
            CifnetError: other shapes or dtypes; a side that the network cannot take.
        """
        self._check(images)
        if not len(images):
            return torch.zeros(0, self.features, device=images.device)
        try:
            z: Tensor = self.network(self.normalised(images)).float()
        except torch.cuda.OutOfMemoryError:
            raise
        # torchvision, timm and torch refuse a side with one of these.
        except (AssertionError, RuntimeError) as error:
            side = self.preprocessing.image_size
            if images.shape[2:] == (side, side):
                raise
            raise self._wrong_side(images, one_line(error)) from error
        if z.shape != (len(images), self.features):
            problem = f"it gives embeddings of shape {tuple(z.shape)}"
            raise self._wrong_side(images, problem)
        return z

    def _check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            shape = tuple(images.shape)
            raise CifnetError(
                f"images have shape {shape}, {images.dtype}, expected (n, 3, h, w) uint8"
            )
        if not all(patches.is_learned for patches in self.learnable_patches):
            raise UsageError(
                f"backbone {self.name} has learned nothing: fit learns it from the first task's"
                " images"
            )

    def _wrong_side(self, images: Tensor, reason: str) -> CifnetError:
        height, width = images.shape[2:]
        return CifnetError(
            f"backbone {self.name} cannot embed images of {height}x{width} pixels ({reason}): "
            f"set --data.image_size to {self.preprocessing.image_size}, or to null"
        )

    # ------------------------------------------------------------------ the engine

    def engine(self, device: str = "cpu", precision: str = FLOAT32) -> str:
        """Prepare the engine that embeds images, and return its name.

        This takes seconds when a network is exported for the first time.

        Args:
            device: type of the device, such as "cpu".
            precision: one of :data:`~cifnet_pl.backbones.engines.PRECISIONS`.

        Returns:
            "torch" or "onnxruntime".

        Raises:
            UsageError: the requested engine is not installed, or has no such device or precision.
            CifnetError: the network cannot be exported.
        """
        if self._engine == "torch":
            return "torch"
        if device != "cpu" or precision != FLOAT32:
            if self._engine == "auto":
                return "torch"
            raise UsageError(
                f"engine onnxruntime computes in float32 on the CPU only, and {precision} on a"
                f" device of type {device} was asked for: use engine auto or torch"
            )
        if self._runtime is None:
            self._runtime = prepared_runtime(self, self._engine)
        if self._runtime is not None:
            return "onnxruntime"
        self._engine = "torch"  # it has no graph
        return "torch"

    @contextmanager
    def preferring(self, engines: Sequence[str]) -> Iterator[None]:
        """Within the block, use torch for a model that was learned with it alone.

        An engine that the user requested by name stays.

        Args:
            engines: names of the engines that the model was learned with.
        """
        before = self._engine
        if before == "auto" and list(engines) == ["torch"]:
            self._engine = "torch"
        try:
            yield
        finally:
            self._engine = before

    # ------------------------------------------------------------------ identity

    @property
    def sha256(self) -> str:
        """Hash of all weights, their names and the preprocessing.

        It does not depend on the network's code.
        """
        if self._sha256 is None or self.learnable_patches:
            self._sha256 = fingerprint(
                repr(self.preprocessing), self.network.state_dict()
            )
        return self._sha256

    def describe(self) -> dict[str, str | None]:
        """Return name, architecture and hash of the weights, by which a stored model finds it."""
        return {
            "name": self.name,
            "architecture": self.architecture,
            "sha256": self.sha256,
        }

    @property
    def parameters_count(self) -> int:
        """Number of parameters of the network; of patches, whose values are buffers, of these."""
        tensors: Iterator[Tensor] = self.network.parameters()
        if self.learnable_patches:
            tensors = self.network.buffers()
        return sum(tensor.numel() for tensor in tensors)


@contextmanager
def _convolutions_in_float32() -> Iterator[None]:
    """Within the block, cuDNN does not round the inputs of convolutions to 10 bits (TF32).

    That is PyTorch's default for convolutions alone, and a model that was learned so would get
    other embeddings on a CPU.
    """
    settings = torch.backends.cudnn
    before = settings.allow_tf32
    settings.allow_tf32 = False
    try:
        yield
    finally:
        settings.allow_tf32 = before


def padded(images: Tensor) -> Tensor:
    """Return images (n, 3, h, w) with black ones after them, so that n is one of few numbers.

    It is 1, or a power of two of at least ``GPU_BATCH`` images or ``GPU_PIXELS``.

    Example:
        >>> [len(padded(torch.zeros(n, 3, 256, 256))) for n in (1, 2, 17, 32)]
        [1, 16, 32, 32]
    """
    count = len(images)
    if count == 1:
        return images
    pixels = images[0, 0].numel()
    least = min(GPU_BATCH, GPU_PIXELS // pixels)
    size = 1 << (max(count, least) - 1).bit_length()
    if size == count:
        return images
    black = images.new_zeros(size - count, *images.shape[1:])
    return torch.cat([images, black])
