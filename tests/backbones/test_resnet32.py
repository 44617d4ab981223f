from pathlib import Path

import torch

from cifnet_pl.backbones import build_backbone
from cifnet_pl.backbones.families import Block, ResNet32


def network() -> ResNet32:
    torch.manual_seed(0)
    made = ResNet32()
    for name, buffer in made.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(0, 0.1)
    return made.eval()


def test_shapes_of_the_stages() -> None:
    made, x = network(), torch.randn(2, 3, 32, 32)
    y = made.bn1(made.conv1(x)).relu()
    assert y.shape == (2, 16, 32, 32)
    for stage, shape in ((made.layer1, (16, 32)), (made.layer2, (32, 16)), (made.layer3, (64, 8))):
        y = stage(y)
        assert y.shape == (2, shape[0], shape[1], shape[1])
    assert torch.allclose(made(x), y.mean(dim=(2, 3)))


def test_the_shortcut_has_no_parameters() -> None:
    block = Block(4, 8, 2).eval()
    for convolution in (block.conv1, block.conv2):
        convolution.weight.data.zero_()
    x = torch.rand(1, 4, 6, 6)
    y = block(x)
    assert torch.equal(y[:, 2:6], x[:, :, ::2, ::2])
    assert not y[:, :2].any()
    assert not y[:, 6:].any()


def test_a_file_of_its_weights_gives_the_same_embeddings(tmp_path: Path) -> None:
    made = network()
    torch.save(made.state_dict(), tmp_path / "weights.pth")
    backbone = build_backbone(f"file:{tmp_path / 'weights.pth'}", "resnet32_cifar", engine="torch")
    assert backbone.features == 64
    assert backbone.preprocessing.image_size == 32
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    mean, std = (torch.tensor(v)[:, None, None] for v in (backbone.preprocessing.mean, backbone.preprocessing.std))
    with torch.no_grad():
        expected = made((images / 255 - mean) / std)
    assert torch.allclose(backbone(images), expected, atol=1e-5)


def test_it_is_the_papers_size() -> None:
    count = sum(p.numel() for p in ResNet32().parameters())
    assert f"{count / 1e6:.2f}" == "0.46"
    # Stem 432 + 32; stages of 5 blocks with two 3x3 convolutions each, batch normalisation 2 a channel.
    stages = 10 * 9 * 16 * 16 + (9 * 16 * 32 + 9 * 9 * 32 * 32) + (9 * 32 * 64 + 9 * 9 * 64 * 64)
    assert count == 432 + stages + 2 * (16 + 10 * (16 + 32 + 64))
    assert len([n for n, _ in ResNet32().named_parameters() if "conv" in n]) == 31  # and the classifier is the 32nd
