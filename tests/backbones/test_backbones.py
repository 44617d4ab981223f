"""Frozen backbones: what they compute, where their weights come from, and what is refused."""

import pickle
import socket
from functools import partial
from typing import Any, cast
from unittest.mock import Mock

import pytest
import safetensors.torch
import timm
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer, get_model_builder, shufflenet_v2_x0_5

from cifnet_pl.backbones import Backbone, Preprocessing, build_backbone
from cifnet_pl.backbones.cifar_resnets import resnet32
from cifnet_pl.backbones.registry import headless
from cifnet_pl.backbones.structures import with_late_layers
from cifnet_pl.utilities.errors import CheckpointError, CifnetError, UsageError
from tests.backbones.test_engines import images
from tests.models import Payload

LITE0 = "embedded:efficientnet_lite0"


@pytest.fixture(scope="module")
def lite0() -> Backbone:
    # test_engines.py compares other engines with torch.
    return build_backbone(LITE0, engine="torch")


@pytest.fixture(scope="module")
def resnet_state() -> dict[str, Tensor]:
    return resnet32().state_dict()


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Fails every attempt to open a connection or look a name up, and counts them."""
    refuse = Mock(side_effect=OSError("no network in this test"))
    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("create_connection", "getaddrinfo", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)
    return refuse


# ---------------------------------------------------------------------- every backbone


def test_embedded_normalises_as_the_authors_do(lite0: Backbone) -> None:
    """(255·x − 127) / 128 for x in [0, 1]; what follows is of their weights."""
    seen: list[Tensor] = []
    hook = lite0.network.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    shades = torch.arange(256, dtype=torch.uint8).repeat(16).reshape(1, 1, 64, 64)
    pixels = torch.cat([shades, shades.flip(3), shades // 2], dim=1)
    z = lite0(pixels)
    hook.remove()
    expected = (pixels.double() - 127) / 128
    assert (seen[0].double() - expected).abs().max() < 1e-6
    assert z[0].topk(3).indices.tolist() == [113, 949, 1169]
    assert abs(z.mean() - 0.2408) < 2e-4
    assert lite0.preprocessing.image_size == 224
    assert (z.shape, z.dtype, lite0.features) == ((1, 1280), torch.float32, 1280)
    # 4.7 million with the classifier of 1000 classes.
    assert 3_000_000 < lite0.parameters_count < 4_000_000


def test_pixels_are_the_pixels() -> None:
    backbone = build_backbone("pixels")
    batch = images(4, 8)
    assert (backbone.features, backbone.preprocessing.image_size) == (192, 8)
    assert (backbone(batch) - batch.flatten(1) / 255).abs().max() < 1e-6
    assert build_backbone("pixels:3")(images(2, 3)).shape == (2, 27)


def test_what_is_not_a_batch_of_images_of_a_side_that_the_network_can_take() -> None:
    """In one sentence that says which side it can."""
    backbone = build_backbone("pixels")
    for wrong in (images(1).float(), images(1)[0]):
        with pytest.raises(CifnetError, match="shape"):
            backbone(wrong)
    with pytest.raises(CifnetError, match=r"pixels .*9x9 .*image_size to 8"):
        backbone(images(2, 9))
    transformer, features = headless(VisionTransformer(224, 16, 1, 2, 16, 16))
    shape = Preprocessing(224)
    backbone = Backbone("vit", transformer, features, shape, engine="torch")
    with pytest.raises(CifnetError, match=r"vit .*32x32 .*image_size to 224"):
        backbone(images(1, 32))


@pytest.mark.parametrize(
    ("name", "architecture", "fragment"),
    [
        ("embeded:efficientnet_lite0", None, "'embeded'.* embedded"),
        ("torchvision:ResNet18_Weights.IMAGENET1K_V3", None, "IMAGENET1K_V1"),
        ("patches:8x0", None, "patches:<centres>x<cells"),
        ("timm:resnet19", None, "'resnet19'.* resnet"),
        ("timm:resnet18.a9_in1k", None, "Invalid pretrained tag"),
        ("file:weights.pth", None, "--model.architecture"),
        ("file:weights.pth", "squeezenet1_0", "SqueezeNet"),
        ("file:no/weights.pth", "resnet18", "checkpoint no/weights.pth does not exist"),
        ("pixels:8+layers", None, "is for networks with stages or blocks"),
    ],
)
def test_unknown_names(name: str, architecture: str | None, fragment: str) -> None:
    with pytest.raises(UsageError, match=fragment) as caught:
        build_backbone(name, architecture)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------- published weights


@pytest.fixture
def hub(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """An empty cache of torchvision weights."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


