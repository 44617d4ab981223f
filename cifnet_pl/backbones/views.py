"""Add further features of the same frozen network: those of earlier layers, and those of the mirrored image."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import Tensor, nn

from cifnet_pl.utilities.errors import UsageError

LAYERS: dict[str, tuple[str, ...]] = {
    "efficientnet_lite_pytorch.model.EfficientNet": ("network._blocks.10", "network._blocks.14"),
    "torchvision.models.resnet.ResNet": ("layer3",),
}
"""Class of a network → its layers, besides the last, that :class:`Layers` reads: the ends of its late stages."""


class Layers(nn.Module):
    """The embedding of ``network`` beside the globally averaged outputs of earlier layers, in one pass.

    Args:
        network: (n, 3, h, w) → (n, d).
        names: its sub-modules whose outputs (n, c, h, w) are averaged over h and w.
    """

    def __init__(self, network: nn.Module, names: Sequence[str]):
        super().__init__()
        self.layered = network  # the name is part of the weights' hash, so that no cache takes one for the other
        self._kept: dict[int, list[Tensor]] = {}  # by thread: several may embed at the same time
        for name in names:
            network.get_submodule(name).register_forward_hook(self._keep)

    def _keep(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        self._kept[get_ident()].append(output.mean(dim=(2, 3)))

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, d + Σ c)."""
        kept = self._kept[get_ident()] = []
        try:
            return torch.cat([self.layered(x), *kept], dim=1)
        finally:
            del self._kept[get_ident()]


class Mirrored(nn.Module):
    """The mean embedding of an image and its mirror image, at twice the time."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.mirrored = network

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, d)."""
        z: Tensor = (self.mirrored(x) + self.mirrored(x.flip(3))) / 2
        return z


def layers(network: nn.Module, features: int) -> tuple[nn.Module, int]:
    """Add the outputs of earlier layers to the embedding of a network whose late stages are known.

    Args:
        network: a network, or a module with one as a child.
        features: width of its embeddings; not needed here.

    Returns:
        A :class:`Layers`, and the width of its embeddings.

    Raises:
        UsageError: the late stages of this network are not known.
    """
    for module in (network, *network.children()):
        names = LAYERS.get(f"{type(module).__module__}.{type(module).__name__}")
        if names is not None:
            richer = Layers(network, names).eval()
            with torch.inference_mode():  # asked once
                return richer, int(richer(torch.zeros(1, 3, 64, 64)).shape[1])
    raise UsageError(
        f"+layers knows the late stages of EfficientNet-Lite0 and of torchvision's ResNets, not of "
        f"{type(network).__name__}: leave it out"
    )


def mirror(network: nn.Module, features: int) -> tuple[nn.Module, int]:
    """Average the embeddings of an image and its mirror image.

    Args:
        network: (n, 3, h, w) → (n, ``features``).
        features: width of its embeddings.

    Returns:
        A :class:`Mirrored`, and the same width.
    """
    return Mirrored(network), features


VIEWS: dict[str, Callable[[nn.Module, int], tuple[nn.Module, int]]] = {"layers": layers, "mirror": mirror}
"""Suffix of a backbone's name → function (network, width) → richer network, its width."""


def split_views(name: str) -> tuple[str, list[str]]:
    """Split the name of a backbone into the name without views, and its views in a fixed order.

    Example:
        >>> split_views("file:a+b.pth+mirror+layers")
        ('file:a+b.pth', ['layers', 'mirror'])
    """
    views: list[str] = []
    base, plus, last = name.rpartition("+")
    while plus and last in VIEWS and last not in views:
        views.append(last)
        name = base
        base, plus, last = name.rpartition("+")
    return name, sorted(views, key=list(VIEWS).index)
