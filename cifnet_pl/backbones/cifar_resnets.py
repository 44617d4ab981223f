"""ResNets for images of 32 pixels, such as those of CIFAR-100; torchvision has none."""

from collections import OrderedDict

from torch import nn


def small_stem_resnet18() -> nn.Module:
    """Build a ResNet-18 for sides of 32 pixels: images (n, 3, h, w) → embeddings (n, 512).

    It has no classifier. The parameters have torchvision's names.
    """
    from torchvision.models import resnet18

    network: nn.Module = resnet18(weights=None)
    network.conv1 = nn.Conv2d(3, 64, 3, 1, padding=1, bias=False)
    nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    network.maxpool = nn.Identity()
    network.fc = nn.Identity()
    return network


def resnet32() -> nn.Module:
    """Build ResNet-32 for sides of 32 pixels: images (n, 3, h, w) → embeddings (n, 64).

    It has no classifier. The modules are named as in torchvision's ResNets.
    """
    modules = OrderedDict(
        conv1=nn.Conv2d(3, 16, 3, padding=1, bias=False),
        bn1=nn.BatchNorm2d(16),
        relu=nn.ReLU(inplace=True),
        layer1=_stage(16, 16),
        layer2=_stage(16, 32),
        layer3=_stage(32, 64),
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    network = nn.Sequential(modules)
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight)
    return network


def _stage(inputs: int, outputs: int) -> nn.Sequential:
    """Build a stage of five blocks; one that has more outputs halves the sides."""
    from torchvision.models.resnet import BasicBlock

    stride = 1
    shortcut = None
    if outputs > inputs:
        stride = 2
        # Option A of He et al. (2016), section 4.2: every other pixel, with channels of zeros on
        # both sides, and no parameters.
        channels = (outputs - inputs) // 2
        padding = (0, 0, 0, 0, channels, channels)
        every_other = nn.AvgPool2d(1, stride=2)
        shortcut = nn.Sequential(every_other, nn.ConstantPad3d(padding, 0.0))
    first = BasicBlock(inputs, outputs, stride, shortcut)
    others = [BasicBlock(outputs, outputs) for _ in range(4)]
    return nn.Sequential(first, *others)
