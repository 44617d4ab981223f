"""A model lives on in the precision that it was learned in."""

from functools import partial

import pytest
import torch

import cifnet_pl
from cifnet_pl.backbones import BACKBONES, build_backbone
from cifnet_pl.backbones.engines import FLOAT32, REDUCED
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.export import Graph, Square, check_onnx
from cifnet_pl.model.merge import merge
from cifnet_pl.utilities.errors import UsageError
from tests.backbones.test_engines import Small, built
from tests.cli.test_extend import assert_same_scores, fit
from tests.command_line import assert_ends, make_images, run_cifnet

BF16 = "bf16-mixed"
CLASSES = ["ant", "bee", "cat", "dog"]


def empty(precision: str) -> Classifier:
    """A model that knows nothing, on a small network in torch."""
    backbone = build_backbone("small", engine="torch")
    model = Classifier(backbone, RidgeHead(12), image_size=4, precision=precision)
    model.record_engines(["torch"])
    return model


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory):
    """Images of three classes and of one more; a run over three in bf16, and a model of four."""
    root = tmp_path_factory.mktemp("made")
    make_images(root / "three" / "train", CLASSES[:3], 8)
    make_images(root / "three" / "val", CLASSES[:3], 2)
    make_images(root / "four", CLASSES, 8)
    make_images(root / "new", ["dog"], 8)
    network = ["--model.backbone", "small", "--model.head", "RidgeHead"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKBONES, "small", partial(built, Small))
        fit(root / "three", root / "runs", *network, "--trainer.precision", BF16)
        four = cifnet_pl.extend(empty(BF16), root / "four").model
        four.save(root / "bundle")
        yield root


def load(path) -> Classifier:
    return cifnet_pl.load(path, device="cpu")


@pytest.mark.parametrize("precision", [FLOAT32, *REDUCED])
def test_the_network_computes_in_it(made, precision: str):
    model = empty(precision)
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    exact = model.backbone(images)
    z = model.embed(images)
    assert z.dtype == torch.float32
    assert torch.equal(z, exact) == (precision == FLOAT32)
    assert torch.nn.functional.cosine_similarity(z, exact).min() > 0.98
    if precision != FLOAT32:
        with torch.autocast("cpu", REDUCED[precision]):
            assert torch.equal(z, model.backbone(images))


def test_a_run_in_bf16_is_extended_and_forgotten_in_bf16(made, tmp_path, capsys):
    run = made / "runs" / "default"
    more, less = tmp_path / "more", tmp_path / "less"
    assert run_cifnet("extend", model=run, images=made / "new", output=more) == 0
    z = torch.randn(30, 12, generator=torch.Generator().manual_seed(0)).relu()
    extended = load(more)
    assert extended.precision == BF16
    assert_same_scores(extended, load(made / "bundle"), z, 1e-2)
    dog = {"class_": "dog", "images": made / "new", "output": less}
    assert run_cifnet("forget", model=more, **dog) == 0
    said = capsys.readouterr().out
    assert "to about 1e-2 of its share, not to 1e-8 (engine torch: " in said
    assert_same_scores(load(less), load(run), z, 1e-2)
    code = run_cifnet("info", model=less)
    assert_ends(code, 0, "embedded in bf16-mixed", capsys)


def test_models_of_two_precisions_are_not_merged(made):
    exact = cifnet_pl.extend(empty(FLOAT32), made / "new").model
    with pytest.raises(UsageError, match=r"in 32-true, and .* in bf16-mixed"):
        merge([exact, load(made / "bundle")])


def test_classifying_in_another_one(made, tmp_path, capsys):
    given = {"model": made / "bundle", "images": made / "four", "engine": "torch"}
    tables = {}
    for name in (None, BF16, FLOAT32):
        output = tmp_path / f"{name}.csv"
        chosen = {} if name is None else {"precision": name}
        assert run_cifnet("classify", **given, output=output, **chosen) == 0
        tables[name] = output.read_text()
    assert tables[None] == tables[BF16] != tables[FLOAT32]
    code = run_cifnet("classify", **given, output=tmp_path / "x", precision="half")
    assert_ends(code, 2, "precision half", capsys)


@pytest.mark.system
def test_a_graph_computes_in_float32_and_says_so(made, tmp_path, capsys):
    run = made / "runs" / "default"
    target = tmp_path / "b.onnx"
    assert run_cifnet("export", model=run, format="onnx", output=target) == 0
    said = capsys.readouterr().out
    assert "float32" in said
    assert "bf16-mixed" in said
    model = load(run)
    square = Square(model.image_size, model.crop_ratio)
    graph = Graph(model.head, model.backbone, square).eval()
    check = check_onnx(target.read_bytes(), graph)  # the same network in float32
    assert check.probability < 1e-5
