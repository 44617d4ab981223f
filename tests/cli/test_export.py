"""ONNX: the graph's numbers are torch's, and its resize is Pillow's."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_images

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.backbones import build_backbone
from cifnet_pl.backbones.engines import exclusive_export
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import CIFNetHead, NCMHead
from cifnet_pl.images.image import square
from cifnet_pl.model import export as onnx_graph
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.export import Graph, HeadGraph, Square, check_onnx
from cifnet_pl.utilities.errors import CifnetError
from tests.command_line import run_cifnet
from tests.models import SIDE, WIDTH, learned, samples

IMAGES = [np.array(image) for image in load_sample_images().images]


def model_of(name: str, size: int, crop_ratio: float) -> Classifier:
    """A model of tiles of two real images: sky, roofs, petals, leaves."""
    backbone = build_backbone(name)
    model = Classifier(
        backbone,
        CIFNetHead(backbone.features),
        CalibrationBuffer(20),
        [],
        size,
        crop_ratio,
    )
    corners = {
        "sky": (0, (0, 300)),
        "roofs": (0, (250, 100)),
        "petals": (1, (150, 250)),
        "leaves": (1, (300, 0)),
    }
    for names in (["sky", "petals"], ["roofs", "leaves"]):
        model.begin_task(names, [6, 6])
        for name in names:
            image, (top, left) = corners[name]
            tiles = [
                IMAGES[image][
                    top + 5 * i : top + 5 * i + 100, left + 9 * i : left + 9 * i + 110
                ]
                for i in range(6)
            ]
            pixels = np.stack(
                [square(Image.fromarray(tile), size, crop_ratio) for tile in tiles]
            )
            z = model.embed(torch.from_numpy(pixels).permute(0, 3, 1, 2))
            model.observe(z, torch.full((6,), model.labels([name])[0]), torch.arange(6))
        model.finish_task()
    return model


def run(content: bytes, images: np.ndarray) -> np.ndarray:
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, {"images": images})[0]


@pytest.mark.parametrize(("size", "crop_ratio"), [(8, 1.0), (64, 0.875), (224, 0.875)])
@pytest.mark.parametrize("cut", [(427, 640), (33, 20), (64, 64), (1, 1), (3, 200)])
def test_resize_is_pillows(size: int, crop_ratio: float, cut: tuple[int, int]):
    """Every pixel within the one level that Pillow's fixed-point weights may differ by; both orders
    of the passes.
    """
    image = IMAGES[0][: cut[0], : cut[1]]
    expected = square(Image.fromarray(image), size, crop_ratio).astype(int)
    found = (
        Square(size, crop_ratio)(torch.from_numpy(image.copy())[None])[0]
        .permute(1, 2, 0)
        .numpy()
    )
    # Newer versions of Pillow resize tall images vertically first: then the 8-bit result in between
    # is another one.
    turned = Square(size, crop_ratio)(
        torch.from_numpy(image.transpose(1, 0, 2).copy())[None]
    )[0]
    turned = turned.permute(2, 1, 0).numpy()
    assert min(np.abs(found - expected).max(), np.abs(turned - expected).max()) <= 1
    assert np.abs(found - expected).mean() < 0.3


@pytest.mark.system
def test_network_and_head_in_one_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    model = model_of("embedded:efficientnet_lite0", 64, 0.875)
    model.head.temperature.fill_(0.7)
    model.save(tmp_path / "b")
    target = tmp_path / "m" / "model.onnx"
    assert run_cifnet("export", model=tmp_path / "b", format="onnx", output=target) == 0
    assert re.search(
        r"Largest difference from torch on two images: .*[\d.]+\n",
        capsys.readouterr().out,
    )
    capsys.readouterr()
    assert run_cifnet("export", model=tmp_path / "b", format="onnx", output=target) == 0
    assert "is already there" in capsys.readouterr().err
    content = target.read_bytes()
    onnx.checker.check_model(onnx.load_from_string(content))
    again = cifnet_pl.load(tmp_path / "b", device="cpu")
    for count in (1, 2, 5):  # any batch size
        tiles = np.stack(
            [IMAGES[i % 2][10 * i : 10 * i + 200, :150] for i in range(count)]
        )
        found = run(content, tiles)
        squares = np.stack([square(Image.fromarray(tile), 64, 0.875) for tile in tiles])
        expected = again.probabilities(
            torch.from_numpy(squares).permute(0, 3, 1, 2)
        ).numpy()
        assert found.shape == (count, 4)
        assert found.dtype == np.float32
        assert np.abs(found.sum(axis=1) - 1).max() < 1e-5
        assert np.abs(found - expected).max() < 2e-2  # one level in some pixels
        assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()
    metadata = {p.key: p.value for p in onnx.load_from_string(content).metadata_props}
    assert json.loads(metadata["class_names"]) == model.class_names
    assert metadata["image_size"] == "64"
    assert (
        str(Path(cifnet_pl.__file__).parent).encode() not in content
    )  # nothing of this machine is in the file


@pytest.mark.system
@pytest.mark.parametrize(
    ("head", "outputs"),
    [
        ("cifnet-released", ["probabilities", "novelty"]),
        ("dsal", ["probabilities", "novelty"]),
        ("ncm", ["probabilities"]),
        ("knn", ["probabilities"]),
        ("ridge", ["probabilities", "novelty"]),
        ("ridge-products", ["probabilities", "novelty"]),
        ("acil-float32", ["probabilities", "novelty"]),
    ],
)
def test_every_head_and_names_in_any_language(head: str, outputs: list[str]):
    tasks = [["Ströme", "図書館"], ["\udcff", '"quoted"', "five"]]
    model = learned(head, tasks)
    content, check = model.to_onnx()
    assert check.probability <= 1e-4
    assert run(content, IMAGES[0][None, :90, :70]).shape == (1, 5)
    graph = onnx.load_from_string(content)
    metadata = {p.key: p.value for p in graph.metadata_props}
    assert json.loads(metadata["class_names"]) == [
        name for task in tasks for name in task
    ]
    assert [output.name for output in graph.graph.output] == outputs
    if outputs == ["probabilities"]:
        assert "unknown_above" not in metadata
    if head.startswith(("ridge", "acil")):
        assert check.novelty <= 1e-5
        assert_novelty_is_torchs_to_float32(content, model)


def assert_novelty_is_torchs_to_float32(content: bytes, model: Classifier) -> None:
    """On images as large as the network's, which are not resized."""
    images = np.random.default_rng(0).integers(
        0, 256, (40, SIDE, SIDE, 3), dtype=np.uint8
    )
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    _, found = session.run(None, {"images": images})
    expected = model.head.novelty(
        model.embed(torch.from_numpy(images).permute(0, 3, 1, 2))
    ).numpy()
    assert found.shape == (40,)
    assert found.dtype == np.float32
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()


