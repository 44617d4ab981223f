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
from cifnet_pl.backbones import build_backbone
from cifnet_pl.backbones.engines import exclusive_export
from cifnet_pl.buffer import CalibrationBuffer
from cifnet_pl.heads import CIFNetHead, NCMHead
from cifnet_pl.images.image import square
from cifnet_pl.model import export as onnx_graph
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.export import Graph, HeadGraph, Square, check_onnx
from cifnet_pl.utilities.errors import CifnetError
from tests.command_line import assert_ends, run_cifnet
from tests.models import SIDE, WIDTH, learned, samples

IMAGES = [np.array(image) for image in load_sample_images().images]


def run(content: bytes, **inputs: np.ndarray) -> list[np.ndarray]:
    """What a graph gives."""
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def metadata_of(content: bytes) -> dict[str, str]:
    return {p.key: p.value for p in onnx.load_from_string(content).metadata_props}


@pytest.mark.parametrize("cut", [(427, 640), (33, 20), (64, 64), (1, 1), (3, 200)])
def test_resize_is_pillows(cut: tuple[int, int]):
    """Within one level, by which Pillow's fixed-point weights may differ; both orders of passes."""
    image = IMAGES[0][: cut[0], : cut[1]]
    pixels = torch.from_numpy(image.copy())
    for size, crop_ratio in ((8, 1.0), (224, 0.875)):
        expected = square(Image.fromarray(image), size, crop_ratio).astype(int)
        resize = Square(size, crop_ratio)
        found = resize(pixels[None])[0].permute(1, 2, 0).numpy()
        # Newer versions of Pillow resize tall images vertically first: then the 8-bit result in
        # between is another one.
        turned = resize(pixels.transpose(0, 1)[None])[0].permute(2, 1, 0).numpy()
        largest = [np.abs(each - expected).max() for each in (found, turned)]
        assert min(largest) <= 1
        assert np.abs(found - expected).mean() < 0.3


@pytest.mark.system
def test_network_and_head_in_one_graph(tmp_path: Path, capsys):
    backbone = build_backbone("embedded:efficientnet_lite0")
    head = CIFNetHead(backbone.features)
    none = Classifier(backbone, head, CalibrationBuffer(20), [], 64, 0.875)
    tiles = []
    for number, top, left in ((0, 0, 300), (1, 150, 250), (0, 250, 100)):
        for i in range(6):  # sky, petals, roofs
            pixels = IMAGES[number][top + 5 * i :, left + 9 * i :][:100, :110]
            tiles.append(Image.fromarray(pixels))
    names = np.repeat(["sky", "petals", "roofs"], 6)
    model = cifnet_pl.extend(none, (tiles, names)).model
    model.head.temperature.fill_(0.7)
    model.save(tmp_path / "b")
    target = tmp_path / "m" / "model.onnx"
    given = {"model": tmp_path / "b", "format": "onnx", "output": target}
    assert run_cifnet("export", **given) == 0
    said = capsys.readouterr().out
    assert re.search(r"Largest difference from torch: .*[\d.]+\n", said)
    assert run_cifnet("export", **given) == 0
    assert "is already there" in capsys.readouterr().err
    content = target.read_bytes()
    onnx.checker.check_model(onnx.load_from_string(content))
    again = cifnet_pl.load(tmp_path / "b", device="cpu")
    for count in (1, 2, 5):  # any batch size
        tiles = [IMAGES[i % 2][10 * i : 10 * i + 200, :150] for i in range(count)]
        found = run(content, images=np.stack(tiles))[0]
        squares = [square(Image.fromarray(tile), 64, 0.875) for tile in tiles]
        pixels = torch.from_numpy(np.stack(squares)).permute(0, 3, 1, 2)
        expected = again.probabilities(pixels).numpy()
        assert found.shape == (count, 3)
        assert found.dtype == np.float32
        assert np.abs(found.sum(axis=1) - 1).max() < 1e-5
        assert np.abs(found - expected).max() < 2e-2  # one level in some pixels
        assert (found.argmax(axis=1) == expected.argmax(axis=1)).all()
    metadata = metadata_of(content)
    assert json.loads(metadata["class_names"]) == model.class_names
    assert metadata["image_size"] == "64"
    # Nothing of this machine is in the file.
    assert str(Path(cifnet_pl.__file__).parent).encode() not in content


