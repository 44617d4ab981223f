"""Structures that methods which train a network make of it: branches, last stages, no ReLU at the end.

A network that was trained is stored with its weights; its name, ``learned:<structure>:<backbone>``, says what to build
before they are loaded, and executes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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
        f"{method} needs the stages of a residual network, and {type(network).__name__} does not show them: "
        "use random:resnet32_cifar, random:resnet18_cifar, or a ResNet of torchvision"
    )


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
        self.shared, self.branches = shared, branches

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, Σ d)."""
        z: Tensor = self.branches(self.shared(x))
        return z


class Unrectified(nn.Module):
    """The last block of a residual network without the ReLU at its end, and without a layer in its shortcut."""

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
    """Take the last ReLU out of a residual network, in place; the last stage ends in it, or in a block with it."""
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
        raise UsageError(f"unknown structure '{structure}' of a learned network, expected plain or branches.10")
    if found[1] == "branches":
        return Branches([make() for _ in range(count)]), count
    networks = [stages_of(make()) for _ in range(count)]
    lasts = Branches([nn.Sequential(stages[-1], pool) for stages, pool in networks])
    return LastStages(nn.Sequential(*networks[0][0][:-1]), lasts), count
