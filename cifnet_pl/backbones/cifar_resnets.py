"""ResNets for images of 32 pixels, such as those of CIFAR-100; torchvision has none."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


def small_stem_resnet18() -> nn.Module:
    """Build a ResNet-18 for sides of 32 pixels: images (n, 3, h, w) → embeddings (n, 512).

    It has no classifier. The parameters have torchvision's names.
    """
    from torchvision.models import resnet18

    network: nn.Module = resnet18(weights=None)
    network.conv1 = nn.Conv2d(3, 64, 3, 1, padding=1, bias=False)
    weight = network.conv1.weight
    nn.init.kaiming_normal_(weight, mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()
    network.fc = nn.Identity()
    return network


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut without parameters.

    The shortcut is option A of He et al. (2016), section 4.2: where the block halves the sides and
    doubles the channels, it takes every other pixel and pads the channels with zeros on both sides.

    Args:
        inputs: number of input channels.
        outputs: number of output channels.
        stride: of the first convolution.
    """

    def __init__(self, inputs: int, outputs: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.padding = (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, inputs, h, w) → (n, outputs, ⌈h/stride⌉, ⌈w/stride⌉)."""
        shortcut = x[:, :, :: self.stride, :: self.stride]
        channels = (0, 0, 0, 0, self.padding, self.padding)
        shortcut = functional.pad(shortcut, channels)
        y = self.conv1(x)
        y = functional.relu(self.bn1(y))
        y = self.conv2(y)
        residual = self.bn2(y)
        return functional.relu(residual + shortcut)


class ResNet32(nn.Module):
    """ResNet-32 for sides of 32 pixels: images (n, 3, h, w) → embeddings (n, 64).

    It has no classifier. Parameters are named as in torchvision's ResNets: ``conv1, bn1,
    layer1.0.conv1, …, layer3.4.bn2``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, 1)
        self.layer2 = _stage(16, 32, 2)
        self.layer3 = _stage(32, 64, 2)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Embed normalised images."""
        y: Tensor = self.conv1(x)
        y = functional.relu(self.bn1(y))
        stages = (self.layer1, self.layer2, self.layer3)
        for stage in stages:
            y = stage(y)
        return y.mean(dim=(2, 3))

    def stages(self) -> tuple[list[nn.Module], nn.Module]:
        """Return the stages, the stem in the first one, and the module that pools the last map.

        All of them share the network's weights.
        """
        first = nn.Sequential(self.conv1, self.bn1, nn.ReLU(), self.layer1)
        pooling = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        stages: list[nn.Module] = [first, self.layer2, self.layer3]
        return stages, pooling


def _stage(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Build a stage of five blocks."""
    blocks = [Block(inputs, outputs, stride)]
    blocks += [Block(outputs, outputs, 1) for _ in range(4)]
    return nn.Sequential(*blocks)
