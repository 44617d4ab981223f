"""What is made of a network: branches and last stages by methods that train it, views that add
features.

A network that was trained is stored with its weights; its name, ``learned:<structure>:<backbone>``,
says what to build before they are loaded, and executes nothing.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any, cast

import torch
from torch import Tensor, nn

from cifnet_pl.utilities.errors import UsageError


def stages_of(network: nn.Module, method: str = "this method") -> tuple[list[nn.Module], nn.Module]:
    """Return the stages of a residual network.

    Args:
        network: a ResNet of torchvision or of this package.
        method: that needs them, for the error.

    Returns:
        The stages, the stem in the first one; and the module that pools the last map to embeddings.

    Raises:
        UsageError: a network whose stages are not known.
    """
    if hasattr(network, "stages"):
        return cast(Any, network).stages()  # type: ignore[no-any-return]
    if all(hasattr(network, name) for name in ("conv1", "bn1", "layer1", "layer4", "avgpool")):
        n = cast(Any, network)
        stem = nn.Sequential(n.conv1, n.bn1, n.relu, n.maxpool, n.layer1)
        return [stem, n.layer2, n.layer3, n.layer4], nn.Sequential(n.avgpool, nn.Flatten())
    raise UsageError(
        f"{method} needs the stages of a residual network, and {type(network).__name__} does not"
        " show them: use random:resnet32_cifar, random:resnet18_cifar, or a ResNet of torchvision"
    )


def with_maps(network: nn.Module, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Run a residual network stage by stage.

    Args:
        network: see :func:`stages_of`.
        x: (n, 3, h, w) normalised images.

    Returns:
        The map (n, c, h, w) after each stage, and the embeddings (n, d).
    """
    stages, pool = stages_of(network)
    maps = []
    for stage in stages:
        x = stage(x)
        maps.append(x)
    return maps, pool(x)


def grown(layer: nn.Linear | None, inputs: int, outputs: int) -> nn.Linear:
    """Return a larger linear layer with the weights of ``layer`` in its corner.

    Args:
        layer: the old one, or None.
        inputs, outputs: sizes of the new one; further weights are drawn, and further biases are
            zero.
    """
    new = nn.Linear(inputs, outputs)
    nn.init.kaiming_uniform_(new.weight, nonlinearity="linear")
    nn.init.zeros_(new.bias)
    if layer is not None:
        rows, columns = layer.weight.shape
        with torch.no_grad():
            new.weight[:rows, :columns] = layer.weight.cpu()
            new.bias[:rows] = layer.bias.cpu()
    return new


def frozen(module: nn.Module) -> nn.Module:
    """Return a copy that never learns, in evaluation mode."""
    return copy.deepcopy(module).requires_grad_(False).eval()


class Branches(nn.ModuleList):
    """Networks side by side: their embeddings are joined, those of the first task first."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the joined embeddings (n, Σ d) of all branches."""
        return torch.cat([branch(x) for branch in self], dim=1)


class LastStages(nn.Module):
    """Several last stages side by side behind the stages that they share (MEMO).

    Args:
        shared: all stages but the last, with the stem.
        branches: last stages, each with the module that pools its map.
    """

    def __init__(self, shared: nn.Module, branches: Branches):
        super().__init__()
        self.shared = shared
        self.branches = branches

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, Σ d)."""
        z: Tensor = self.branches(self.shared(x))
        return z


class Unrectified(nn.Module):
    """The last block of a residual network without the ReLU at its end, and without a layer in its
    shortcut.
    """

    def __init__(self, block: Any):
        super().__init__()
        self.layers = nn.Sequential(block.conv1, block.bn1, nn.ReLU(), block.conv2, block.bn2)
        if hasattr(block, "conv3"):
            self.layers.extend([nn.ReLU(), block.conv3, block.bn3])

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's map, whose numbers may be negative."""
        y: Tensor = x + self.layers(x)
        return y


def without_last_relu(network: nn.Module) -> nn.Module:
    """Take the last ReLU out of a residual network, in place; the last stage ends in it, or in a
    block with it.
    """
    stage = cast(nn.Sequential, stages_of(network)[0][-1])
    stage[-1] = nn.Identity() if isinstance(stage[-1], nn.ReLU) else Unrectified(stage[-1])
    return network


LARGEST = 1000
"""Most branches that a name may ask for."""


def structured(structure: str, make: Callable[[], nn.Module]) -> tuple[nn.Module, int]:
    """Build a network of a structure.

    Args:
        structure: ``plain``, ``no_last_relu``, ``branches.<k>``, or ``last_stages.<k>``.
        make: makes one network.

    Returns:
        The network, and how many times as wide as one network's its embeddings are.

    Raises:
        UsageError: an unknown structure, or a network that it cannot be made of.
    """
    if structure == "plain":
        return make(), 1
    if structure == "no_last_relu":
        return without_last_relu(make()), 1
    found = re.fullmatch(r"(branches|last_stages)\.(\d{1,4})", structure)
    count = int(found[2]) if found else 0
    if not found or not 1 <= count <= LARGEST:
        raise UsageError(
            f"unknown structure '{structure}' of a learned network, expected plain or branches.10"
        )
    if found[1] == "branches":
        return Branches([make() for _ in range(count)]), count
    networks = [stages_of(make()) for _ in range(count)]
    lasts = Branches([nn.Sequential(stages[-1], pool) for stages, pool in networks])
    return LastStages(nn.Sequential(*networks[0][0][:-1]), lasts), count


# ---------------------------------------------------------------------- views

LAYERS: dict[str, tuple[str, ...]] = {
    "efficientnet_lite_pytorch.model.EfficientNet": ("network._blocks.10", "network._blocks.14"),
    "torchvision.models.resnet.ResNet": ("layer3",),
}
"""Class of a network → its layers, besides the last, that :class:`Layers` reads: the ends of its
late stages.
"""


class Layers(nn.Module):
    """The embedding of ``network`` beside the globally averaged outputs of earlier layers, in one
    pass.

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
        f"+layers is for EfficientNet-Lite0 and torchvision's ResNets, not {type(network).__name__}"
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


VIEWS: dict[str, Callable[[nn.Module, int], tuple[nn.Module, int]]] = {
    "layers": layers,
    "mirror": mirror,
}
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