SHUFFLENET = "torchvision:ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1"
SHUFFLENET_FILE = "shufflenetv2_x0.5-f707e7126e.pth"


def test_torchvision_weights(hub, no_network: Mock) -> None:
    with pytest.raises(CifnetError, match="IMAGENET1K_V1 are not on this machine"):
        build_backbone(SHUFFLENET)
    state = shufflenet_v2_x0_5(weights=None).state_dict()
    file = hub / SHUFFLENET_FILE
    torch.save(state, file)
    backbone = build_backbone(SHUFFLENET, engine="torch")
    expected = Preprocessing(224, 224 / 256)
    assert (backbone.features, backbone.preprocessing) == (1024, expected)
    loaded = backbone.network.state_dict()
    assert loaded.keys() == state.keys() - {"fc.weight", "fc.bias"}
    assert all(torch.equal(loaded[key], state[key]) for key in loaded)
    del state["conv1.0.weight"]
    torch.save(state, file)
    with pytest.raises(CheckpointError, match=r"conv1.0.weight"):
        build_backbone(SHUFFLENET)
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match="cannot read"):
        build_backbone(SHUFFLENET)
    assert not no_network.called


def test_timm_weights(tmp_path, monkeypatch, no_network) -> None:
    """With a layer between pooling and classifier, the width is that of what comes out."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    model = "mobilenetv3_small_050"
    name = f"{model}.lamb_in1k"
    with pytest.raises(CifnetError, match=f"{name} are not on this"):
        build_backbone(f"timm:{name}")
    folder = tmp_path / f"models--timm--{name}"
    file = folder / "snapshots" / "0123" / "model.safetensors"
    file.parent.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0123")
    state = timm.create_model(model, pretrained=False).state_dict()
    safetensors.torch.save_file(state, file)
    backbone = build_backbone(f"timm:{name}", engine="torch")
    assert backbone.features == 1024
    assert backbone(images(2, 64)).shape == (2, 1024)
    loaded = backbone.network.state_dict()
    assert len(loaded) == len(state) - 2
    assert all(torch.equal(loaded[key], state[key]) for key in loaded)
    del state["conv_stem.weight"]
    safetensors.torch.save_file(state, file)
    said = "do not fill the network: .*conv_stem.weight"
    with pytest.raises(CheckpointError, match=said):
        build_backbone(f"timm:{model}")
    assert not no_network.called


# ---------------------------------------------------------------------- files


def save(content: Any, tmp_path) -> str:
    torch.save(content, tmp_path / "weights.pth")
    return f"file:{tmp_path}/weights.pth"


@pytest.mark.parametrize(
    ("prefix", "nesting"),
    [
        ("module.encoder_q.", "state_dict"),
        ("encoder.", "model"),
        ("module.backbone.", "teacher"),
    ],
)
def test_prefixes_and_nesting_of_frameworks(prefix, nesting, resnet_state, tmp_path):
    content: Any = {prefix + key: value for key, value in resnet_state.items()}
    content["module.queue"] = torch.zeros(3)  # what frameworks store besides
    for copy in ("module.encoder_k.", "momentum_backbone.", "module.momentum_encoder."):
        content[f"{copy}conv1.weight"] = torch.zeros(1)  # not meant to be used
    content = {"epoch": 3, nesting: content}
    backbone = build_backbone(save(content, tmp_path), "resnet32_cifar", engine="torch")
    loaded = backbone.network.state_dict()
    assert (backbone.features, backbone.preprocessing.image_size) == (64, 32)
    assert all(torch.equal(loaded[key], resnet_state[key]) for key in loaded)


def test_half_precision_and_missing_counters(resnet_state, tmp_path) -> None:
    floats = {k: v.half() for k, v in resnet_state.items() if v.is_floating_point()}
    backbone = build_backbone(save(floats, tmp_path), "resnet32_cifar", engine="torch")
    assert backbone(images(1)).dtype == torch.float32


def test_tensors_missing_or_of_another_shape_are_listed(resnet_state, tmp_path) -> None:
    state = {**resnet_state, "bn1.weight": torch.zeros(3)}
    missing = ["layer3.4.bn2.running_var", "conv1.weight"]
    for name in missing:
        del state[name]
    with pytest.raises(CheckpointError, match="does not fill the network") as caught:
        build_backbone(save(state, tmp_path), "resnet32_cifar")
    assert all(name in str(caught.value) for name in [*missing, "bn1.weight"])


def test_two_networks_in_one_file(resnet_state, tmp_path) -> None:
    both = {f"backbone.{k}": v for k, v in resnet_state.items()}
    both |= {f"encoder.{k}": v for k, v in resnet_state.items()}
    said = "backbone.conv1.weight and encoder.conv1.weight"
    with pytest.raises(CheckpointError, match=said):
        build_backbone(save(both, tmp_path), "resnet32_cifar")


def test_whole_and_truncated_safetensors(resnet_state, tmp_path) -> None:
    file = tmp_path / "weights.safetensors"
    safetensors.torch.save_file(resnet_state, file)
    backbone = build_backbone(f"file:{file}", "resnet32_cifar", engine="torch")
    read = backbone.network.state_dict()
    assert torch.equal(read["conv1.weight"], resnet_state["conv1.weight"])
    for keep in (0, 100_000):
        file.write_bytes(file.read_bytes()[:keep])
        with pytest.raises(CheckpointError, match=f"cannot read {file}: ") as caught:
            build_backbone(f"file:{file}", "resnet32_cifar")
        assert "\n" not in str(caught.value)


def test_hostile_files_are_never_executed(tmp_path, hub) -> None:
    trace = tmp_path / "executed"
    file = tmp_path / "weights.pth"
    file.write_bytes(pickle.dumps(Payload(trace), protocol=2))
    with pytest.raises(CheckpointError, match="would execute code"):
        build_backbone(f"file:{file}", "resnet32_cifar")
    (hub / SHUFFLENET_FILE).write_bytes(file.read_bytes())
    with pytest.raises(CheckpointError, match="would execute code"):
        build_backbone(SHUFFLENET)
    assert not trace.exists()
    pickle.loads(file.read_bytes())
    assert trace.exists()  # so that the test could have failed


# ---------------------------------------------------------------------- more of the same network


def test_layers_and_mirror(lite0: Backbone) -> None:
    """By hand: means of two blocks' outputs; the mean over an image and its mirror image."""
    batch = images(3, 64)
    rich = build_backbone(LITE0 + "+layers+mirror", engine="torch")
    assert rich.features == 1280 + 112 + 192
    assert rich.name == LITE0 + "+layers+mirror"
    assert rich.preprocessing == lite0.preprocessing
    late = ["network._blocks.10", "network._blocks.14"]
    joined = []
    for pixels in (batch, batch.flip(3)):
        x = lite0.normalised(pixels)
        parts = [averaged(lite0.network, name, x) for name in late]
        joined.append(torch.cat([lite0(pixels), *parts], dim=1))
    assert torch.allclose(rich(batch), sum(joined) / 2, atol=1e-5)
    assert torch.allclose(rich(batch), rich(batch.flip(3)), atol=1e-5)


