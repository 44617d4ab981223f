"""Heads, backbones, sources and trained methods from a user's own file or installed package."""

import hashlib
import importlib.metadata
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import cifnet_pl
from cifnet_pl.__main__ import main
from cifnet_pl.backbones import build_backbone, plugin_imports
from cifnet_pl.data.samples import SourceOptions
from cifnet_pl.testing import check_backbone, check_head, check_source
from cifnet_pl.utilities import plugins
from cifnet_pl.utilities.errors import CheckpointError, UsageError
from tests.cli.test_option_errors import one_sentence
from tests.command_line import (
    DATA,
    assert_ends,
    fit,
    learned,
    make_images,
    rows,
    run_cifnet,
    summary_of,
)
from tests.models import config_of

PAGE = Path(__file__).parents[2] / "docs/how_to/plugins.md"
MORE = """

import pathlib

pathlib.Path(__file__).with_suffix(".imported").touch()

class Forgetful(MyHead):
    def __init__(self, in_features: int, ratio: float = 0.01):
        super().__init__(in_features, ratio)

class Fails(MyHead):
    def _solve(self):
        raise ZeroDivisionError("no such ridge")

class Misshaped(MyHead):
    def _scores(self, z):
        return super()._scores(z)[:, [0, *range(len(self.classes))]]

class Narrow(MyNet):
    def forward(self, x):
        return x.flatten(1)

class Constant(MyNet):
    def forward(self, x):
        return torch.ones(len(x), self.features)

class Broken(MyNet):
    def forward(self, x):
        raise KeyError("layer")

def empty(options):
    return options.own["count"]

class Plain:
    pass
"""
"""What no user would write, below the file of the page: heads that keep an argument elsewhere,
cannot solve, and give a score too many; networks that embed otherwise than they say, or not at all.
"""
HEAD = ["--model.head", "my_parts.MyHead", "--model.head.share", "0.1"]
NETWORK = ["--model.backbone", "import:my_parts.MyNet"]
TORCH = ["--model.engine", "torch"]  # an export to ONNX takes seconds


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory):
    """A folder with the user's file, which can be imported from there."""
    folder = tmp_path_factory.mktemp("mine")
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    (folder / "my_parts.py").write_text(code + MORE)
    sys.path.append(str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("my_parts", None)


@pytest.fixture(scope="module")
def run(parts: Path) -> Path:
    """A run with a head and a network of the user's own."""
    return learned(parts / "logs", "--data.max_tasks", "2", *HEAD, *NETWORK, *TORCH)


@pytest.fixture(scope="module")
def bundle(run: Path, parts: Path) -> Path:
    assert run_cifnet("export", model=run, output=parts / "bundle", trust=True) == 0
    return parts / "bundle"


def test_the_run_and_the_bundle_name_the_imports(run: Path, bundle: Path, parts: Path):
    summary = summary_of(run)
    assert (summary["head"], summary["title"]) == ("MyHead", "My")
    code = hashlib.sha256((parts / "my_parts.py").read_bytes()).hexdigest()
    assert summary["plugin_hashes"] == {"my_parts.MyNet": code, "my_parts.MyHead": code}
    config = config_of(bundle)
    head = {"class": "my_parts.MyHead", "in_features": 384, "share": 0.1}
    assert config["head"] == head
    assert config["backbone"]["name"] == "import:my_parts.MyNet"


def test_without_trust_nothing_is_imported_and_one_sentence_says_what_would_be(
    bundle, parts, tmp_path, monkeypatch, capsys
):
    monkeypatch.delitem(sys.modules, "my_parts")
    (parts / "my_parts.imported").unlink()
    images = make_images(tmp_path / "images", ["ant", "bee"], 3)
    extend = ["extend", "--model", bundle, "--images", images]
    for words in (extend, ["merge", bundle, bundle.parent]):
        assert main([*map(str, words), "--output", str(tmp_path / "o")]) == 1
        would = "would import my_parts.MyHead and my_parts.MyNet: add --trust"
        assert would in one_sentence(capsys)
    assert "my_parts" not in sys.modules
    assert not (parts / "my_parts.imported").exists()


def test_trusted_it_is_a_model_like_any_other(bundle, tmp_path, capsys):
    images = make_images(tmp_path / "images", ["ant", "bee"])
    code = run_cifnet("info", model=bundle, trust=True)
    assert_ends(code, 0, "MyHead (in_features 384, share 0.1)", capsys)
    extended, table, less = (
        tmp_path / name for name in ("more", "classes.csv", "less")
    )
    given = {"images": images, "trust": True}
    assert run_cifnet("extend", model=bundle, output=extended, **given) == 0
    # The next command needs it, too.
    assert capsys.readouterr().out.endswith("--output out.csv --trust\n")
    assert run_cifnet("classify", model=extended, output=table, **given) == 0
    right = [Path(row["file"]).parent.name == row["class"] for row in rows(table)]
    assert np.mean(right) > 0.8
    given = {"class_": "ant", "trust": True}
    assert run_cifnet("forget", model=extended, output=less, **given) == 0
    model = cifnet_pl.load(less, trust=True)
    assert model.class_names == ["0", "1", "2", "3", "bee"]
    assert type(model.head).__name__ == "MyHead"


# ---------------------------------------------------------------------- installed packages


@pytest.fixture
def installed(parts, monkeypatch, tmp_path) -> None:
    """The parts as an installed package that offers them by short names."""
    about = tmp_path / "my_parts-1.0.dist-info"
    about.mkdir()
    described = "Metadata-Version: 2.1\nName: my_parts\nVersion: 1.0"
    (about / "METADATA").write_text(described)
    (about / "entry_points.txt").write_text(
        "[cifnet_pl.heads]\nMyHead = my_parts:MyHead\n"
        "[cifnet_pl.sources]\nshades = my_parts:shades\n"
        "[cifnet_pl.backbones]\nmine = builders_of_mine:build\n"
        "[cifnet_pl.methods]\nMyMethod = my_parts:MyMethod\n"
    )
    (tmp_path / "builders_of_mine.py").write_text(
        "from cifnet_pl.backbones import Preprocessing\n"
        "from my_parts import MyNet\n"
        "def build(rest, architecture, download):\n"
        "    return MyNet(), 384, Preprocessing(int(rest))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(plugins, "entry_points", importlib.metadata.entry_points)


def test_entry_points_have_short_names(installed: None, tmp_path: Path):
    shades = ["--data.source", "shades", "--data.classes_per_task", "1"]
    short = ["--model.head", "MyHead", "--model.backbone", "mine:8", *shades]
    run = learned(tmp_path / "a", *short, *TORCH)
    would = r"would import my_parts\.MyHead and builders_of_mine\.build:"
    with pytest.raises(CheckpointError, match=would):
        cifnet_pl.load(run)
    assert cifnet_pl.load(run, trust=True).backbone.name == "mine:8"
    words = "fit --model MyMethod --model.epochs 1 --data.max_tasks 1 --logs"
    options = [str(tmp_path / "b"), *NETWORK, *DATA[2:], *shades]
    assert main([*words.split(), *options]) == 0


# ---------------------------------------------------------------------- what is refused


def test_a_network_that_does_not_fit(parts: Path):
    for name, sentence in (
        ("import:my_parts.Plain", "needs the attributes features"),
        ("import:my_parts.MyHead", "called without arguments, fails: TypeError"),
        ("import:my_parts.Narrow", r"shape \(2, 192\).*expected \(2, 384\)"),
        ("import:my_parts.Broken", r"KeyError: 'layer' \(my_parts.py, line \d+\)"),
        ("import:my_parts.Absent", "has no attribute 'Absent'"),
        ("import:no_such_module.Net", "No module named 'no_such_module'; install it"),
        ("import:os.path/../x", "names no import"),
    ):
        with pytest.raises(UsageError, match=sentence):
            build_backbone(name)


@pytest.mark.parametrize(
    ("option", "name", "said"),
    [
        ("--model.head", "my_parts.Forgetful", "my_parts.Forgetful.*attribute"),
        ("--model.head", "my_parts.Fails", r"ZeroDivisionError.*ridge \(my_parts"),
        ("--model", "my_parts.Plain", "my_parts.Plain.*LightningModule"),
        ("--data.source", "my_parts.empty", r"KeyError: 'count' \(my_parts.py, line"),
    ],
)
def test_a_faulty_part_is_named_before_the_first_task(
    parts, tmp_path, option, name, said, capsys
):
    assert fit(tmp_path, option, name) == 2
    output = capsys.readouterr()
    assert output.err.count("\n") == 1
    assert re.search(said, output.err)
    assert "task 1" not in output.out


def test_the_parts_of_the_page_pass_the_public_checks(parts: Path):
    import my_parts

    check_head(my_parts.MyHead)
    check_backbone("import:my_parts.MyNet")
    check_source("my_parts.shades", SourceOptions(own={"count": 10}))
    with pytest.raises(AssertionError, match="scores have shape"):
        check_head(my_parts.Misshaped)
    with pytest.raises(AssertionError, match="same embedding"):
        check_backbone("import:my_parts.Constant")


def test_what_a_backbone_would_import_is_known():
    for name, architecture, imports in (
        ("torchvision:ResNet18_Weights.DEFAULT", None, []),
        ("import:a.B+mirror", None, ["a.B"]),
        ("random:import:a.B", None, ["a.B"]),
        ("file:w.pt", "import:a.B", ["a.B"]),
        ("file:w.pt", "timm:resnet18", []),
    ):
        assert plugin_imports(name, architecture) == imports


def test_an_architecture_of_timm_is_filled_from_a_file(tmp_path: Path):
    network = timm.create_model("test_resnet", pretrained=False)
    torch.save({"state_dict": network.state_dict()}, tmp_path / "w.pt")
    file = f"file:{tmp_path / 'w.pt'}"
    backbone = build_backbone(file, "timm:test_resnet", engine="torch")
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    network.reset_classifier(0)
    x = torch.addcmul(backbone.shift, images.float(), backbone.scale)
    with torch.inference_mode():
        expected = network.eval()(x)
    torch.testing.assert_close(backbone(images), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(UsageError, match="unknown timm model 'resnet10'"):
        build_backbone("file:w.pt", "timm:resnet10")
