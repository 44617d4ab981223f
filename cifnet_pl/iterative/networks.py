"""Parts that grow with the classes: classifiers, branches, auto-encoders, and the attention that merges two maps."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from cifnet_pl.iterative.losses import proxy_scores
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


def parameters_of(parts: Iterable[nn.Module]) -> int:
    """Return the number of parameters of modules that share none."""
    return sum(p.numel() for module in parts for p in module.parameters())


def stages_of(network: nn.Module, method: str) -> tuple[list[nn.Module], nn.Module]:
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


def with_maps(stages: Sequence[nn.Module], pool: nn.Module, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """Run a network stage by stage.

    Args:
        stages, pool: from :func:`stages_of`.
        x: (n, 3, h, w) normalised images.

    Returns:
        The map (n, c, h, w) after each stage, and the embeddings (n, d).
    """
    maps = []
    for stage in stages:
        x = stage(x)
        maps.append(x)
    return maps, pool(x)


class Teacher:
    """The network and the classifier as they were before a task.

    It is no module, so that it is no part of what learns or is stored: it follows from the weights before the task.

    Args:
        network: from images to embeddings; a frozen copy is kept.
        head: from embeddings to scores; likewise.
    """

    def __init__(self, network: nn.Module, head: nn.Module):
        self.network, self.head = frozen(network), frozen(head)

    def scores(self, x: Tensor) -> Tensor:
        """Return (n, C_old) float32 scores of normalised images, without gradients."""
        with torch.no_grad():
            scores: Tensor = self.head(self.network(x))
            return scores.float()


class Branches(nn.ModuleList):
    """Networks side by side: their embeddings are joined, those of the first task first."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the joined embeddings (n, Σ d) of all branches."""
        return torch.cat([branch(x) for branch in self], dim=1)


class CosineClassifier(nn.Module):
    """Several proxies for each class, cosines to them, and a learned scale (PODNet).

    The proxies of each task are a parameter of their own, so that those of old classes can stay as they are.
    """

    def __init__(self, inputs: int, proxies: int):
        super().__init__()
        self.inputs, self.count = inputs, proxies
        self.proxies = nn.ParameterList()
        self.sigma = nn.Parameter(torch.ones(1))

    def grow(self, classes: int) -> None:
        """Add proxies of new classes."""
        bound = self.inputs**-0.5
        device = self.sigma.device
        new = torch.empty(classes * self.count, self.inputs).uniform_(-bound, bound).to(device)
        self.proxies.append(nn.Parameter(new))

    def forward(self, z: Tensor) -> Tensor:
        """Return (n, C) scores of embeddings (n, d)."""
        return proxy_scores(z, torch.cat(list(self.proxies)), self.count, self.sigma)


class AutoEncoders(nn.Module):
    """One small auto-encoder for each class: ``tanh(D tanh(E z))``; a class's score is how well it reconstructs z.

    Args:
        inputs: width of the embeddings.
        latent: width of the codes.
        gamma: scale of the L1 distance between an embedding and its reconstruction.
    """

    def __init__(self, inputs: int, latent: int, gamma: float = 0.1):
        super().__init__()
        self.gamma = gamma
        self.encode = nn.Parameter(torch.empty(0, latent, inputs))
        self.decode = nn.Parameter(torch.empty(0, inputs, latent))

    def grow(self, classes: int) -> None:
        """Add auto-encoders of new classes, drawn as torch draws a convolution."""
        for name in ("encode", "decode"):
            old = cast(nn.Parameter, getattr(self, name))
            bound = old.shape[2] ** -0.5
            new = torch.empty(classes, *old.shape[1:]).uniform_(-bound, bound).to(old.device)
            setattr(self, name, nn.Parameter(torch.cat([old.detach(), new])))

    def forward(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return the scores (n, C) = ``−γ ‖reconstruction − z‖₁`` and codes (n, C, latent) of embeddings (n, d)."""
        codes = torch.einsum("nd,cld->ncl", z, self.encode).tanh()
        rebuilt = torch.einsum("ncl,cdl->ncd", codes, self.decode).tanh()
        distance = (rebuilt - z[:, None]).abs().sum(dim=2)
        return (-self.gamma * distance).clamp(-500, 500), codes


class MergeAttention(nn.Module):
    """Attention from task-specific positions to those of both maps, averaged over positions (TagFex, eq. 7).

    Args:
        width: channels of both maps.
        heads: number of heads; must divide the width.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        if heads < 1 or width % heads:
            raise UsageError(f"attention_heads is {heads}, but must divide the width of the embeddings, {width}")
        self.heads = heads
        self.norm_specific, self.norm_agnostic = nn.LayerNorm(width), nn.LayerNorm(width)
        for name in ("query", "key_specific", "key_agnostic", "value_specific", "value_agnostic"):
            weight = nn.Parameter(torch.empty(width, width))
            nn.init.xavier_normal_(weight)
            setattr(self, name, weight)

    def forward(self, specific: Tensor, agnostic: Tensor) -> Tensor:
        """Return (n, d) merged embeddings of maps (n, positions, d)."""
        s, a = self.norm_specific(specific), self.norm_agnostic(agnostic)
        w = cast(Any, self)
        key = torch.cat([s @ w.key_specific, a @ w.key_agnostic], dim=1)
        value = torch.cat([s @ w.value_specific, a @ w.value_agnostic], dim=1)
        split = [t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in (s @ w.query, key, value)]
        merged = functional.scaled_dot_product_attention(*split)
        return merged.transpose(1, 2).flatten(2).mean(dim=1)
