"""Variants of a network: branches and last stages of trained methods, views that add features.

A network that was trained is stored with its weights. Its name, ``learned:<structure>:<backbone>``,
says what to build before they are loaded; nothing stored is executed.
"""

import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from cifnet_pl.utilities.errors import UsageError, explained

RESNET_LAYERS = ("conv1", "bn1", "relu", "layer1", "avgpool")
"""Modules by which a ResNet is recognised."""

LATER_STAGES = ("layer2", "layer3", "layer4")
"""Names of its stages but the first one; some have one less."""


def stages_of(
    network: nn.Module,
    method: str = "this method",
) -> tuple[list[nn.Module], nn.Module]:
    """Return the stages of a residual network.

    Args:
        network: a ResNet of torchvision or of this package, whose modules are in the order in which
            they compute.
        method: name of the method that needs them, for the error.

    Returns:
        The stages, the stem in the first one; and the module that pools the last map to embeddings.

    Raises:
        UsageError: the network's stages are not known.
    """
    modules = dict(network.named_children())
    if not modules.keys() >= set(RESNET_LAYERS):
        raise UsageError(
            f"{method} needs the stages of a residual network, and {type(network).__name__} does"
            " not show them: use random:resnet32_cifar, random:resnet18_cifar, or a ResNet of"
            " torchvision"
        )
    stem_end = list(modules).index("layer1") + 1
    first = nn.Sequential(*list(modules.values())[:stem_end])
    later = [modules[name] for name in LATER_STAGES if name in modules]
    pooling = nn.Sequential(modules["avgpool"], nn.Flatten())
    return [first, *later], pooling


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


class Branches(nn.ModuleList):
    """Networks side by side: their embeddings are concatenated, the first task's first."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the concatenated embeddings (n, Σ d) of all branches."""
        embeddings = [branch(x) for branch in self]
        return torch.cat(embeddings, dim=1)


def last_stages(shared: nn.Module, branches: Branches) -> nn.Module:
    """Return several last stages side by side behind the stages that they share (MEMO).

    Args:
        shared: all stages but the last, with the stem.
        branches: last stages, each with the module that pools its map.

    Returns:
        Images → embeddings (n, Σ d).
    """
    return nn.Sequential(OrderedDict(shared=shared, branches=branches))


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
    branches = Branches()
    for network in networks:
        stages, pooling = stages_of(network)
        branches.append(nn.Sequential(stages[-1], pooling))
    first_stages, _ = stages_of(networks[0])
    shared = nn.Sequential(*first_stages[:-1])
    return last_stages(shared, branches), count


# ---------------------------------------------------------------------- views

VIEWS = ("layers", "mirror")
"""Suffixes of a backbone's name, in the order in which they change the network."""

STAGE = re.compile(
    r"(features|trunk_output|encoder\.layers|blocks|layers)\.[^.]+"
    r"|(layer|stage)\d+|(Mixed_|inception)\w+"
)
"""Name of a stage or block of torchvision's networks."""

LAST_BLOCKS = 4
"""Last blocks of a transformer that are joined, as in the linear evaluation of ViT-S by DINO."""


def pooled(output: Tensor) -> Tensor:
    """Return (n, c) of a layer's output.

    Args:
        output: (n, c, s, s) or (n, s, s, c), which is averaged over the map; or tokens (n, t, c),
            of which the first is the class token.
    """
    if output.ndim == 3:
        return output[:, 0]
    if output.shape[1] == output.shape[2]:
        return output.mean(dim=(1, 2))
    return output.mean(dim=(2, 3))


def late_layers(outputs: Sequence[Tensor], width: int) -> list[int]:
    """Choose the late layers of a network besides its embedding.

    Of a network of several resolutions these are the ends of its last two stages (3 and 4 of most);
    not of the last one if it has the width of the embedding, which is its mean then. Of a
    transformer of one resolution they are the blocks before the last one, which the embedding is
    from.

    Args:
        outputs: of its stages or blocks for one image, in order.
        width: of the embedding.

    Returns:
        Positions in ``outputs``.
    """
    channels = [pooled(output).shape[1] for output in outputs]
    stages: dict[int, list[int]] = {}
    for position, output in enumerate(outputs):
        places = output.numel() // channels[position]
        stages.setdefault(places, []).append(position)
    *earlier, last = stages.values()
    if not earlier:
        return last[-LAST_BLOCKS:-1]
    others = [position for position in last if channels[position] != width]
    return [earlier[-1][-1], *others[-1:]]


