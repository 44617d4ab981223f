"""Variants of a network: branches and last stages of trained methods, views that add features.

A network that was trained is stored with its weights. Its name, ``learned:<structure>:<backbone>``,
says what to build before they are loaded; nothing stored is executed.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from threading import local
from typing import Any, cast

import torch
from torch import Tensor, nn

from cifnet_pl.utilities.errors import UsageError

RESNET_LAYERS = ("conv1", "bn1", "layer1", "layer4", "avgpool")
"""Attributes by which a ResNet of torchvision is recognised."""


def stages_of(
    network: nn.Module, method: str = "this method"
) -> tuple[list[nn.Module], nn.Module]:
    """Return the stages of a residual network.

    Args:
        network: a ResNet of torchvision or of this package.
        method: name of the method that needs them, for the error.

    Returns:
        The stages, the stem in the first one; and the module that pools the last map to embeddings.

    Raises:
        UsageError: the network's stages are not known.
    """
    resnet: Any = network
    if hasattr(network, "stages"):
        stages, pooling = resnet.stages()
        return stages, pooling
    if all(hasattr(network, name) for name in RESNET_LAYERS):
        first = nn.Sequential(
            resnet.conv1, resnet.bn1, resnet.relu, resnet.maxpool, resnet.layer1
        )
        flatten = nn.Flatten()
        pooling = nn.Sequential(resnet.avgpool, flatten)
        stages = [first, resnet.layer2, resnet.layer3, resnet.layer4]
        return stages, pooling
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
    stages, pooling = stages_of(network)
    maps = []
    for stage in stages:
        x = stage(x)
        maps.append(x)
    return maps, pooling(x)


def grown(layer: nn.Linear | None, inputs: int, outputs: int) -> nn.Linear:
    """Return a larger linear layer with the weights of ``layer`` in its corner.

    Args:
        layer: the old one, or None.
        inputs: number of inputs of the new one.
        outputs: number of outputs of the new one. Further weights are drawn, further biases are 0.
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
    """Return a copy without gradients, in evaluation mode."""
    duplicate = copy.deepcopy(module)
    return duplicate.requires_grad_(False).eval()


class Branches(nn.ModuleList):
    """Networks side by side: their embeddings are concatenated, the first task's first."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the concatenated embeddings (n, Σ d) of all branches."""
        embeddings = [branch(x) for branch in self]
        return torch.cat(embeddings, dim=1)


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
        maps = self.shared(x)
        z: Tensor = self.branches(maps)
        return z


class Unrectified(nn.Module):
    """The last block of a residual network without the ReLU at its end.

    Args:
        block: a block of torchvision's ResNets whose shortcut has no layer.
    """

    def __init__(self, block: Any):
        super().__init__()
        self.layers = nn.Sequential(
            block.conv1, block.bn1, nn.ReLU(), block.conv2, block.bn2
        )
        if hasattr(block, "conv3"):
            third = [nn.ReLU(), block.conv3, block.bn3]
            self.layers.extend(third)

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's map, whose values may be negative."""
        y: Tensor = x + self.layers(x)
        return y


def without_last_relu(network: nn.Module) -> nn.Module:
    """Remove the last ReLU of a residual network, in place.

    The last stage ends in it, or in a block that does.
    """
    stages, _ = stages_of(network)
    last = cast(nn.Sequential, stages[-1])
    if isinstance(last[-1], nn.ReLU):
        last[-1] = nn.Identity()
    else:
        last[-1] = Unrectified(last[-1])
    return network


def structured(structure: str, build: Callable[[], nn.Module]) -> tuple[nn.Module, int]:
    """Build a network of a structure.

    Args:
        structure: ``plain``, ``no_last_relu``, ``branches.<k>``, or ``last_stages.<k>``.
        build: builds one network.

    Returns:
        The network, and the width of its embeddings as a multiple of one network's.

    Raises:
        UsageError: the structure is unknown, or the network does not allow it.
    """
    if structure == "plain":
        return build(), 1
    if structure == "no_last_relu":
        return without_last_relu(build()), 1
    found = re.fullmatch(r"(branches|last_stages)\.([1-9]\d*)", structure)
    if not found:
        raise UsageError(
            f"unknown structure '{structure}' of a learned network, expected plain or branches.10"
        )
    count = int(found[2])
    networks = [build() for _ in range(count)]
    if found[1] == "branches":
        return Branches(networks), count
    last_stages = Branches()
    for network in networks:
        stages, pooling = stages_of(network)
        last_stage = nn.Sequential(stages[-1], pooling)
        last_stages.append(last_stage)
    first_stages, _ = stages_of(networks[0])
    shared = nn.Sequential(*first_stages[:-1])
    return LastStages(shared, last_stages), count


# ---------------------------------------------------------------------- views

LATE_LAYERS: dict[str, tuple[str, ...]] = {
    "efficientnet_lite_pytorch.model.EfficientNet": (
        "network._blocks.10",
        "network._blocks.14",
    ),
    "torchvision.models.resnet.ResNet": ("layer3",),
}
"""Class of a network → layers that :class:`Layers` reads besides the last: ends of stages."""


class Collected(local):
    """Outputs of earlier layers in the pass of the current thread: several may embed at a time."""

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []

    def __reduce__(self) -> Any:
        return Collected, ()  # a copy collects for itself


class Layers(nn.Module):
    """The embedding of a network and the globally averaged outputs of earlier layers, in one pass.

    Args:
        network: (n, 3, h, w) → (n, d).
        names: its sub-modules whose outputs (n, c, h, w) are averaged over h and w.
    """

    def __init__(self, network: nn.Module, names: Sequence[str]):
        super().__init__()
        # The attribute's name is part of the weights' hash, so that caches tell networks with and
        # without earlier layers apart.
        self.layered = network
        self._collected = Collected()
        for name in names:
            network.get_submodule(name).register_forward_hook(self._collect)

    def _collect(self, layer: nn.Module, inputs: Any, output: Tensor) -> None:
        pooled = output.mean(dim=(2, 3))
        self._collected.outputs.append(pooled)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, d + Σ c)."""
        outputs: list[Tensor] = []
        self._collected.outputs = outputs
        try:
            z = self.layered(x)
            return torch.cat([z, *outputs], dim=1)
        finally:
            self._collected.outputs = []


class Mirrored(nn.Module):
    """The mean embedding of an image and its mirror image, at twice the time."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.mirrored = network

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, d)."""
        z: Tensor = self.mirrored(x)
        mirror_z: Tensor = self.mirrored(x.flip(3))
        return (z + mirror_z) / 2


def layers(network: nn.Module, features: int) -> tuple[nn.Module, int]:
    """Add the outputs of earlier layers to the embedding of a network whose late stages are known.

    Args:
        network: a network, or a module with one as a child.
        features: width of its embeddings; not needed for this view.

    Returns:
        A :class:`Layers`, and the width of its embeddings.

    Raises:
        UsageError: the late stages of this network are not known.
    """
    for module in (network, *network.children()):
        kind = type(module)
        name = f"{kind.__module__}.{kind.__name__}"
        names = LATE_LAYERS.get(name)
        if names is not None:
            layered = Layers(network, names).eval()
            with torch.inference_mode():  # one pass tells the width
                black = torch.zeros(1, 3, 64, 64)
                z = layered(black)
            return layered, z.shape[1]
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
"""Suffix of a backbone's name → function (network, width) → (network with the view, width)."""
