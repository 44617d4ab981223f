"""Embed uint8 images with a frozen network and its preprocessing, by the engine that was asked
for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from cifnet_pl.backbones.engines import FLOAT32, REDUCED, Embedder, Runtime, Wanted, natural_images
from cifnet_pl.backbones.patches import Patches
from cifnet_pl.utilities.errors import CifnetError, UsageError, explained
from cifnet_pl.utilities.growing_tensors import fingerprint
from cifnet_pl.utilities.text import one_line

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

CPU_BATCH = 64
"""Images that torch embeds at once on a CPU: more are not faster, and need more memory."""


@dataclass(frozen=True)
class Preprocessing:
    """What the weights of a network expect of an image.

    Attributes:
        image_size: side in pixels.
        crop_ratio: share of the short side that is cropped from the centre.
        mean, std: of each channel in [0, 1], RGB.
    """

    image_size: int
    crop_ratio: float = 1.0
    mean: tuple[float, float, float] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD


class NoNetwork(nn.Module):
    """Stand-in for the network that computed given embeddings somewhere else."""

    def forward(self, x: Tensor) -> Tensor:
        """Raise UsageError: there is no network that could embed images."""
        raise UsageError(
            "this model learned embeddings that were computed elsewhere: give it embeddings, not"
            " images"
        )


class Backbone(nn.Module):
    """A frozen network ``z = F(x)``: uint8 images (n, 3, h, w) → float32 embeddings (n,
    ``features``).

    Always in evaluation mode, without gradients; normalisation happens here, on the images' device.

    Args:
        name: what :func:`cifnet_pl.backbones.build_backbone` made it from.
        network: normalised images (n, 3, h, w) → (n, ``features``).
        features: width of the embeddings.
        preprocessing: what the network's weights expect.
        architecture: of weights from a file.
        engine: what runs the network: "torch", "onnxruntime", or "auto" for ONNX Runtime on a CPU
            where the network can be exported, and torch elsewhere
            (:mod:`cifnet_pl.backbones.engines`).
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
        self.network = network.requires_grad_(False).to(memory_format=torch.channels_last)
        std = torch.tensor(preprocessing.std)
        self.scale: Tensor = nn.Buffer((1 / (255 * std))[:, None, None], persistent=False)
        self.shift: Tensor = nn.Buffer(
            (-torch.tensor(preprocessing.mean) / std)[:, None, None], persistent=False
        )
        self._sha256: str | None = None
        self._wanted = Wanted(engine)
        self.eval()

    def train(self, mode: bool = True) -> Backbone:
        """Stay in evaluation mode, whatever ``mode`` is: the batch statistics of a frozen network
        never change.
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
            return torch.zeros(0, self.features, device=images.device)
        runtime = self._runtime(images.device.type, _precision_here(images.device.type))
        z = runtime(images) if runtime is not None else None
        if z is not None:
            return z
        if self.learning is not None:
            at_once = self.learning.at_once
        else:
            at_once = CPU_BATCH
        if images.device.type == "cpu":
            parts = torch.split(images, at_once)
        else:
            parts = (images,)
        return torch.cat([self.embed(part) for part in parts])

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
        x = torch.addcmul(
            self.shift, images.contiguous(memory_format=torch.channels_last), self.scale
        )
        try:
            z: Tensor = self.network(x).float()
        except torch.cuda.OutOfMemoryError:
            raise
        except (
            AssertionError,
            RuntimeError,
        ) as error:  # how torchvision, timm and torch refuse a side
            if min(images.shape[2:]) == max(images.shape[2:]) == self.preprocessing.image_size:
                raise
            raise self._wrong_side(images, one_line(error)) from error
        if z.shape != (len(images), self.features):
            raise self._wrong_side(images, f"it gives embeddings of shape {tuple(z.shape)}")
        return z

    def _check(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != 3 or images.dtype != torch.uint8:
            raise CifnetError(
                f"images have shape {tuple(images.shape)}, {images.dtype}, expected (n, 3, h, w)"
                " uint8"
            )
        if self.learning is not None and not self.learning.learned:
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
        """Return the engine that embeds images, and prepare it.

        Preparing takes seconds when a network is exported for the first time.

        Args:
            device: type of the device, such as "cpu".
            precision: one of :data:`~cifnet_pl.backbones.engines.PRECISIONS`.

        Returns:
            "torch" or "onnxruntime".

        Raises:
            UsageError: the engine that was asked for is not installed, or has no such device or
                precision.
            CifnetError: the network cannot be exported.
        """
        if self._runtime(device, precision) is None:
            return "torch"
        return "onnxruntime"

    @contextmanager
    def preferring(self, engines: Sequence[str]) -> Iterator[None]:
        """Within the block, let ``auto`` mean the engine that learned a model.

        Args:
            engines: names of the engines that a model was learned with; used if there is only one.
        """
        before = self._wanted
        if before.name == "auto" and list(engines) == ["torch"]:
            self._wanted = Wanted("torch")
        try:
            yield
        finally:
            self._wanted = before

    def _runtime(self, device: str, precision: str) -> Runtime | None:
        return self._wanted.runtime(self._embedder, device, precision)

    def _embedder(self) -> Embedder:
        identity = f"{self.name} {self.architecture} {self.sha256}"
        return Embedder(
            self.name, identity, self.network, self.scale, self.shift, self.preprocessing.image_size
        )

    # ------------------------------------------------------------------ identity

    @property
    def takes_images(self) -> bool:
        """Whether there is a network; false where the embeddings were computed elsewhere."""
        return not isinstance(self.network, NoNetwork)

    @property
    def learning(self) -> Patches | None:
        """The part of the network that a run learns, and a model stores; None where all of it is
        given.
        """
        return next((part for part in self.network.modules() if isinstance(part, Patches)), None)

    @torch.inference_mode()
    def outputs(self, side: int) -> Tensor:
        """Return what the network makes of two images, by which it is told from others: (2,
        ``features``).

        Args:
            side: of the images in pixels.

        Raises:
            CifnetError: a side that the network cannot take.
        """
        return self.embed(natural_images(side).to(self.scale.device))

    @property
    def sha256(self) -> str:
        """Hash of all weights, names and preprocessing; not of what the code does with them
        (:meth:`outputs`).
        """
        if self._sha256 is None or self.learning is not None:
            self._sha256 = fingerprint(repr(self.preprocessing), self.network.state_dict())
        return self._sha256

    @property
    def stored(self) -> bool:
        """Whether a run has learned or trained the network, so that models store it."""
        return self.learning is not None or self.name.startswith("learned:")

    def load_weights(self, state: Mapping[str, Tensor]) -> None:
        """Take over the weights of a learned network; CifnetError where they do not fit."""
        with explained(CifnetError, f"the weights do not fit {self.name}", RuntimeError):
            self.network.load_state_dict(state)
        self._sha256 = None

    def describe(self) -> dict[str, str | None]:
        """Return what a stored model needs to find this backbone again."""
        return {"name": self.name, "architecture": self.architecture, "sha256": self.sha256}

    @property
    def parameters_count(self) -> int:
        """Number of parameters of the network; of one that a run learns, all its numbers."""
        if self.learning is None:
            numbers: Iterator[Tensor] = self.network.parameters()
        else:
            numbers = self.network.buffers()
        return sum(part.numel() for part in numbers)


def _precision_here(device: str) -> str:
    """Return the precision that the context of the caller asks for, as far as engines are
    concerned.
    """
    if not torch.is_autocast_enabled(device):
        return FLOAT32
    dtype = torch.get_autocast_dtype(device)
    return next((name for name, reduced in REDUCED.items() if reduced == dtype), str(dtype))
