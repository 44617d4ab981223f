"""What several methods build networks from: growing layers, frozen copies, maps of stages."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from cifnet_pl.backbones.structures import stages_of


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
