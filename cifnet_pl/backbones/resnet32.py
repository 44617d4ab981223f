"""The ResNet-32 of the CIFAR literature: 3×3 stem, three stages of five blocks, 0.46 M parameters."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

FEATURES = 64
CIFAR100_MEAN, CIFAR100_STD = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
"""Mean and deviation of the training pixels of CIFAR-100 in [0, 1]."""


class Block(nn.Module):
    """Two 3×3 convolutions around a shortcut without parameters (option A of He et al., 2016, section 4.2).

    Where the block halves the sides and doubles the channels, the shortcut takes every other pixel and pads the
    channels with zeros on both sides.
    """

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.padding = stride, (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, inputs, h, w) → (n, outputs, ⌈h/stride⌉, ⌈w/stride⌉)."""
        shortcut = x[:, :, :: self.stride, :: self.stride]
        shortcut = functional.pad(shortcut, (0, 0, 0, 0, self.padding, self.padding))
        y = functional.relu(self.bn1(self.conv1(x)))
        return functional.relu(self.bn2(self.conv2(y)) + shortcut)


class ResNet32(nn.Module):
    """Images (n, 3, h, w) → embeddings (n, 64); made for sides of 32. No classifier.

    Parameters are named as in torchvision's ResNets: ``conv1, bn1, layer1.0.conv1, …, layer3.4.bn2``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, 1)
        self.layer2 = _stage(16, 32, 2)
        self.layer3 = _stage(32, FEATURES, 2)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Embed normalised images."""
        y = functional.relu(self.bn1(self.conv1(x)))
        for stage in (self.layer1, self.layer2, self.layer3):
            y = stage(y)
        return y.mean(dim=(2, 3))

    def stages(self) -> tuple[list[nn.Module], nn.Module]:
        """Return the stages of the network, the stem in the first, and what pools the last map.

        All share the network's weights.
        """
        first = nn.Sequential(self.conv1, self.bn1, nn.ReLU(), self.layer1)
        return [first, self.layer2, self.layer3], nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(Block(inputs, outputs, stride), *(Block(outputs, outputs, 1) for _ in range(4)))
