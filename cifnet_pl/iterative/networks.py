"""What several methods build networks from: growing layers, frozen copies, stages and branches."""

from __future__ import annotations

import copy
from typing import Any, cast

import torch
from torch import Tensor, nn

from cifnet_pl.utilities.errors import UsageError


def grown(layer: nn.Linear | None, inputs: int, outputs: int) -> nn.Linear:
    """Return a larger linear layer with the weights of ``layer`` in its corner.

    Args:
        layer: the old one, or None.
        inputs, outputs: sizes of the new one; further weights are drawn, and further biases are zero.
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


class Branches(nn.ModuleList):
    """Networks side by side: their embeddings are joined, those of the first task first."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the joined embeddings (n, Σ d) of all branches."""
        return torch.cat([branch(x) for branch in self], dim=1)
