"""The ResNet-18 of the CIFAR literature: a 3×3 stem of stride 1, no pooling before the stages, 11.17 M parameters."""

from __future__ import annotations

from torch import nn

FEATURES = 512


def small_stem_resnet18() -> nn.Module:
    """Build the network: images (n, 3, h, w) → embeddings (n, 512), made for sides of 32. No classifier.

    The parameters have torchvision's names.
    """
    from torchvision.models import resnet18

    network: nn.Module = resnet18(weights=None)
    network.conv1 = nn.Conv2d(3, 64, 3, 1, padding=1, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()
    network.fc = nn.Identity()
    return network