def test_views_have_hashes_of_their_own() -> None:
    """So that caches and bundles tell them apart; the order of their names does not matter."""
    hashes = []
    for views in ("", "+layers", "+layers+mirror", "+mirror+layers"):
        torch.manual_seed(0)
        name = f"random:timm:test_vit{views}"
        hashes.append(build_backbone(name, engine="torch").sha256)
    assert len(set(hashes[:3])) == 3
    assert hashes[2] == hashes[3]


SMALL_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "num_heads": 2}
SMALL_STAGES = {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}
SMALL_SWIN = {"img_size": 64, "embed_dim": 8, "depths": (1, 1, 1, 1), "window_size": 2}


def of_timm(name: str, **settings: Any) -> nn.Module:
    network = timm.create_model(name, pretrained=False, num_classes=0, **settings)
    return cast(nn.Module, network.eval())


def of_torchvision(name: str) -> nn.Module:
    network, _ = headless(get_model_builder(name)(weights=None))
    return network.eval()


def averaged(network: nn.Module, name: str, x: Tensor) -> Tensor:
    """The output of a sub-module, averaged over the map."""
    outputs = []
    module = network.get_submodule(name)
    hook = module.register_forward_hook(lambda m, a, z: outputs.append(z))
    network(x)
    hook.remove()
    (output,) = outputs
    last_is_channels = output.shape[1] == output.shape[2]
    return output.mean((1, 2) if last_is_channels else (2, 3))