class TimmLayers(nn.Module):
    """The embedding of a network of timm and the pooled outputs of late layers, in one pass.

    Of a transformer that embeds by its class token, those of the blocks are taken.

    Args:
        network: has ``forward_intermediates``.
        positions: of its late layers among the outputs of that.
    """

    def __init__(self, network: Any, positions: Sequence[int]):
        super().__init__()
        # The attribute's name is part of the weights' hash, so that caches tell networks with and
        # without late layers apart.
        self.layered = network
        self.positions = positions
        self.options: dict[str, Any] = {}
        accepted = inspect.signature(network.forward_intermediates).parameters
        if "return_prefix_tokens" in accepted:  # a vision transformer
            by_token = network.global_pool == "token"
            self.options = {"norm": True, "return_prefix_tokens": by_token}

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, d + Σ c)."""
        # Some networks go on to the embedding only if the last output is asked for.
        indices = [*self.positions, -1]
        final, outputs = self.layered.forward_intermediates(
            x, indices=indices, **self.options
        )
        outputs = outputs[: len(self.positions)]
        if self.options.get("return_prefix_tokens"):
            outputs = [prefix for _, prefix in outputs]
        z = self.layered.forward_head(final)
        return torch.cat([z, *map(pooled, outputs)], dim=1)


class TracedLayers(nn.Module):
    """As :class:`TimmLayers` of a network that torch.fx can trace, such as those of torchvision.

    Args:
        network: (n, 3, h, w) → (n, d).
        steps: its sub-modules that are late layers, and the step that gives the embedding.
    """

    def __init__(self, network: nn.Module, steps: Sequence[str]):
        from torchvision.models.feature_extraction import create_feature_extractor

        super().__init__()
        self.layered: Any = create_feature_extractor(
            network, steps, suppress_diff_warning=True
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, d + Σ c)."""
        *outputs, z = self.layered(x).values()
        for position, output in enumerate(outputs):
            if output.ndim == 3:  # of torchvision's vision transformer
                outputs[position] = self.layered.encoder.ln(output)
        return torch.cat([z, *map(pooled, outputs)], dim=1)


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


@torch.inference_mode()
def with_late_layers(
    network: nn.Module,
    features: int,
    side: int,
) -> tuple[nn.Module, int]:
    """Add the outputs of late layers to the embedding of a network.

    Args:
        network: a network of timm or torchvision, or another that torch.fx can trace. Its attribute
            ``late_layers`` may name the sub-modules.
        features: width of its embeddings.
        side: of its images in pixels.

    Returns:
        The network with late layers, and the width of its embeddings.

    Raises:
        UsageError: the late layers of this network cannot be found.
    """
    from torchvision.models.feature_extraction import get_graph_node_names

    network.eval()
    black = torch.zeros(1, 3, side, side)
    layered: nn.Module
    kind = type(network).__name__
    with explained(
        UsageError, f"+layers is for networks of timm and torchvision, not {kind}"
    ):
        if hasattr(network, "forward_intermediates"):
            _, outputs = cast(Any, network).forward_intermediates(black)
            layered = TimmLayers(network, late_layers(outputs, features))
        else:
            _, steps = get_graph_node_names(network, suppress_diff_warning=True)
            names = getattr(network, "late_layers", None)
            names = names or _late_modules(network, steps, features, black)
            layered = TracedLayers(network, [*names, steps[-1]])
        return layered, layered(black).shape[1]


def _late_modules(
    network: nn.Module,
    steps: Sequence[str],
    width: int,
    image: Tensor,
) -> list[str]:
    """Return the names of the sub-modules that are late layers.

    Args:
        network: the network.
        steps: all of its steps, as torch.fx names them.
        width: of its embeddings.
        image: (1, 3, s, s) that it can take.
    """
    from torchvision.models.feature_extraction import create_feature_extractor

    stages = [found[0] for found in map(STAGE.match, steps) if found]
    if not stages:
        kind = type(network).__name__
        raise UsageError(f"+layers is for networks with stages or blocks, not {kind}")
    names = list(dict.fromkeys(stages))
    extract = create_feature_extractor(network, names, suppress_diff_warning=True)
    outputs = extract(image)
    chosen = late_layers(list(outputs.values()), width)
    return [names[position] for position in chosen]
