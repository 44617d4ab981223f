"""A model lives on in the precision that it was learned in."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Trainer

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.backbones import BACKBONES, Preprocessing, build_backbone
from cifnet_pl.backbones.engines import FLOAT32, REDUCED, autocast
from cifnet_pl.heads import RidgeHead
from cifnet_pl.model.classifier import Classifier
from cifnet_pl.model.export import Graph, Square, check_onnx
from cifnet_pl.utilities.errors import UsageError
from tests.backbones.test_engines import Small
from tests.cli.test_extend import assert_same_scores, fit
from tests.command_line import assert_ends, make_images
from tests.models import learned

NETWORK = ["--model.backbone", "small", "--model.head", "RidgeHead"]
TORCH = ["--model.engine", "torch"]
BF16 = ["--trainer.precision", "bf16-mixed"]
SIZES = ["--data.initial_classes", "3", "--data.classes_per_task", "1"]


def small(*_: object) -> tuple[Small, int, Preprocessing]:
    return Small(), 12, Preprocessing(16)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Images of three and of four classes; runs over either in bf16, and over three in float32."""
    root = tmp_path_factory.mktemp("made")
    classes = ["ant", "bee", "cat", "dog"]
    make_images(root / "new", ["dog"], 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(BACKBONES, "small", small)
        for name, count in (("three", 3), ("four", 4)):
            make_images(root / name / "train", classes[:count], 8)
            make_images(root / name / "val", classes[:count], 2)
            fit(root / name, root / "runs" / name, *NETWORK, *SIZES, *BF16)
        fit(root / "three", root / "runs" / "float32", *NETWORK, *SIZES, *TORCH)
        yield root


def load(made: Path, run: str) -> Classifier:
    return cifnet_pl.load(made / "runs" / run / "default", device="cpu")


@pytest.mark.parametrize("precision", [FLOAT32, *REDUCED])
def test_the_network_computes_in_it(precision: str):
    model = learned()
    model.backbone = build_backbone("embedded:efficientnet_lite0")
    model.precision = precision
    model.head = RidgeHead(model.backbone.features)
    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    exact = model.backbone(images)
    z = model.embed(images)
    assert z.dtype == torch.float32
    assert torch.equal(z, exact) == (precision == FLOAT32)
    assert torch.nn.functional.cosine_similarity(z, exact).min() > 0.98
    with autocast("cpu", precision):
        assert torch.equal(z, model.backbone(images))


def test_a_run_in_bf16_is_extended_and_forgotten_in_bf16(
    made: Path, tmp_path: Path, capsys
):
    before = load(made, "three")
    both = load(made, "four")
    assert before.precision == both.precision == "bf16-mixed"
    model = str(made / "runs" / "three" / "default")
    new = str(made / "new")
    more = str(tmp_path / "more")
    assert main(["extend", "--model", model, "--images", new, "--output", more]) == 0
    extended = cifnet_pl.load(tmp_path / "more", device="cpu")
    z = torch.randn(30, 12, generator=torch.Generator().manual_seed(0)).relu()
    assert extended.precision == "bf16-mixed"
    assert_same_scores(extended, both, z, 1e-2)
    model = str(made / "runs" / "four" / "default")
    dog = ["--class", "dog", "--images", str(made / "four" / "train" / "dog")]
    less = str(tmp_path / "less")
    assert main(["forget", "--model", model, *dog, "--output", less]) == 0
    said = capsys.readouterr().out
    assert "to about 1e-2 of its share, not to 1e-8 (engine torch: " in said
    assert_same_scores(cifnet_pl.load(tmp_path / "less", device="cpu"), before, z, 1e-2)
    code = main(["info", "--model", less])
    assert_ends(code, 0, "embedded in bf16-mixed", capsys)


def test_models_of_two_precisions_are_not_merged(made: Path, tmp_path: Path, capsys):
    runs = [str(made / "runs" / name / "default") for name in ("float32", "three")]
    assert main(["merge", *runs, "--output", str(tmp_path / "b")]) == 2
    assert "precision: 32-true, and bf16-mixed" in capsys.readouterr().err


def test_classifying_in_another_one(made: Path, tmp_path: Path, capsys):
    line = ["classify", "--model", str(made / "runs" / "four" / "default")]
    line += ["--images", str(made / "four" / "val"), "--engine", "torch", "--output"]
    tables = {}
    for name in ("own", "bf16-mixed", FLOAT32):
        more = [] if name == "own" else ["--precision", name]
        assert main([*line, str(tmp_path / name), *more]) == 0
        tables[name] = (tmp_path / name).read_text()
    assert tables["own"] == tables["bf16-mixed"] != tables[FLOAT32]
    assert main([*line, str(tmp_path / "x"), "--precision", "half"]) == 2
    assert "precision half" in capsys.readouterr().err


@pytest.mark.system
def test_a_graph_computes_in_float32_and_says_so(made: Path, tmp_path: Path, capsys):
    model = load(made, "three")
    assert model.precision == "bf16-mixed"
    model.save(tmp_path / "b")
    target = tmp_path / "b.onnx"
    line = ["export", "--model", str(tmp_path / "b"), "--format", "onnx"]
    assert main([*line, "--output", str(target)]) == 0
    said = capsys.readouterr().out
    assert "float32" in said
    assert "bf16-mixed" in said
    square = Square(model.image_size, model.crop_ratio)
    graph = Graph(model.head, model.backbone, square).eval()
    check = check_onnx(target.read_bytes(), graph)  # the same network in float32
    assert check.probability < 1e-5


@pytest.mark.parametrize("precision", ["bf16-true", "64-true"])
def test_a_trainer_that_would_round_the_sums_is_refused(precision: str, tmp_path: Path):
    module = cifnet_pl.CIFNetModule("pixels:8")
    data = cifnet_pl.CIFNetDataModule("digits", image_size=8, num_workers=0)
    trainer = Trainer(
        accelerator="cpu", precision=precision, logger=False, default_root_dir=tmp_path
    )  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"precision {precision} does not"):
        trainer.fit(module, data)