def test_threads_export_one_after_the_other(monkeypatch: pytest.MonkeyPatch):
    """As in a service that gives out a graph while it exports its network: the exporter fails where
    calls overlap.
    """
    begun = threading.Event()
    monkeypatch.setattr(torch.onnx, "export", lambda *given, **options: begun.set())
    graph = HeadGraph(learned("ncm").head)
    with ThreadPoolExecutor(1) as pool:
        with exclusive_export():
            waiting = pool.submit(onnx_graph._exported, graph)
            assert not begun.wait(0.3)
        waiting.result()
    assert begun.is_set()


@pytest.mark.system
def test_thresholds_of_novelty_are_in_the_file():
    model = learned("ridge")
    model.buffer = CalibrationBuffer(60)
    z, own, keys = samples(model.class_names, 60)
    model.buffer.add(z, torch.tensor(model.labels(own)), keys)
    model.buffer.commit()
    graph = onnx.load_from_string(model.to_onnx()[0])
    limits = json.loads({p.key: p.value for p in graph.metadata_props}["unknown_above"])
    assert list(limits) == ["0.05"]
    z, _, _ = samples([*model.class_names, "yak"], 20)
    for share, limit in limits.items():
        verdicts = model.open_set_predictor(float(share)).decisions(
            z, model.head.probabilities(z)
        )
        assert [v.known for v in verdicts] == (model.head.novelty(z) <= limit).tolist()
        assert {v.known for v in verdicts} == {True, False}


def test_a_head_that_cannot_be_expressed_says_so(monkeypatch: pytest.MonkeyPatch):
    """Scores whose steps depend on the values of the embeddings."""
    monkeypatch.setattr(
        NCMHead,
        "scoring",
        lambda self: lambda z: z[:, :6] if z.sum() > 0 else -z[:, :6],
    )
    with pytest.raises(CifnetError, match="cannot be written as ONNX"):
        learned("ncm").to_onnx()


@pytest.mark.system
def test_the_check_would_notice():
    """Another model's graph does not pass."""
    content, _ = learned("ridge").to_onnx()
    other = learned("slda")
    with pytest.raises(
        CifnetError, match=r"onnxruntime differs from torch by .* more than 0\.0001"
    ):
        check_onnx(content, Graph(other.head, other.backbone, Square(SIDE, 1.0)).eval())


def test_a_model_of_embeddings_is_a_graph_of_its_head(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """It has no network."""
    model = replace(learned("ridge"), backbone=build_backbone(f"none:{WIDTH}"))
    model.head.temperature.fill_(0.7)
    model.save(tmp_path / "b")
    target = tmp_path / "m.onnx"
    given = ["export", "--model", str(tmp_path / "b"), "--overwrite", "--output"]
    assert main([*given, str(target), "--format", "onnx"]) == 0
    assert f"embeddings (n, {WIDTH}) float32 → probabilities" in capsys.readouterr().out
    z = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(3))
    session = onnxruntime.InferenceSession(
        target.read_bytes(), providers=["CPUExecutionProvider"]
    )
    for part in (z, z[:1]):
        found = session.run(None, {"embeddings": part.numpy()})[0]
        assert np.abs(found - model.head.probabilities(part).numpy()).max() < 1e-6