@pytest.mark.system
@pytest.mark.parametrize(
    "head", ["cifnet-released", "dsal", "ncm", "knn", "ridge-products", "acil-float32"]
)
def test_every_head_and_names_in_any_language(head: str):
    tasks = [["Ströme", "図書館"], ["\udcff", '"quoted"', "five"]]
    model = learned(head, tasks)
    content, check = model.to_onnx()
    assert check.probability <= 1e-4
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (40, SIDE, SIDE, 3), dtype=np.uint8)
    probabilities, *novelty = run(content, images=images)  # they are not resized
    assert probabilities.shape == (40, 5)
    metadata = metadata_of(content)
    names = [name for task in tasks for name in task]
    assert json.loads(metadata["class_names"]) == names
    assert bool(novelty) == (head not in ("ncm", "knn"))
    if not novelty:
        assert "unknown_above" not in metadata
    if head.startswith(("ridge", "acil")):
        assert check.novelty <= 1e-5
        z = model.embed(torch.from_numpy(images).permute(0, 3, 1, 2))
        expected = model.head.novelty(z).numpy()
        assert novelty[0].dtype == np.float32
        assert np.abs(novelty[0] - expected).max() <= 1e-5 * np.abs(expected).max()


def test_threads_export_one_after_the_other(monkeypatch: pytest.MonkeyPatch):
    """As in a service that gives out a graph: the exporter fails where calls overlap."""
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
    limits = json.loads(metadata_of(model.to_onnx().content)["unknown_above"])
    assert list(limits) == ["0.05"]
    z, _, _ = samples([*model.class_names, "yak"], 20)
    for share, limit in limits.items():
        predictor = model.open_set_predictor(float(share))
        verdicts = predictor.decisions(z, model.head.probabilities(z))
        assert [v.known for v in verdicts] == (model.head.novelty(z) <= limit).tolist()
        assert {v.known for v in verdicts} == {True, False}


def test_a_head_that_cannot_be_expressed_says_so(monkeypatch: pytest.MonkeyPatch):
    """Scores whose steps depend on the values of the embeddings."""
    scoring = lambda self: lambda z: z[:, :6] if z.sum() > 0 else -z[:, :6]  # noqa: E731
    monkeypatch.setattr(NCMHead, "scoring", scoring)
    with pytest.raises(CifnetError, match="cannot be written as ONNX"):
        learned("ncm").to_onnx()


def test_the_check_would_notice():
    """Another model's graph does not pass."""
    content, _ = learned("ridge").to_onnx()
    other = learned("slda")
    graph = Graph(other.head, other.backbone, Square(SIDE, 1.0)).eval()
    refused = r"onnxruntime differs from torch by .* more than 0\.0001"
    with pytest.raises(CifnetError, match=refused):
        check_onnx(content, graph)


def test_a_model_of_embeddings_is_a_graph_of_its_head(tmp_path: Path, capsys):
    """It has no network."""
    model = replace(learned("ridge"), backbone=build_backbone(f"none:{WIDTH}"))
    model.head.temperature.fill_(0.7)
    model.save(tmp_path / "b")
    target = tmp_path / "m.onnx"
    given = {"model": tmp_path / "b", "format": "onnx", "output": target}
    code = run_cifnet("export", **given)
    said = f"embeddings (n, {WIDTH}) float32 → probabilities"
    assert_ends(code, 0, said, capsys)
    z = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(3))
    for part in (z, z[:1]):
        (found,) = run(target.read_bytes(), embeddings=part.numpy())[:1]
        assert np.abs(found - model.head.probabilities(part).numpy()).max() < 1e-6