@pytest.mark.parametrize(
    ("build", "stages"),
    [
        (partial(of_timm, "convnext_atto", **SMALL_STAGES), ["stages.2"]),
        (partial(of_timm, "swin_tiny_patch4_window7_224", **SMALL_SWIN), ["layers.2"]),
        (partial(of_torchvision, "resnet18"), ["layer3"]),
        (partial(of_torchvision, "mobilenet_v3_small"), ["features.8", "features.12"]),
        (partial(of_torchvision, "regnet_y_400mf"), ["trunk_output.block3"]),
    ],
)
def test_late_stages(build, stages: list[str]) -> None:
    """Stages 3 and 4, but the last where the embedding is its mean."""
    network = build()
    x = torch.randn(2, 3, 64, 64)
    z = network(x)
    layered, features = with_late_layers(network, z.shape[1], 64)
    late = [averaged(network, stage, x) for stage in stages]
    torch.testing.assert_close(layered(x), torch.cat([z, *late], dim=1))
    assert features == layered(x).shape[1]


@pytest.mark.parametrize("pooling", ["token", "avg"])
def test_last_blocks_of_a_vision_transformer(pooling: str) -> None:
    """Normalised class tokens, or means, of the last four blocks; the last is the embedding."""
    name = "vit_tiny_patch16_224"
    options = {"global_pool": pooling, "fc_norm": False, **SMALL_VIT}
    network: Any = of_timm(name, depth=6, **options)
    x = torch.randn(2, 3, 32, 32)
    layered, features = with_late_layers(network, 24, 32)
    assert features == 4 * 24
    wanted = {"norm": True, "return_prefix_tokens": True, "intermediates_only": True}
    tokens = network.forward_intermediates(x, **wanted)
    by_token = pooling == "token"
    late = []
    for maps, prefix in tokens[-4:-1]:
        late.append(prefix[:, 0] if by_token else maps.mean((2, 3)))
    torch.testing.assert_close(layered(x), torch.cat([network(x), *late], dim=1))


def test_last_blocks_of_a_vision_transformer_of_torchvision() -> None:
    network = VisionTransformer(32, 8, 6, 2, 24, 32)
    network.heads = nn.Sequential()
    x = torch.randn(2, 3, 32, 32)
    tokens: list[Tensor] = []
    for block in network.eval().encoder.layers[2:5]:
        block.register_forward_hook(lambda m, a, out: tokens.append(out))
    z = network(x)
    late = [network.encoder.ln(output)[:, 0] for output in tokens]
    layered, features = with_late_layers(network, 24, 32)
    assert features == 4 * 24
    torch.testing.assert_close(layered(x), torch.cat([z, *late], dim=1))
